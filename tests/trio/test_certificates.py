"""`waltz certificates`: what it writes, that it keeps what exists, and when certificates end."""

from __future__ import annotations

import datetime
import json
import stat
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from waltz_core.access.roles import Role
from waltz_trio.base import durable
from waltz_trio.cli.main import main as waltz
from waltz_trio.config.config import Config, tls_settings
from waltz_trio.config.roles import read_roles, roles_of
from waltz_trio.net import certificates
from waltz_trio.net.tls import ClientTls, ServerTls

HOSTS = "localhost,127.0.0.1"
ALL = (
    "--server",
    f"s1={HOSTS}",
    "--storage",
    f"n1={HOSTS}",
    "--client",
    "orders",
    "--reader",
    "report",
    "--admin",
    "ann",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tls"
    assert waltz(["certificates", "make", str(made), *ALL]) == 0
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_private_files_are_for_their_owner_alone(folder: Path) -> None:
    public = {folder / "ca.pem", folder / "trust.p12"}
    for path in (folder, *folder.rglob("*")):
        expected = 0o700 if path.is_dir() else 0o644 if path in public else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


@pytest.mark.parametrize(
    ("name", "prefix"), [("s1", "server.ssl."), ("n1", "storage.ssl."), ("orders", "client.ssl."), ("ann", "ssl.")]
)
@pytest.mark.parametrize("form", ["keys", "java"])
def test_the_keys_of_a_process_are_all_that_it_needs(folder: Path, name: str, prefix: str, form: str) -> None:
    config = Config.load(str(folder / f"{name}.{form}.yml"))
    assert config.unknown() == ()
    tls = tls_settings(config, prefix)
    assert tls.trusts
    ClientTls(tls)
    if name in ("s1", "n1"):
        ServerTls(tls)
        assert (roles_of(config, tls).rules is not None) == (form == "keys")


def test_each_name_has_the_role_it_was_made_for_and_nobody_else_has_one(folder: Path) -> None:
    roles = read_roles(str(folder / "roles.yml"))
    found = {name: roles.access((name,), "").roles for name in ("s1", "n1", "orders", "report", "ann", "x")}
    assert found == {
        "s1": {Role.SERVER},
        "n1": {Role.STORAGE},
        "orders": {Role.CLIENT},
        "report": {Role.CLIENT},
        "ann": {Role.ADMIN},
        "x": frozenset(),
    }
    assert roles.access(("orders",), "").writes(0)
    assert not roles.access(("report",), "").writes(0)


def test_a_second_run_changes_nothing_and_more_names_add_to_what_is_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "roles.yml").open("a") as file:
        file.write("# mine\n")
    before = contents(folder)
    assert waltz(["certificates", "make", str(folder), *ALL]) == 0
    assert contents(folder) == before
    assert "nothing was changed" in capsys.readouterr().out
    assert waltz(["certificates", "make", str(folder), *ALL, "--client", "billing"]) == 0
    after = contents(folder)
    assert after.pop("roles.yml") == before.pop("roles.yml") + b'- {certificate: "billing", role: client, write: all}\n'
    assert {name: data for name, data in after.items() if name in before} == before
    (folder / "orders.p12").unlink()
    assert waltz(["certificates", "make", str(folder), *ALL]) == 0
    ClientTls(tls_settings(Config.load(str(folder / "orders.java.yml")), "client.ssl."))


def test_what_contradicts_the_files_that_are_there_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder)
    for arguments, text in (
        (("--server", "s1=elsewhere"), "is not for elsewhere; to replace it: waltz certificates renew"),
        (("--admin", "orders"), "makes orders client, not admin"),
        (("--server", "s2"), "expected NAME=HOST"),
        (("--client", "a=b"), "expected NAME alone"),
        (("--client", "a/b"), "cannot be a name"),
        (("--client", "a" * 65), "expected 1 to 64 letters"),
        (("--client", "ca"), "cannot be a name"),
        (("--client", "a", "--reader", "a"), "named twice"),
    ):
        assert waltz(["certificates", "make", str(folder), *arguments]) == 1
        assert text in capsys.readouterr().err
    assert contents(folder) == before
    other = tmp_path / "other"
    waltz(["certificates", "make", str(other), "--client", "orders"])
    (folder / "orders.pem").write_bytes((other / "orders.pem").read_bytes())
    assert waltz(["certificates", "make", str(folder), "--client", "orders"]) == 1
    assert "is not of the authority" in capsys.readouterr().err
    (folder / "authority" / "ca-key.pem").unlink()
    assert waltz(["certificates", "make", str(folder), "--client", "more"]) == 1
    assert "nothing can be signed" in capsys.readouterr().err


@pytest.mark.parametrize("days", ["-1", "1000001", "99999999999", "nan"])
def test_days_that_no_certificate_can_be_good_for_are_refused(
    folder: Path, days: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder)
    for command in (["make", str(folder), "--client", "more", "--days"], ["renew", str(folder), "s1", "--days"]):
        assert waltz(["certificates", *command, days]) == 2
        assert "expected a whole number from 1 to 1000000" in capsys.readouterr().err
    assert waltz(["certificates", "list", str(folder), "--within", days]) == 2
    assert "expected a whole number from 0 to 1000000" in capsys.readouterr().err
    assert contents(folder) == before


def test_an_empty_directory_needs_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert waltz(["certificates", "make", str(tmp_path / "new")]) == 1
    assert "name at least one process" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert waltz(["certificates", "list", str(tmp_path)]) == 1


def test_certificates_that_end_soon_are_listed_and_renewed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert waltz(["certificates", "list", str(folder)]) == 0
    assert waltz(["certificates", "make", str(folder), "--client", "brief", "--days", "5"]) == 0
    capsys.readouterr()
    assert waltz(["certificates", "list", str(folder), "--json"]) == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["brief"]["days_left"] in (4, 5)
    assert rows["s1"]["hosts"] == HOSTS.split(",")
    before = contents(folder)
    assert waltz(["certificates", "renew", str(folder)]) == 0
    after = contents(folder)
    assert {name for name in after if after[name] != before[name]} == {"brief.pem", "brief.p12"}
    assert waltz(["certificates", "list", str(folder)]) == 0
    ClientTls(tls_settings(Config.load(str(folder / "brief.java.yml")), "client.ssl."))


def test_a_certificate_is_replaced_when_it_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    assert waltz(["certificates", "renew", str(folder), "s1=localhost,10.0.0.7"]) == 0
    after = contents(folder)
    assert {name for name in after if after[name] != before[name]} == {"s1.pem", "s1.p12"}
    assert "copy it: no restart is needed, but of a process of 0.13.2" in capsys.readouterr().out
    assert waltz(["certificates", "make", str(folder), "--server", "s1=10.0.0.7"]) == 0
    assert waltz(["certificates", "renew", str(folder), "nobody"]) == 1
    assert "no certificate of nobody" in capsys.readouterr().err


def test_a_directory_that_trusts_an_older_authority_too_signs_with_its_own(folder: Path, tmp_path: Path) -> None:
    """It signed in the name of the first one of the file, whose key it does not have: nobody accepted that."""
    new = tmp_path / "new"
    assert waltz(["certificates", "make", str(new), "--client", "orders"]) == 0
    both = (folder / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes()
    (new / "ca.pem").write_bytes(both)
    assert waltz(["certificates", "make", str(new), "--server", f"s1={HOSTS}"]) == 0
    assert waltz(["certificates", "list", str(new)]) == 0
    authority = x509.load_pem_x509_certificates(both)[1]
    x509.load_pem_x509_certificate((new / "s1.pem").read_bytes()).verify_directly_issued_by(authority)
    trusted = pkcs12.load_pkcs12((new / "trust.p12").read_bytes(), b"changeit").additional_certs
    assert [each.certificate for each in trusted] == x509.load_pem_x509_certificates(both)
    ClientTls(tls_settings(Config.load(str(new / "orders.java.yml")), "client.ssl."))

    own = certificates.trust_store(both, "a password of the operator's")
    for kept in (own, (new / "trust.p12").read_bytes()):
        (new / "trust.p12").write_bytes(kept)
        assert waltz(["certificates", "make", str(new)]) == 0
        assert (new / "trust.p12").read_bytes() == kept
    (new / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    assert waltz(["certificates", "make", str(new)]) == 0
    trusted = pkcs12.load_pkcs12((new / "trust.p12").read_bytes(), b"changeit").additional_certs
    assert [each.certificate for each in trusted] == [authority]


def test_an_authority_that_has_ended_or_lost_its_key_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = tmp_path / "ended"
    assert waltz(["certificates", "make", str(ended), "--client", "orders"]) == 0
    key = serialization.load_pem_private_key((ended / "authority" / "ca-key.pem").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ended")])
    builder = certificates._builder(name, name, key.public_key(), datetime.timedelta(minutes=-1))
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    (ended / "ca.pem").write_bytes(pem)
    assert waltz(["certificates", "make", str(ended), "--client", "other"]) == 1
    assert f"the authority {ended / 'ca.pem'} has ended on" in capsys.readouterr().err
    (folder / "ca.pem").write_bytes((ended / "ca.pem").read_bytes())
    assert waltz(["certificates", "renew", str(folder), "orders"]) == 1
    assert "none of 1 certificates of authorities belongs to the authority's key" in capsys.readouterr().err


def test_a_renewal_that_is_cut_short_is_done_by_the_next_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key store kept the old certificate for good: the other file had a new one, and did not end soon."""
    assert waltz(["certificates", "make", str(folder), "--client", "brief", "--days", "5"]) == 0
    before = contents(folder)
    writes: list[Path] = []

    def cut_short(path: Path, data: bytes, mode: int = 0o600) -> None:
        if writes:
            raise KeyboardInterrupt
        writes.append(path)
        path.write_bytes(data)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "replace_file", cut_short)
        waltz(["certificates", "renew", str(folder)])
    assert len(writes) == 1
    assert waltz(["certificates", "renew", str(folder)]) == 0
    after = contents(folder)
    assert {name for name in after if after[name] != before[name]} == {"brief.pem", "brief.p12"}
    password = yaml.safe_load(after["brief.java.yml"])["client.ssl.keyStore.password"]
    stored = pkcs12.load_pkcs12(after["brief.p12"], password.encode()).cert
    assert stored is not None
    assert stored.certificate == x509.load_pem_x509_certificate(after["brief.pem"])


def test_paths_are_those_of_the_hosts_to_which_the_files_are_copied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waltz(["certificates", "make", str(tmp_path / "tls"), "--storage", "n1=host-1", "--installed-at", "/etc/waltz"])
    keys = yaml.safe_load((tmp_path / "tls" / "n1.keys.yml").read_text())
    assert keys["storage.ssl.certificate"] == "/etc/waltz/n1.pem"
    assert keys["security.roles"] == "/etc/waltz/roles.yml"
    assert waltz(["certificates", "make", str(tmp_path / "tls"), "--installed-at", "etc"]) == 1
    assert "absolute path" in capsys.readouterr().err
