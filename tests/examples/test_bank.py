"""The programs of `examples/bank`, each started by its one command and used as a person would."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import nbformat
import pytest

from examples.bank.options import options_of
from tests import notebooks
from tests.processes.cluster import ROOT, poll
from waltz_trio.net.ports import HeldPorts


def call(port: int, method: str, path: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def answers(port: int) -> bool:
    try:
        return call(port, "GET", "/accounts/7") == (200, {"balance": 0, "mark": -1})
    except (urllib.error.URLError, ConnectionError):
        return False


@pytest.mark.parametrize("program", ["with_fastapi", "with_flask", "with_django"])
def test_a_bank_behind_http_carries_each_order_out_once(program: str) -> None:
    ports = HeldPorts()
    port = ports.take()
    process = subprocess.Popen(
        [sys.executable, "-m", f"examples.bank.{program}", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        try:
            poll("the program serves", lambda: answers(port) or process.poll() is not None)
            order = "/transfers?source={}&target={}&amount={}&order={}".format
            assert call(port, "POST", order(0, 7, 100, "a")) == (201, {"transaction": 0})
            assert call(port, "POST", order(0, 7, 100, "a")) == (201, {"transaction": 0}), "sent again"
            assert call(port, "POST", order(7, 8, 30, "b")) == (201, {"transaction": 1})
            status, body = call(port, "POST", order(7, 8, 300, "c"))
            assert (status, body["detail"]) == (409, "account 7 has too little")
            status, body = call(port, "POST", order(7, 8, 31, "b"))
            assert status == 409
            assert "'b' was used by transaction 1" in body["detail"]
            for amount in (10**30, -50, 0):
                status, body = call(port, "POST", order(7, 8, amount, f"d{amount}"))
                assert (status in (400, 422), body["detail"]) == (True, f"the amount must be from 1 to {10**15}")
            for text in ("x", "1.5", "9" * 5000):
                status, _ = call(port, "POST", order(7, 8, text, "f"))
                assert status in (400, 422), f"an amount of {text:.10}"
            status, _ = call(port, "POST", "/transfers?source=7&target=8&amount=1")
            assert status in (400, 422), "no order"
            assert call(port, "POST", order(0, 7, 1, "e")) == (201, {"transaction": 2}), "nothing stops the view"
            assert call(port, "GET", "/accounts/7") == (200, {"balance": 71, "mark": 2})
            assert call(port, "GET", "/accounts/8") == (200, {"balance": 30, "mark": 2})
        finally:
            process.terminate()  # SIGINT is ignored by children of a shell that runs tests in the background
            assert process.stderr is not None
            errors = process.stderr.read()
            ports.release()
    assert process.returncode in (0, -signal.SIGTERM), errors


@pytest.mark.parametrize("port", ["70000", "-1", "x", "8000.0"])
def test_a_port_that_is_none_is_refused_before_anything_starts(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised, options_of([f"--port={port}"], None):
        pass
    assert raised.value.code == 2
    assert f"--port: expected a port from 0 to 65535, found '{port}'" in capsys.readouterr().err


def test_a_script_of_threads_loses_no_money() -> None:
    command = [sys.executable, "-m", "examples.bank.script"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("; 1000 in 10 accounts\n")


@pytest.mark.slow  # Celery looks at a broker of files once a second
def test_orders_that_celery_delivers_twice_are_carried_out_once() -> None:
    command = [sys.executable, "-m", "examples.bank.with_celery"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n40 tasks, 20 transactions, account 7 holds 200\n"), done.stdout


@pytest.mark.slow
def test_the_task_of_a_killed_process_of_celerys_pool_comes_again(tmp_path: Path) -> None:
    """Acknowledged late, it would count as failed."""
    command = [sys.executable, "-m", "tests.examples.mortal"]
    environment = {**os.environ, "BANK_FOLDER": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert "\ncame again\n" in done.stdout, done.stdout


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONDEVMODE", "")
    notebook = nbformat.read(ROOT / "examples" / "bank" / "notebook.ipynb", as_version=4)
    notebooks.execute(notebook, tmp_path)
    results = [
        ast.literal_eval(output["data"]["text/plain"])
        for cell in notebook.cells[1:]
        for output in cell.get("outputs", ())
        if output["output_type"] == "execute_result" and "Client" not in output["data"]["text/plain"]
    ]
    assert results == [3, [(0, 100), (1, -30), (2, -30), (3, -30)], ({7: 10}, 3)]
