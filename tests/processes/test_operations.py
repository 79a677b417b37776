"""The files of docs/operations: what they name exists, and what can be checked or started is."""

from __future__ import annotations

import configparser
import fnmatch
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

import waltz_trio as waltz
from tests.docs.blocks import blocks_of
from tests.processes.cluster import DEVELOPMENT, ROOT, Child, poll
from tests.processes.zookeeper import ZooKeeperServer
from waltz_trio.cli.main import NOUNS, main
from waltz_trio.config.config import Config
from waltz_trio.net.certificates import issue, make_ca
from waltz_trio.net.ports import HeldPorts
from waltz_trio.net.tls import local_names
from waltz_trio.node.server_settings import server_settings
from waltz_trio.node.storage_settings import storage_settings

DIRECTORY = ROOT / "docs" / "operations"


def text_of(name: str) -> str:
    return (DIRECTORY / name).read_text()


def configurations() -> dict[str, str]:
    """Every configuration file inside the files of this directory."""
    compose = yaml.safe_load(text_of("compose.yml"))
    found = {f"compose/{name}": config["content"] for name, config in compose["configs"].items()}
    (config,) = [one for one in yaml.safe_load_all(text_of("kubernetes.yaml")) if one["kind"] == "ConfigMap"]
    return {**found, **{f"kubernetes/{name}": text for name, text in config["data"].items()}}


@pytest.mark.parametrize("name", configurations())
async def test_a_process_takes_the_configurations(name: str) -> None:
    config = Config.parse(configurations()[name], name)
    assert config.unknown() == ()
    assert config.text("cluster.root") == "/waltz"
    kind = name.partition("/")[2].removesuffix(".yml")
    if kind == "tools":
        assert config.text("zookeeper.connectString")
    elif kind == "storage":
        assert storage_settings(config, pytest.fail).node.root == "/waltz"
    else:
        assert server_settings(config, pytest.fail).node.root == "/waltz"


def test_the_manifests_fit_together() -> None:
    objects = list(yaml.safe_load_all(text_of("kubernetes.yaml")))
    services = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "Service"}
    assert [one["kind"] for one in objects].count("StatefulSet") == 2
    for one in objects:
        assert {"apiVersion", "kind", "metadata"} <= one.keys()
        if one["kind"] == "StatefulSet":
            spec = one["spec"]
            labels = spec["template"]["metadata"]["labels"]
            assert spec["selector"]["matchLabels"] == labels
            service = services[spec["serviceName"]]
            assert service["selector"] == labels
            (container,) = spec["template"]["spec"]["containers"]
            ports = {port["containerPort"] for port in container["ports"]}
            assert {port["port"] for port in service["ports"]} <= ports
            assert container["readinessProbe"]["httpGet"]["port"] in ports


def test_kubernetes_knows_every_field_of_the_manifests() -> None:
    checked(Path(sys.executable).with_name("kubernetes-validate"), "--strict", DIRECTORY / "kubernetes.yaml")


def test_the_linter_of_dockerfiles_has_nothing_to_say() -> None:
    checked(Path(sys.executable).with_name("hadolint"), DIRECTORY / "Dockerfile")


def checked(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


ALONE = """
import sys
root, here, *commands = sys.argv[1:]
sys.path[:] = [here, *(path for path in sys.path if path not in ("", root))]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
import waltz_trio.cli.main
failed = [command for command in commands if waltz_trio.cli.main.main(command.split()) != 0]
own = [module for name, module in sys.modules.items() if name.startswith("waltz_") and "." not in name]
strangers = [module for module in own if not str(module.__file__).startswith(here)]
sys.exit(f"not of the image: {strangers}, failed: {failed}" if strangers or failed else 0)
"""
"""Runs commands of the packages in one directory, as if this project were not installed beside it."""


def test_what_is_copied_into_the_image_is_enough_to_run(tmp_path: Path) -> None:
    for names, target in re.findall(r"^COPY ([^-].*) (\S+)$", text_of("Dockerfile"), re.MULTILINE):
        for name in names.split():
            to = tmp_path / target / name if target == "./" else tmp_path / target
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, to)
    commands = ["--version", *(f"{noun} --help" for noun in NOUNS)]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, ROOT, tmp_path, *commands],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "loops over transactions" in done.stdout
    assert done.stdout.count("usage: waltz ") == len(NOUNS)


def test_every_package_of_the_distribution_is_in_the_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    wanted = {name for name in packages if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)}
    copied = set(re.findall(r"^COPY (\w+) \1$", text_of("Dockerfile"), re.MULTILINE))
    assert copied == wanted
    files = {"setup.py", "pyproject.toml", project["project"]["readme"]}
    assert files <= set(re.findall(r"^COPY (.+) \./$", text_of("Dockerfile"), re.MULTILINE)[0].split())


def test_the_composition_names_services_and_files_that_exist() -> None:
    compose: dict[str, Any] = yaml.safe_load(text_of("compose.yml"))
    for service in compose["services"].values():
        assert set(service.get("depends_on", ())) <= compose["services"].keys()
        for config in service.get("configs", ()):
            assert config["source"] in compose["configs"]
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in compose["volumes"]


@pytest.mark.parametrize("name", ["waltz-storage.service", "waltz-server.service"])
def test_the_units_are_units(name: str) -> None:
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names of systemd are in mixed case
    unit.read_string(text_of(name))
    assert re.fullmatch(r"/opt/waltz/bin/waltz (storage|server) run /etc/waltz/\w+\.yml", unit["Service"]["ExecStart"])
    if shutil.which("systemd-analyze"):
        found = subprocess.run(
            ["systemd-analyze", "verify", str(DIRECTORY / name)], capture_output=True, text=True, check=False
        )
        problems = [line for line in found.stderr.splitlines() if name in line and "is not executable" not in line]
        assert problems == []


SAMPLES = ("tools.yml", "storage.yml", "server.yml", "client.yml")
ZOOKEEPERS = "zookeeper-1.example:2181,zookeeper-2.example:2181,zookeeper-3.example:2181"
PORTS = ("7071", "7072", "7073", "6060", "6062")


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_hold_known_keys_only(name: str) -> None:
    config = Config.parse(text_of(name), name)
    assert config.unknown() == ()
    assert config.text("cluster.root") == "/waltz"
    assert f"({name})" in text_of("README.md")


class Samples:
    """The samples as an operator takes them over: hosts, ports and directories are his own, nothing else changes."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.directory = directory
        self.ports = HeldPorts()
        self._zookeeper = zookeeper
        self._authority = make_ca("waltz authority")
        self.children: list[Child] = []

    def take_over(self, sample: str, name: str) -> tuple[Path, dict[str, int]]:
        """A file of this name, with certificates of its own; returns its ports by those of the sample."""
        etc, data = self.directory / f"etc-{name}", self.directory / f"data-{name}"
        etc.mkdir()
        data.mkdir()
        pair = issue(self._authority, name, local_names())
        (etc / "ca.pem").write_bytes(self._authority.certificate)
        (etc / "certificate.pem").write_bytes(pair.certificate)
        (etc / "key.pem").write_bytes(pair.key)
        text = text_of(sample)
        ports = {port: self.ports.take() for port in PORTS if port in text}
        words = {ZOOKEEPERS: self._zookeeper, "/etc/waltz": str(etc), "/var/lib/waltz": str(data)}
        words |= dict.fromkeys(("0.0.0.0", "storage-1.example", "server-1.example"), "127.0.0.1")
        words |= {port: str(number) for port, number in ports.items()}
        for word, own in words.items():
            text = text.replace(word, own)
        assert ".example" not in text
        path = self.directory / (sample if sample in ("tools.yml", "client.yml") else f"{name}.yml")
        path.write_text(text)
        return path, ports

    def start(self, name: str, *command: str, http: int) -> None:
        child = Child(name, [sys.executable, *DEVELOPMENT, "-m", "waltz_trio.cli.main", *command], self.directory)
        self.children.append(child)
        child.start()
        poll(f"{name} answers", lambda: answers(http) or not child.running)
        assert child.running, child.text()

    def stop(self) -> None:
        try:
            for child in reversed(self.children):
                child.stop()
        finally:
            for child in self.children:
                child.end()
            self.ports.release()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def commands_of_the_page() -> list[list[str]]:
    """The commands of "A new cluster", in its order."""
    (block,) = [block for block in blocks_of("docs/operations/README.md") if "waltz zookeeper create" in block.text]
    lines = [line.partition("#")[0].split() for line in block.text.splitlines()]
    assert [" ".join(line[:3]) for line in lines] == [
        "waltz zookeeper create",
        "waltz zookeeper add-storage-node",
        "waltz zookeeper auto-assign",
        "waltz storage run",
        "waltz storage sync-partitions",
        "waltz server run",
        "waltz cluster verify",
    ]
    return [line[1:] for line in lines]


def test_a_cluster_starts_from_the_samples_by_the_commands_of_the_page(
    tmp_path: Path, zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    samples = Samples(tmp_path, zookeeper.fresh_chroot())
    samples.take_over("tools.yml", "tools")
    samples.take_over("client.yml", "client")
    nodes = [samples.take_over("storage.yml", f"storage-{number}") for number in range(3)]
    server, server_ports = samples.take_over("server.yml", "server-0")
    create, add, assign, storage_run, sync, server_run, verify = commands_of_the_page()

    def tool(command: list[str], **words: object) -> None:
        given = [str(words.get(word, word)) for word in command]
        status = main(given)
        printed = capsys.readouterr()
        assert status == 0, f"{given}\n{printed.out}\n{printed.err}"

    try:
        tool(create, NAME="sample", PARTITIONS=4)
        for group, (_, ports) in enumerate(nodes):
            tool(add, **{"HOST:7071": f"127.0.0.1:{ports['7071']}", "7073": ports["7073"], "GROUP": group})
            tool(assign, GROUP=group)
        for group, (path, ports) in enumerate(nodes):
            samples.start(f"storage-{group}", *storage_run[:2], str(path), http=ports["7072"])
        tool(sync)
        samples.start("server-0", *server_run[:2], str(server), http=server_ports["6062"])
        assert trio.run(append_one) == 0
        poll("everything agrees", lambda: main(verify) == 0)  # partitions recover one after the other
        capsys.readouterr()
        tool(["doctor", "-c", "tools.yml"])
    finally:
        samples.stop()


async def append_one() -> int:
    """What an application does with its file."""
    with trio.fail_after(60):
        async with waltz.open_client("client.yml") as client:
            return await client.append(3, waltz.Append(b"hello"))


def test_the_page_names_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    pages = [text_of("README.md"), text_of("alerts.yml")]
    commands = set(re.findall(r"waltz (zookeeper|storage|server|cluster|client|disk) ([a-z-]+)", "\n".join(pages)))
    assert len(commands) > 10
    for noun, verb in sorted(commands):
        assert main([noun, verb, "--help"]) == 0, (noun, verb)
        capsys.readouterr()
