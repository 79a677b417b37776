"""The demonstrations as a person starts them: `waltz demo run` and `waltz demo bank`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.cluster import poll
from tests.witness.log import Attempt, Payload, Verdict, check, read_replica
from waltz_trio.demo import journal
from waltz_trio.demo.bank import ENTRIES
from waltz_trio.demo.files import read_database, read_log

pytestmark = pytest.mark.processes

WALTZ = [sys.executable, "-m", "waltz_trio.cli.main"]
LIMIT = 170  # seconds; far more than needed, for machines that are busy
SHORT = ["--seconds", "9", "--kills", "5", "--seed", "7"]


def waltz(*arguments: str, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WALTZ, *arguments], input=stdin, capture_output=True, text=True, timeout=LIMIT, cwd=cwd, check=False
    )


def processes_of(directory: Path) -> list[int]:
    """Processes whose command line names the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if os.fsencode(directory) in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_the_bank_survives_kills_and_proves_it(tmp_path: Path) -> None:
    directory, result = tmp_path / "demo", tmp_path / "result.json"
    done = waltz("demo", "run", *SHORT, "--directory", str(directory), "--json", str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(result.read_text())
    assert found["proved"]
    assert len(found["kills"]) >= 5
    assert "cluster" in found["kills"]
    assert None not in found["recovery_s"]
    assert found["client_kills"] == 1
    assert found["committed"] > 50
    assert "Proved: every promise was kept." in done.stdout
    assert "kill -9 the whole cluster" in done.stdout
    assert processes_of(directory) == []
    # The result can be looked at afterwards, without anything of the demonstration running.
    logs = [read_log(directory / "cluster" / f"storage-{index}") for index in range(3)]
    database = read_database(directory / "client-0.db", 0)
    assert {partition: len(log) - 1 for partition, log in logs[0].items()} == dict(database.marks)
    assert logs[0] == logs[1] == logs[2]
    verdict = witness(directory, dict(database.marks))
    assert verdict.committed == found["committed"]


def witness(directory: Path, marks: dict[int, int]) -> Verdict:
    """The judge of all clusters goes through the files that the demonstration left, which has a judge of its own."""
    disks = [directory / "cluster" / f"storage-{index}" for index in range(3)]
    replicas = {partition: [read_replica(disk, partition) for disk in disks] for partition in marks}
    payloads = {
        payload.name: payload
        for partition, mark in marks.items()
        for payload in [payload_of(entry.data) for entry in replicas[partition][0][: mark + 1]]
    }
    attempts: dict[str, Attempt] = {}
    for path in sorted(directory.glob("client-*.journal")):
        client = int(path.stem.rpartition("-")[2])
        for event in journal.read(path, client):
            name = f"{client}/{event.request}"
            if event.kind == journal.ASKED:
                payload = payloads.get(name, Payload(name, -1))
                attempts[name] = Attempt(event.partition, payload, event.time)
            elif event.kind == journal.COMMITTED:
                attempts[name].returned, attempts[name].transaction_id = event.time, event.transaction_id
            elif event.kind == journal.DECLINED:
                attempts[name].returned, attempts[name].why = event.time, event.kind
    return check(replicas, marks, attempts, {}, payload_of=payload_of)


def payload_of(data: bytes) -> Payload:
    """What a transaction of the bank says about itself."""
    entry = ENTRIES.loads(data)
    return Payload(f"{entry.client}/{entry.request}", entry.mark, entry.write, entry.read)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    done = waltz("demo", "run", "--directory", str(tmp_path))
    assert done.returncode == 1
    assert "is not empty; the demonstration needs a new one" in done.stderr
    done = waltz("demo", "run", "--kills", "4")
    assert done.returncode == 2
    assert "at least 5" in done.stderr
    done = waltz("demo", "run", "--accounts", "1")  # nothing was committed in the other partition: NOT proved
    assert done.returncode == 2
    assert "at least one for each of the 2 partitions" in done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_every_process(number: signal.Signals, status: int, tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    process = subprocess.Popen(
        [*WALTZ, "demo", "run", "--directory", str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "cluster started" in process.stdout.readline()
    process.send_signal(number)
    output, _ = process.communicate(timeout=LIMIT)
    assert "Interrupted: nothing is proved." in output
    assert process.returncode == status
    assert processes_of(directory) == []


def test_no_process_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    process = subprocess.Popen(
        [*WALTZ, "demo", "run", "--directory", str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()
    poll("no process is left", lambda: not processes_of(directory), LIMIT)


DIALOGUE = """x
3
1
deposit 1 100
withdraw 1 30
withdraw 1 100
balance 1
balance x
balance 99999999999
balance 2
withdraw 9 1
deposit 5 -1
deactivate 1
deposit 1 5
withdraw 1 5
balance 1
rob 1

deposit 1
deactivate zz
deposit -7 12
balance -7
quit
balance 1
"""

ANSWERS = """\
"x" is not a valid number, try again
Choose run mode number: 1-[interactive] 2-[automatic]
Invalid mode number, try again
Choose run mode number: 1-[interactive] 2-[automatic]
	Deposit completed [accountId=1 amount=100]
	Withdrawal completed [accountId=1 amount=30]
	Unable to withdraw. [accountId=1 active=Y amount=100]
	Withdrawal failed [accountId=1 amount=100]
	Balance [accountId=1 active=Y amount=70]
"x" is not a valid number, try again
"99999999999" is not a valid number, try again
	Balance [accountId=2 amount=NO_DATA]
	Withdrawal failed [accountId=9 amount=1]
"-1" is not a valid amount, try again
	Account deactivated [accountId=1]
	The account is not active. [accountId=1]
	Deposit failed [accountId=1 amount=5]
	Unable to withdraw. [accountId=1 active=N amount=5]
	Withdrawal failed [accountId=1 amount=5]
	Balance [accountId=1 active=N amount=70]
unknown command: rob
not enough parameters
"zz" is not a valid number, try again
	Deposit completed [accountId=-7 amount=12]
	Balance [accountId=-7 active=Y amount=12]
"""


def answers(output: str) -> str:
    """What was said, without the prompts."""
    return "".join(line for line in output.splitlines(keepends=True) if line.strip() and not line.startswith("Enter ["))


def test_the_interactive_bank_answers_piped_commands(tmp_path: Path) -> None:
    done = waltz("demo", "bank", stdin=DIALOGUE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, _, rest = answers(done.stdout).partition("Choose run mode number: 1-[interactive] 2-[automatic]\n")
    assert first.startswith("Starting a cluster")
    assert rest == ANSWERS
    assert list(tmp_path.iterdir()) == []


def test_the_interactive_bank_goes_on_with_its_accounts(tmp_path: Path) -> None:
    """On a running cluster, from the original's configuration of the database or a file of the current directory."""
    import trio

    from waltz_trio.node.embedded import embedded_cluster

    def talk(url: str, *commands: str) -> str:
        done = waltz("demo", "bank", "--url", url, "--mode", "interactive", stdin="\n".join(commands), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return answers(done.stdout)

    async def both() -> tuple[str, str]:
        async with embedded_cluster(tmp_path / "cluster", partitions=3) as cluster:
            first = await trio.to_thread.run_sync(talk, cluster.url, "deposit 4 10", "deposit 5 20")
            return first, await trio.to_thread.run_sync(talk, cluster.url, "balance 4", "balance 5", "withdraw 5 3")

    first, second = trio.run(both)
    assert first.count("Deposit completed") == 2
    assert second == (
        "\tBalance [accountId=4 active=Y amount=10]\n\tBalance [accountId=5 active=Y amount=20]\n"
        "\tWithdrawal completed [accountId=5 amount=3]\n"
    )
    assert (tmp_path / "bank.db").exists()


def test_a_configuration_with_a_foreign_database_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "client.yml"
    config.write_text("DataSource.ConnectString: jdbc:mariadb://localhost/DEMO_BANK\n")
    done = waltz("demo", "bank", str(config))
    assert done.returncode == 1
    assert "expected jdbc:sqlite:FILE; or name a file with --database" in done.stderr
    done = waltz("demo", "bank", str(config), "--url", "waltz://127.0.0.1:1")
    assert done.returncode == 2
    assert "either CONFIG.yml or --url" in done.stderr
