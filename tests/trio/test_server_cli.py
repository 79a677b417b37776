"""`waltz server list`, as far as it needs no server."""

from __future__ import annotations

import pytest

from waltz_trio.cli.main import main


@pytest.mark.parametrize(
    ("server", "status", "problem"),
    [
        ("localhost", 2, "Http must be in format of host:port"),
        ("localhost:-5", 2, "Http must be in format of host:port: expected host:port, found 'localhost:-5'"),
        ("a..b:80", 1, "http://a..b:80/metrics: "),
        ("127.0.0.1:1", 1, "http://127.0.0.1:1/metrics: [Errno 111] Connection refused"),
    ],
)
def test_a_server_that_cannot_be_asked_is_named_in_one_line(
    server: str, status: int, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["server", "list", "-s", server]) == status
    output = capsys.readouterr()
    assert output.err.startswith(f"Error: {problem}")
    assert output.err.count("\n") == 1
    assert "JSON" not in output.err
