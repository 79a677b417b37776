"""What needs a process of its own: forks, interrupts, notebooks."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat

from tests import notebooks
from tests.sync.conftest import ClusterThread

FORK = """
import contextlib, os, sys, warnings
import waltz_sync as waltz

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads, which is what this is about

@contextlib.contextmanager
def left():
    try:
        yield
    except LookupError:
        os._exit(0)

with left(), waltz.open_client(sys.argv[1]) as client:
    pending = client.send(0, waltz.Append(b"parent"))
    pending.outcome()
    with client.materialize(waltz.DictView(lambda txn, state: None), [1]) as app, client.feed(0, after=-1) as feed:
        next(feed)
        child = os.fork()
        if not child:
            calls = [
                lambda: client.append(0, waltz.Append(b"child")),
                lambda: client.status(0),
                lambda: app.submit(lambda state: None, partition=1),
                lambda: next(feed),
                pending.outcome,
            ]
            for call in calls:
                try:
                    call()
                except waltz.WrongProcessError as error:
                    assert "forked from it" in str(error) and "open_client in each process" in str(error), error
                else:
                    os._exit(1)
    if not child:  # every block within was left
        with waltz.open_client(sys.argv[1]) as own:
            own.append(0, waltz.Append(b"child"))
        raise LookupError("that of the client is left, too")
    assert os.waitpid(child, 0)[1] == 0
    client.append(0, waltz.Append(b"the parent goes on"))
print("done")
"""

TRIO_FORK = """
import os, sys, warnings
import trio
import trio.testing
import waltz_trio as waltz

warnings.simplefilter("ignore", DeprecationWarning)

def sockets():
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # of the listing itself
            pass
    return {name for name in names if name.startswith("socket:")}

async def refused(call, *args):
    try:
        await call(*args)
    except waltz.WrongProcessError as error:
        assert "forked from it" in str(error) and "open_client in each process" in str(error), error
    else:
        raise AssertionError(call)

async def own():
    async with waltz.open_client(sys.argv[1]) as client:
        await client.append(0, waltz.Append(b"child"))

async def look(client):
    client.status(0)

async def main():
    without_client = sockets()
    async with waltz.open_client(sys.argv[1]) as client:
        pending = await client.send(0, waltz.Append(b"parent"))
        await pending.outcome()
        view = waltz.DictView(lambda txn, state: None)
        async with client.materialize(view, [1]) as app, client.feed(0, after=-1) as feed:
            await anext(feed)
            await trio.testing.wait_all_tasks_blocked(0.05)
            connections = sockets() - without_client
            assert connections
            unsent = await client.send(0, waltz.Append(b"waits for the next step"))
            child = os.fork()
            if not child:
                assert not sockets() & connections, "what a child sends there, the server would get"
                await refused(client.append, 0, waltz.Append(b"child"))
                await refused(client.append_many, 0, [waltz.Append(b"child")])
                await refused(look, client)
                await refused(client.committed_mark, 0)
                await refused(client.flush)
                await refused(lambda: app.submit(lambda state: None, partition=1))
                await refused(lambda: app.read(len, partition=1))
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            await client.append(0, waltz.Append(b"the parent goes on"))
            await unsent.outcome()
            assert connections <= sockets(), "none broke"
            child = os.fork()
            if not child:  # a block that is left there
                await trio.lowlevel.checkpoint()
            # Whatever a child does in the loop of its parent disturbs that.
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

try:
    trio.run(main)
except waltz.WrongProcessError:
    trio.run(own)
    os._exit(0)
"""

INTERRUPT = """
import signal, sys, threading
import waltz_sync as waltz

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background would have it ignored

def interrupt(portal):
    while not portal._waiting - held:  # until the main thread waits for its call
        pass
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

def interrupted(wait, portal):
    thread = threading.Thread(target=interrupt, args=(portal,))
    thread.start()
    try:
        wait()
    except KeyboardInterrupt:
        thread.join()
        assert portal._waiting == held, portal._waiting
        raise

try:
    with waltz.open_client(sys.argv[1]) as client:
        portal = client._portal
        feed_block = client.feed(0, after=waltz.TAIL)
        with feed_block as feed:
            held = set(portal._waiting)
            try:
                interrupted(lambda: next(feed), portal)
            except KeyboardInterrupt:
                print("the call")
            client.append(0, waltz.Append(b"afterwards"))
            print(next(feed).load().decode())
            interrupted(lambda: next(feed), portal)
except KeyboardInterrupt:
    print("the block")
print([thread.name for thread in threading.enumerate()])
"""


EARLY = """
import signal, sys
import waltz_sync as waltz

signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupted(event):
    \"\"\"While a call is handed to the client's thread, which `begin` does.\"\"\"
    def profile(frame, happened, _):
        if (happened, frame.f_code.co_name) == (event, "begin"):
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)
    return profile

with waltz.open_client(sys.argv[1]) as client, client.feed(0, after=waltz.TAIL) as feed:
    held = set(client._portal._waiting)
    for event in ("call", "return"):
        sys.setprofile(interrupted(event))
        try:
            next(feed)
        except KeyboardInterrupt:
            client.status(0)  # what was handed over has begun by then
            assert client._portal._waiting == held, event
            print("nothing goes on")
"""


def run(program: str, url: str) -> str:
    command = [sys.executable, "-X", "dev", "-c", textwrap.dedent(program), url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_forked_process_is_refused_and_leaves_the_parent_alone(cluster: ClusterThread) -> None:
    assert run(FORK, cluster.url) == "done\n"


def test_a_forked_process_sends_nothing_on_the_connections_of_a_trio_client(cluster: ClusterThread) -> None:
    assert run(TRIO_FORK, cluster.url) == ""


def test_an_interrupt_ends_the_call_and_then_the_thread(cluster: ClusterThread) -> None:
    assert run(INTERRUPT, cluster.url) == "the call\nafterwards\nthe block\n['MainThread']\n"


def test_an_interrupt_before_the_call_waits_ends_it_too(cluster: ClusterThread) -> None:
    assert run(EARLY, cluster.url) == "nothing goes on\n" * 2


def test_a_cell_of_a_notebook_may_block(cluster: ClusterThread, tmp_path: Path) -> None:
    cell = f"import waltz_sync as waltz\nwith waltz.open_client({cluster.url!r}) as client:\n    print(client.cluster)"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    notebooks.execute(notebook, tmp_path)
    shown = [output.text for output in notebook.cells[0].outputs if output.get("name") == "stdout"]
    assert shown == ["waltz dev\n"]  # beside it development mode may name a slow step of the kernel
