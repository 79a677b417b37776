"""One process machine and the world around it: sockets, time-outs, and plug-ins for its other effects."""

from __future__ import annotations

import functools
import resource
import ssl
from collections.abc import Awaitable, Callable, Mapping
from socket import socket
from typing import Any

import trio

from waltz_core.access.roles import NO_ROLES, Roles, RolesChanged
from waltz_core.base.contract import Machine
from waltz_core.base.edge import (
    Accepted,
    CloseConn,
    Closed,
    Dial,
    Dialed,
    Ended,
    Level,
    Port,
    Reading,
    Report,
    Send,
    ZkChildren,
    ZkCreate,
    ZkDelete,
    ZkGet,
    ZkMulti,
    ZkRequest,
    ZkSet,
)
from waltz_trio.base.log import described
from waltz_trio.base.pump import Pump
from waltz_trio.base.znodes import ZnodeStore
from waltz_trio.net.arrivals import Arrivals
from waltz_trio.net.channel import Channel, NetLimits, TlsPipe
from waltz_trio.net.complaints import Complaints
from waltz_trio.net.dialer import DialError, dial
from waltz_trio.net.ends import EndWatch
from waltz_trio.net.listener import accept_loop
from waltz_trio.net.listener import close as close_listener
from waltz_trio.net.tls import ClientTls, ServerTls, names_of

Perform = Callable[[Any], None]
"""Carries out one effect, synchronously, without raising."""

_ZK_REQUESTS = (ZkGet, ZkChildren, ZkCreate, ZkSet, ZkDelete, ZkMulti)


class NodeDriver:
    """Runs one process machine (server, storage node or client) on sockets.

    Effects of `waltz_core.base.edge` are performed here (those for ZooKeeper by `znodes`, to be set before
    the store delivers its first event); every other type needs an entry in `plugins`. Effects are
    performed in their order; what is sent leaves last, so that a broken socket can swallow neither a delivery nor a
    write. Behind it runs `afterwards`, for what may take longer than others should wait for.

    Lifetime: `await nursery.start(driver.run)`, then `listen`; cancel the nursery, or `stop`, to end.
    """

    def __init__(
        self,
        machine: Machine[Any, Any],
        *,
        name: str,
        client_tls: ClientTls | None = None,
        roles: Roles = NO_ROLES,
        plugins: Mapping[type, Perform] | None = None,
        afterwards: Callable[[], None] | None = None,
        report: Callable[[Level, str], None] | None = None,
        limits: NetLimits | None = None,
        recorded_batches: int = 0,
    ) -> None:
        self.name = name
        self.limits = limits or NetLimits()
        self.scratch = bytearray(self.limits.read_size)
        self.ends = EndWatch()
        self.arrivals = Arrivals()
        self.killed = False
        self.ended = trio.Event()  # the machine said that it is done
        self.end_reason = ""  # why it could not continue; empty after an ordinary end
        self.report = report or (lambda level, text: None)
        self._complaints = Complaints(self.report)
        self.complain = self._complaints.put
        self.pump: Pump[Any, Any] = Pump(
            machine, self._perform, name=name, recorded_batches=recorded_batches, others=self.arrivals.any
        )
        self.post = self.pump.post
        self.deliver = self.pump.deliver  # what has come from outside: its step waits for others that can be read
        self.post_all = self.pump.post_all
        self.wait_room = self.pump.wait_room
        self.znodes: ZnodeStore | None = None
        self._zk_requests: list[ZkRequest] = []
        self._client_tls = client_tls
        self._roles = roles  # for peers that this process dials; the machine checks those that connect
        self._afterwards = afterwards
        self._table: dict[type, Perform] = {
            Send: self._on_send,
            CloseConn: self._on_close,
            Dial: self._on_dial,
            Reading: self._on_reading,
            Ended: self._on_ended,
            Report: self._on_report,
            **dict.fromkeys(_ZK_REQUESTS, self._zk_requests.append),
            **(plugins or {}),
        }
        self._channels: dict[int, Channel] = {}
        self._hosts: dict[int, tuple[Port, tuple[str, ...]]] = {}  # dialed: port, names of its certificate
        self._dials: dict[int, tuple[trio.CancelScope, list[str]]] = {}
        self.touched: list[Channel] = []  # those that have something to flush at the end of this step
        self._listeners: list[socket] = []
        self._last_conn = 0
        self._accepted = 0
        self._accepted_max = accepted_max(self.limits)
        self._shaking: dict[TlsPipe, str] = {}  # handshakes under way, the oldest first, and with whom
        self._quiet: trio.Event | None = None  # set when the last connection is gone
        self._nursery: trio.Nursery | None = None

    # ---- life ------------------------------------------------------------------------------------

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Run the machine until cancelled; connections and listeners end with it."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self.pump.run)
                nursery.start_soon(self.ends.run)
                nursery.start_soon(self._complaints.run)
                task_status.started()
        finally:
            self.stop_listening()
            self.arrivals.close()
            self._nursery = None

    def serve(self, port: Port, sock: socket, tls: ServerTls) -> None:
        """Accept connections of one kind on a socket that listens already."""
        self._listeners.append(sock)
        self._start(accept_loop, sock, functools.partial(self._on_connection, port, tls), None, self.complain)

    def stop_listening(self) -> None:
        """Accept nothing new."""
        for sock in self._listeners:
            close_listener(sock)
        self._listeners.clear()

    def finish(self, event: Any) -> None:
        """Post one last event and step at once: the caller is being cancelled and cannot wait for the pump."""
        self.post(event)
        self.pump.run_once()

    async def stop(self, *, patience: float = 3.0) -> None:
        """End in order: accept nothing new, flush and close every connection, then cancel."""
        self.stop_listening()
        with trio.move_on_after(patience):
            while self.pump.busy:
                await trio.lowlevel.checkpoint()
            for channel in list(self._channels.values()):
                channel.close("the process ends")
                channel.flush()
            if self._channels:
                self._quiet = trio.Event()
                await self._quiet.wait()
        self.cancel()

    def cancel(self) -> None:
        """End at once; sockets are closed, nothing is flushed."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def kill(self) -> None:
        """End as `kill -9` would: every socket is reset, nothing is flushed, closed or reported."""
        self.killed = self.pump.halted = True
        self.cancel()

    # ---- effects ---------------------------------------------------------------------------------

    def _perform(self, out: list[Any]) -> None:
        if not out:
            return
        table = self._table
        for effect in out:
            table[type(effect)](effect)
        if self._zk_requests:
            assert self.znodes is not None, "the machine talks to ZooKeeper before it heard of a session"
            self.znodes.submit(tuple(self._zk_requests))
            self._zk_requests.clear()
        if self.touched:
            touched, self.touched = self.touched, []
            for channel in touched:
                channel.flush()
        if self._afterwards is not None:
            self._afterwards()

    def _on_send(self, effect: Send) -> None:
        channel = self._channels.get(effect.conn)
        if channel is not None:
            channel.send(effect.data)

    def _on_close(self, effect: CloseConn) -> None:
        channel = self._channels.get(effect.conn)
        if channel is not None:
            channel.close(effect.reason)
        elif effect.conn in self._dials:
            scope, reason = self._dials[effect.conn]
            reason.append(effect.reason)
            scope.cancel()

    def _on_dial(self, effect: Dial) -> None:
        assert effect.conn < 0, "dialed ids are negative"
        scope = trio.CancelScope()
        reason: list[str] = []
        self._dials[effect.conn] = scope, reason
        self._start(self._supervised, str(effect.endpoint), self._dial, effect, scope, reason)

    def _on_reading(self, effect: Reading) -> None:
        channel = self._channels.get(effect.conn)
        if channel is not None:
            channel.read(effect.wanted)

    def end(self, reason: str = "") -> None:
        """Note that the machine is done, where an effect of its own says so."""
        self._on_ended(Ended(reason))

    def _on_ended(self, effect: Ended) -> None:
        if not self.ended.is_set():
            self.end_reason = effect.reason
            self.ended.set()

    def _on_report(self, effect: Report) -> None:
        if effect.peer:
            self._complaints.take(effect)
        else:
            self.report(effect.level, effect.text)

    # ---- connections -----------------------------------------------------------------------------

    def spawn(self, task: Callable[[], Awaitable[object]], peer: str) -> None:
        """Run a task of the connection with `peer`, as long as this process at most."""
        self._start(self._supervised, peer, task)

    def _start(self, task: Callable[..., Awaitable[object]], *args: object) -> None:
        assert self._nursery is not None, "the driver does not run"
        self._nursery.start_soon(task, *args)

    async def _supervised(self, peer: str, task: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a task of one connection: an unexpected error ends this connection and no other.

        The task has closed its socket and posted `Closed` by then; the log gets the error with its place.
        """
        try:
            await task(*args)
        except Exception as error:
            self.surprised(peer, error)

    def surprised(self, peer: str, error: Exception) -> None:
        """Report an unexpected error, which has ended the connection with `peer`."""
        self.complain(peer, f"the connection ended by an error in this process: {described(error)}")

    async def _dial(self, effect: Dial, scope: trio.CancelScope, reason: list[str]) -> None:
        pipe = None
        refusal = DialError("")
        try:
            with scope:
                pipe = await self._reach(effect)
        except DialError as error:
            refusal = error
        except Exception as error:
            self.post(Closed(effect.conn, f"cannot connect to {effect.endpoint}: {error!r}"))
            raise
        finally:
            del self._dials[effect.conn]
        if pipe is None:
            text, untrusted = (reason[0], False) if reason else (str(refusal), refusal.untrusted)
            self.post(Closed(effect.conn, text, untrusted, refused=refusal.refused))
            return
        channel = Channel(effect.conn, pipe, str(effect.endpoint), self)
        self._channels[effect.conn] = channel
        self._hosts[effect.conn] = effect.port, names_of(pipe.tls)
        self.post(Dialed(effect.conn))
        if reason:  # closed in the very moment it stood
            channel.close(reason[0])
            channel.flush()
        try:
            await channel.run()
        finally:
            self._forget(channel)

    def change_roles(self, roles: Roles) -> None:
        """Apply changed rules to peers that connect, and to those that this process has dialed."""
        self._roles = roles
        self.post(RolesChanged(roles))
        for conn, (port, names) in list(self._hosts.items()):
            channel = self._channels[conn]
            refusal = roles.access(names, channel.peer).host_problem(port)
            if refusal:
                self.complain("", f"refused: {refusal}")
                channel.close(f"the roles have changed: {refusal}")
                channel.flush()

    async def _reach(self, effect: Dial) -> TlsPipe:
        """Connect to a peer that has the role of its port; raises `DialError`."""
        assert self._client_tls is not None, "this process never dials"
        pipe = await dial(effect.endpoint, self._client_tls, self.limits)
        try:
            access = self._roles.access(names_of(pipe.tls), str(effect.endpoint))
            refusal = access.host_problem(effect.port)
        except ssl.SSLError as error:
            pipe.close()
            raise DialError(f"TLS with {effect.endpoint} failed: {error}", untrusted=True) from error
        except BaseException:
            pipe.close()
            raise
        if refusal:
            pipe.close()
            self.complain("", f"refused: {refusal}")
            raise DialError(refusal, untrusted=True)
        return pipe

    def _on_connection(self, port: Port, tls: ServerTls, sock: socket, peer: str) -> None:
        # Whoever connects and says nothing must not keep out those who do: the oldest handshake under way goes first.
        full = self._accepted >= self._accepted_max
        if self._shaking and (full or len(self._shaking) >= self.limits.handshakes_max):
            oldest = next(iter(self._shaking))
            silent = self._shaking.pop(oldest)
            self._accepted -= 1
            oldest.close()
            self.complain(silent, "too many connections without a TLS handshake: the oldest are dropped")
        elif full:
            sock.close()
            self.complain(peer, f"connection refused: {self._accepted} connections are open, the limit")
            return
        try:
            pipe = TlsPipe(sock, tls.context, server_side=True)  # which may read files that have changed
        except Exception as error:  # whoever accepts serves all
            sock.close()
            self.surprised(peer, error)
            return
        self._accepted += 1
        self._shaking[pipe] = peer
        self._start(self._supervised, peer, self._serve, port, pipe, peer)

    async def _shake(self, pipe: TlsPipe, peer: str) -> bool:
        """Complete the handshake of an accepted connection; False if it failed, or was given up for others."""
        try:
            with trio.fail_after(self.limits.handshake_timeout):
                await pipe.handshake()
        except trio.TooSlowError:
            self.complain(peer, f"no TLS handshake within {self.limits.handshake_timeout:.0f} s")
            return False
        except OSError as error:
            if pipe in self._shaking:
                self.complain(peer, f"TLS handshake failed: {error.strerror or error}")
            return False
        except trio.ClosedResourceError:
            return False  # given up for others
        return pipe in self._shaking

    async def _serve(self, port: Port, pipe: TlsPipe, peer: str) -> None:
        accepted = True
        try:
            try:
                shaken = await self._shake(pipe, peer)
            finally:  # giving the handshake up for others frees its place, too
                accepted = pipe in self._shaking
                self._shaking.pop(pipe, None)
            if not shaken:
                return
            try:
                names = names_of(pipe.tls)
            except ssl.SSLError as error:
                self.complain(peer, f"TLS handshake failed: {error}")
                return
            self._last_conn += 1
            channel = Channel(self._last_conn, pipe, peer, self)
            self._channels[channel.conn] = channel
            self.post(Accepted(channel.conn, port, peer, names))
            try:
                await channel.run()
            finally:
                self._forget(channel)
        finally:
            if accepted:
                self._accepted -= 1
            pipe.close(reset=self.killed)

    def _forget(self, channel: Channel) -> None:
        del self._channels[channel.conn]
        self._hosts.pop(channel.conn, None)
        if self._quiet is not None and not self._channels:
            self._quiet.set()


def accepted_max(limits: NetLimits) -> int:
    """Connections that a process accepts: half of its descriptors at most, the rest is for files and for dialing."""
    return min(limits.connections_max, descriptors() // 2)


def descriptors() -> int:
    """How many files and connections this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
