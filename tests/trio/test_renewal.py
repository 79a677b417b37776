"""Certificates are replaced while the process runs: new connections use what the files hold now."""

from __future__ import annotations

import os
import ssl
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.trio.test_net import LIMITS, Side, signed, written
from waltz_core.access.roles import Role, Roles, RolesChanged, Rule
from waltz_core.base.edge import Accepted, CloseConn, Closed, Dial, Dialed, Level, Port, Send
from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import Endpoint
from waltz_trio.net import tls as tls_module
from waltz_trio.net.certificates import issue, make_ca
from waltz_trio.net.key_pair import KeyPair
from waltz_trio.net.tls import ClientTls, ServerTls, TlsSettings, local_names, version


class Pair:
    """A server and a client whose files belong to one authority, and what both said."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.directory, self._nursery = directory, nursery
        self.said: list[tuple[Level, str]] = []
        self.settings = self.replaced(make_ca("first"))
        server, client = self.settings
        self.server, self.tls = Side(), ServerTls(server, lambda level, text: self.said.append((level, text)))
        self.client_tls = ClientTls(client, lambda text: self.said.append((Level.WARNING, text)))
        self.client = Side(LIMITS, self.client_tls)
        self._conn = 0

    def replaced(self, ca: KeyPair) -> tuple[TlsSettings, TlsSettings]:
        """Put files of an authority where the former ones were."""
        return signed(self.directory, ca, "server"), signed(self.directory, ca, "client")

    async def start(self) -> Endpoint:
        await self._nursery.start(self.server.driver.run)
        await self._nursery.start(self.client.driver.run)
        return Endpoint("127.0.0.1", self.server.listen(self.tls))

    async def dials(self, endpoint: Endpoint) -> bool:
        """Whether a new connection stands."""
        self._conn -= 1
        conn, machine = self._conn, self.client.machine
        self.client.do(Dial(conn, endpoint, Port.CLIENT))
        await machine.until(lambda: any(isinstance(e, Dialed | Closed) and e.conn == conn for e in machine.events))
        return any(isinstance(event, Dialed) and event.conn == conn for event in machine.events)


async def test_both_sides_use_replaced_files_for_new_connections_and_leave_those_that_stand(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, nursery)
    endpoint = await pair.start()
    assert await pair.dials(endpoint)

    pair.replaced(make_ca("second"))
    assert await pair.dials(endpoint)

    assert pair.said == [(Level.INFO, "ssl.*: changed files are in use for new connections")]
    pair.client.do(Send(-1, b"still here"))
    await pair.server.machine.until(lambda: pair.server.machine.received() == b"still here")
    assert pair.server.machine.count(Accepted) == 2
    assert pair.client.machine.count(Closed) == 0


async def test_one_side_alone_with_files_of_another_authority_is_refused(nursery: trio.Nursery, tmp_path: Path) -> None:
    pair = Pair(tmp_path, nursery)
    endpoint = await pair.start()
    assert await pair.dials(endpoint)

    signed(tmp_path, make_ca("second"), "server")
    assert not await pair.dials(endpoint)


async def test_a_certificate_without_its_key_is_not_used_until_the_key_is_there(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    ca = make_ca("authority")
    pair = Pair(tmp_path, nursery)
    pair.replaced(ca)
    endpoint = await pair.start()
    assert await pair.dials(endpoint)
    pair.said.clear()

    new = issue(ca, "server", local_names())
    (tmp_path / "server.pem").write_bytes(new.certificate)
    assert await pair.dials(endpoint)
    assert [level for level, _ in pair.said] == [Level.WARNING]
    assert "those read before stay in use: ssl.certificate (" in pair.said[0][1]

    (tmp_path / "server.key").write_bytes(new.key)
    assert await pair.dials(endpoint)
    assert [level for level, _ in pair.said] == [Level.WARNING, Level.INFO]


def test_files_that_hold_something_else_are_named(tmp_path: Path) -> None:
    """OpenSSL says of each that certificate and key do not fit together, or only `PEM lib`."""
    pair = issue(make_ca("authority"), "server", local_names())
    other = issue(make_ca("authority"), "server", local_names())
    files = {"empty": b"", "text": b"certificate", "certificate": pair.certificate, "key": pair.key, "other": other.key}
    path = {name: str(tmp_path / name) for name in files}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for certificate, key, expected in (
        ("empty", None, f"ssl.certificate: {path['empty']} holds no certificate"),
        ("text", "key", f"ssl.certificate: {path['text']} holds no certificate"),
        ("key", None, f"ssl.certificate: {path['key']} holds no certificate"),
        ("certificate", None, f"ssl.certificate: {path['certificate']} holds no private key .* and ssl.key is not set"),
        ("certificate", "text", f"ssl.key: {path['text']} holds no private key"),
        ("certificate", "certificate", f"ssl.key: {path['certificate']} holds no private key"),
        (
            "certificate",
            "other",
            rf"ssl.certificate \({path['certificate']}\) and ssl.key \({path['other']}\) do not fit",
        ),
    ):
        settings = TlsSettings(certificate=path[certificate], key=key and path[key])
        for side in (ServerTls, ClientTls):
            with pytest.raises(ConfigError, match=f"^{expected}"):
                side(settings)
    with pytest.raises(ConfigError, match=f"^ssl.ca: no certificate can be read from {path['text']}: "):
        ClientTls(TlsSettings(ca=path["text"]))


def test_an_absent_file_leaves_what_was_read(tmp_path: Path) -> None:
    said: list[str] = []
    settings = signed(tmp_path, make_ca("authority"), "server")
    tls = ServerTls(settings, lambda level, text: said.append(text))
    before = tls.context
    assert settings.ca is not None
    Path(settings.ca).unlink()

    assert tls.context is before
    assert tls.context is before
    assert len(said) == 1
    assert f"ssl.ca: cannot read {settings.ca}" in said[0]


def test_files_that_could_not_be_used_for_a_moment_are_tried_again_though_they_look_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    ca = make_ca("authority")
    tls = ServerTls(signed(tmp_path, ca, "server"), lambda level, text: said.append(text))
    before = tls.context
    now, asked = 1_000.0, 0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def full(**options: object) -> None:
        nonlocal asked
        asked += 1
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", full)
        signed(tmp_path, ca, "server")
        for _ in range(3):
            assert tls.context is before
        now += 1.5
        assert tls.context is before
    assert asked == 2
    assert tls.context is before
    now += 1.5
    assert tls.context is not before
    assert [line.partition(": ")[2].partition(",")[0] for line in said] == [
        "changed files cannot be used",
        "changed files are in use for new connections",
    ]


def test_another_mode_of_a_file_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(b"key")
    before = version(str(path))
    path.chmod(0o640)
    assert version(str(path)) != before


async def test_an_authority_whose_file_is_empty_while_it_is_written_ends_nothing(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, nursery)
    endpoint = await pair.start()
    files = [tmp_path / "server-ca.pem", tmp_path / "client-ca.pem"]
    authorities = [path.read_bytes() for path in files]

    for path in files:
        path.write_bytes(b"")
    assert await pair.dials(endpoint)
    assert [level for level, _ in pair.said] == [Level.WARNING] * 2
    assert all("stay in use: ssl.ca: no certificate can be read from" in text for _, text in pair.said)

    for path, authority in zip(files, authorities, strict=True):
        path.write_bytes(authority)
    assert await pair.dials(endpoint)
    assert pair.said[2:] == [(Level.INFO, "ssl.*: changed files are in use for new connections")]


def test_files_that_fail_in_a_way_that_nobody_expected_leave_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Surprising(ServerTls):
        surprises = False

        def _make(self) -> ssl.SSLContext:
            if self.surprises:
                raise RuntimeError("nobody thought of this")
            return super()._make()

    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said: list[tuple[Level, str]] = []
    ca = make_ca("authority")
    tls = Surprising(signed(tmp_path, ca, "server"), lambda level, text: said.append((level, text)))
    before = tls.context
    signed(tmp_path, ca, "server")
    tls.surprises = True
    for _ in range(3):
        assert tls.context is before
        now += 2
    [(level, text)] = said
    assert level is Level.WARNING
    assert text.startswith("ssl.*: changed files cannot be used, those read before stay in use: RuntimeError('nobody")
    assert "test_renewal.py:" in text

    tls.surprises = False
    assert tls.context is not before
    assert said[1:] == [(Level.INFO, "ssl.*: changed files are in use for new connections")]


async def test_a_context_that_nobody_can_make_ends_one_connection_and_not_the_port(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    class Surprising(ServerTls):
        surprises = False

        @property
        def context(self) -> ssl.SSLContext:
            if self.surprises:
                raise RuntimeError("nobody thought of this")
            return super().context

    pair = Pair(tmp_path, nursery)
    pair.tls = tls = Surprising(pair.settings[0])
    endpoint = await pair.start()
    tls.surprises = True
    assert not await pair.dials(endpoint)
    assert [line for line in pair.server.reports if "127.0.0.1" in line and "nobody thought of this" in line]

    tls.surprises = False
    assert await pair.dials(endpoint)


def test_certificates_that_change_again_while_their_end_is_looked_at_are_not_called_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    ca = make_ca("authority")
    tls = ServerTls(signed(tmp_path, ca, "server"), lambda level, text: said.append(text))
    before = tls.context
    signed(tmp_path, ca, "server")

    def gone(settings: TlsSettings) -> list[str]:
        raise ConfigError("ssl.ca: cannot read it")

    monkeypatch.setattr(tls_module, "expiry_warnings", gone)
    after = tls.context
    assert after is not before
    assert tls.context is after
    assert said == [
        "ssl.*: changed files are in use for new connections",
        "ssl.*: nobody could look when these certificates end: ssl.ca: cannot read it",
    ]


# Of curve secp112r1, which OpenSSL knows and the library that reads keys does not; its password is "secret".
_ODD_KEY = b"""-----BEGIN ENCRYPTED PRIVATE KEY-----
MIG7MFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAiGXnEWumb7nwICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEDlJRpQYBn5lD6Y8PPLkHqgEYHOm
TeXaIAmUHwlbiH35kGN+fXKi0FPA6Fipzi4xRa29NUVp8CVYoqNTMUZrx9/BxHNe
6KPpn75IUQ+27AwtBZHPftcj9r96za/tVlBvtxoggsTZcvz1QS1g19lHbVirKQ==
-----END ENCRYPTED PRIVATE KEY-----
"""


def test_a_key_of_a_curve_that_nobody_reads_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "certificate").write_bytes(make_ca("authority").certificate)
    (tmp_path / "key").write_bytes(_ODD_KEY)
    settings = TlsSettings(certificate=str(tmp_path / "certificate"), key=str(tmp_path / "key"), key_password="secret")
    with pytest.raises(ConfigError, match=r"^ssl\.key: the private key cannot be read: "):
        ServerTls(settings)


@pytest.mark.parametrize("name", ["key_store", "trust_store"])
def test_stores_in_the_original_s_form_are_looked_at_too(tmp_path: Path, name: str) -> None:
    ca = make_ca("authority")
    pair = issue(ca, "server", local_names())
    files = {"key_store": pair.certificate + pair.key, "trust_store": ca.certificate}
    paths = {each: tmp_path / f"{each}.pem" for each in files}
    for each, path in paths.items():
        path.write_bytes(files[each])
    tls = ServerTls(TlsSettings(key_store=str(paths["key_store"]), trust_store=str(paths["trust_store"])))
    before = tls.context
    assert tls.context is before

    paths[name].write_bytes(files[name] + b"\n")
    assert tls.context is not before


def test_a_file_in_the_place_of_another_is_a_change_though_size_and_time_are_the_same(tmp_path: Path) -> None:
    path, other = tmp_path / "ca.pem", tmp_path / "new.pem"
    for each in (path, other):
        each.write_bytes(b"one")
        os.utime(each, ns=(10**18, 10**18))
    before = version(str(path))
    other.replace(path)
    assert version(str(path)) != before


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    class Meanwhile(ServerTls):
        def _make(self) -> ssl.SSLContext:
            context = super()._make()
            with open(tmp_path / "server.pem", "ab") as file:
                file.write(b"\n")
            return context

    tls = Meanwhile(signed(tmp_path, make_ca("authority"), "server"))
    first = tls.context
    assert tls.context is not first


def test_no_key_stays_among_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ServerTls(TlsSettings())
    assert list(tmp_path.iterdir()) == []


def test_no_place_for_temporary_files_is_a_config_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"cannot be put into a file.*No such file"):
        ServerTls(TlsSettings())


async def test_a_process_lets_go_of_a_peer_that_has_lost_the_role_of_its_port(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, nursery)
    pair.client.driver.change_roles(Roles([Rule("server", Role.SERVER)]))
    endpoint = await pair.start()
    assert await pair.dials(endpoint)

    pair.client.driver.change_roles(Roles([Rule("other", Role.SERVER)]))
    closed = await pair.client.machine.first(Closed)
    assert "the roles have changed" in closed.reason
    await pair.server.machine.first(Closed)
    assert not await pair.dials(endpoint)
    assert pair.client.machine.count(RolesChanged) == 2


async def test_roles_that_change_when_a_peer_is_gone_concern_it_no_more(nursery: trio.Nursery, tmp_path: Path) -> None:
    pair = Pair(tmp_path, nursery)
    endpoint = await pair.start()
    assert await pair.dials(endpoint)
    pair.client.do(CloseConn(-1, "done"))
    await pair.server.machine.first(Closed)
    await trio.testing.wait_all_tasks_blocked()

    pair.client.driver.change_roles(Roles([Rule("server", Role.SERVER)]))

    assert await pair.dials(endpoint)


def test_without_files_nothing_is_ever_made_again() -> None:
    tls = ServerTls(TlsSettings())

    assert tls.context is tls.context


@pytest.mark.parametrize("lifetime", [timedelta(seconds=-1), timedelta(days=3)])
def test_files_that_are_replaced_by_ones_near_their_end_are_warned_of(tmp_path: Path, lifetime: timedelta) -> None:
    said: list[tuple[Level, str]] = []
    ca = make_ca("authority")
    settings = signed(tmp_path, ca, "server")
    tls = ServerTls(settings, lambda level, text: said.append((level, text)))
    written(tmp_path, "server", issue(ca, "server", local_names(), lifetime))

    assert tls.context is not None
    assert [level for level, _ in said] == [Level.INFO, Level.WARNING]
    assert "ssl.certificate" in said[1][1]
