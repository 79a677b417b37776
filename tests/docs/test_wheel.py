"""What `pip install` gives: a wheel in an environment with nothing else, and README's first program in it.

README.md shows the commands; here the wheel is built, installed and used.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.test_pages import Reader
from tests.docs.typed import CASES, errors_wanted

PACKAGES = {
    "waltz_core",
    "waltz_speedups",
    "waltz_trio",
    "waltz_sync",
    "waltz_asyncio",
    "waltz_testing",
    "waltz_dcb",
    "waltz_spark",
    "pyspark_waltz",
    "pyspark_waltz_journal",
}
SIZE_MAX = 100 << 20  # of everything that a client needs
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {
    "PyYAML": "yaml",
    "PyMySQL": "pymysql",
    "trio-util": "trio_util",
    "prometheus-client": "prometheus_client",
    "opentelemetry-api": "opentelemetry",
}
IMPORTED_BY = {  # what others import for us
    "pure-sasl": "kazoo, where ZooKeeper asks for a login",
    "protobuf": "messages that protoc made",
    "pandas": "pyspark, before it runs anything on Arrow batches",
    "s3fs": "fsspec, for addresses of S3",
    "grpcio": "pyspark, as a client of Spark Connect",
    "grpcio-status": "pyspark, as a client of Spark Connect",
    "googleapis-common-protos": "pyspark, as a client of Spark Connect",
    "zstandard": "pyspark, as a client of Spark Connect",
    "fastapi": "examples/bank",
    "uvicorn": "examples/bank",
    "flask": "examples/bank",
    "django": "examples/bank",
    "celery": "examples/bank",
}


def run(*command: str | Path, status: int = 0, cwd: Path | None = None, **more: str) -> str:
    environment = {**os.environ, **more}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=cwd, env=environment)
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def names_of(requirements: list[str]) -> set[str]:
    return {match[0] for text in requirements if (match := re.match(r"[\w-]+", text)) and match[0] != "waltz-log"}


def test_every_dependency_is_imported_and_every_import_is_a_dependency() -> None:
    extras = {name: texts for name, texts in PROJECT["optional-dependencies"].items() if name != "dev"}
    declared = names_of([*PROJECT["dependencies"], *(text for texts in extras.values() for text in texts)])
    imported = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    imported.add((node.module or "").partition(".")[0])
    assert {name for name in declared if IMPORTED_AS.get(name, name) not in imported} == IMPORTED_BY.keys()
    known = {IMPORTED_AS.get(name, name) for name in declared} | PACKAGES | sys.stdlib_module_names
    known |= {"_typeshed", "typing_extensions"}  # there for whoever checks types
    others = {"fsspec": "comes with s3fs", "pytest": "loads its plugin"}
    assert imported - known == others.keys()


def test_every_extra_is_described() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    assert {name for name in PROJECT["optional-dependencies"] if f"`{name}`" not in page} == {"dev"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: building writes into the tree.

    With what is installed here instead of an environment fetched for it, and without optimising what nobody measures.
    Debug symbols are asked for, as most builds of Python do.
    """
    tree = tmp_path_factory.mktemp("tree")
    for name in (*PACKAGES, "examples", "tests/docs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.c"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    build = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation")
    run(*build, "-w", tree / "dist", tree, CFLAGS="-O0 -g")
    (found,) = (tree / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The `bin` of an environment with the wheel and what it requires."""
    place = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", place)
    run(sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "-q", wheel)
    yield place / "bin"
    shutil.rmtree(place)


def test_the_wheel_holds_the_packages_and_says_that_they_are_typed(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == PACKAGES
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_the_compiled_loops_come_without_debug_symbols(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        (loops,) = (name for name in content.namelist() if name.endswith(".so"))
        assert b".debug_info" not in content.read(loops)


def test_the_base_is_what_a_client_needs(programs: Path) -> None:
    python = programs / "python"
    run(python, "-c", "import waltz_trio as waltz; [getattr(waltz, name) for name in waltz.__all__]")
    (packages,) = programs.parent.glob("lib/python*/site-packages")
    assert sum(path.stat().st_size for path in packages.rglob("*") if path.is_file()) < SIZE_MAX
    assert not {"rich", "pyspark", "numpy", "puresasl"} & {path.name for path in packages.iterdir()}


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("demo", "run", "--seconds", "1"), "demo"),
        pytest.param(("client", "validate", "--help"), "cli", marks=pytest.mark.slow),
        pytest.param(("spark", "--help"), "spark", marks=pytest.mark.slow),
    ],
)
def test_a_command_without_its_extra_names_it(programs: Path, command: tuple[str, ...], extra: str) -> None:
    text = run(programs / "waltz", *command, status=1)
    assert f"pip install 'waltz-log[{extra}]'" in text
    assert "Traceback" not in text


def test_the_first_program_runs(programs: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path, programs=programs)
    try:
        for block in blocks_of("README.md"):
            reader.does(block)
    finally:
        reader.leaves()


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        pytest.param("docs/howto/embedding.md", marks=pytest.mark.slow),
        pytest.param("docs/howto/idempotency.md", marks=pytest.mark.slow),
        pytest.param("docs/howto/many-at-once.md", marks=pytest.mark.slow),
        pytest.param("docs/howto/outbox.md", marks=pytest.mark.slow),
        pytest.param("docs/howto/rebuild.md", marks=pytest.mark.slow),
        pytest.param("docs/howto/saga.md", marks=pytest.mark.slow),
        pytest.param("docs/howto/schema-change.md", marks=pytest.mark.slow),
        pytest.param("docs/howto/threads.md", marks=pytest.mark.slow),
    ],
)
def test_the_programs_of_the_pages_are_typed(programs: Path, tmp_path: Path, page: str) -> None:
    for block in blocks_of(page):
        if "file" in block.marks:
            (tmp_path / block.marks["file"]).write_text(block.text)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", programs / "python")
    cache = ("--cache-dir", programs.parent / "mypy")
    print(run(*mypy, *cache, *tmp_path.glob("*.py"), cwd=tmp_path))


def lines_refused_by_mypy(python: Path, folder: Path) -> dict[str, set[int]]:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    command += ["--cache-dir", str(python.parents[1] / "mypy"), *CASES]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    print(done.stdout)
    refused: dict[str, set[int]] = {name: set() for name in CASES}
    for name, line in re.findall(r"^([^:\n]+):(\d+): error:", done.stdout, re.MULTILINE):
        refused[name].add(int(line))
    return refused


def lines_refused_by_pyright(python: Path, folder: Path) -> dict[str, set[int]]:
    """In strict mode; with the cases goes the program of README, in which nothing may be refused."""
    programs = [block for block in blocks_of("README.md") if "file" in block.marks]
    for block in programs:
        (folder / block.marks["file"]).write_text(block.text)
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    # The copy inside the package: any other it would have to download.
    environment = os.environ | {"PYRIGHT_PYTHON_USE_BUNDLED_PYRIGHT": "1", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    command = [sys.executable, "-m", "pyright", "--pythonpath", str(python), "--outputjson", "--project", "."]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    print(done.stdout)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(CASES) + len(programs)
    refused: dict[str, set[int]] = {name: set() for name in [*CASES, *(block.marks["file"] for block in programs)]}
    for each in report["generalDiagnostics"]:
        refused[Path(each["file"]).name].add(each["range"]["start"]["line"] + 1)
    return refused


@pytest.mark.parametrize(
    "lines_refused", [lines_refused_by_mypy, pytest.param(lines_refused_by_pyright, marks=pytest.mark.slow)]
)
def test_wrong_arguments_of_submit_decide_and_views_are_refused(
    programs: Path, tmp_path: Path, lines_refused: Callable[[Path, Path], dict[str, set[int]]]
) -> None:
    for name, text in CASES.items():
        (tmp_path / name).write_text(text)
    refused = lines_refused(programs / "python", tmp_path)
    assert refused == {name: set(errors_wanted(CASES.get(name, ""))) for name in refused}
