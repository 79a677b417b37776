"""The file of roles, and the keys about ZooKeeper: what is accepted, and what is wrong with the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from waltz_core.access.roles import EVERY, NO_ROLES, NONE, Role, Rule
from waltz_core.base.errors import ConfigError
from waltz_trio.config.config import Config
from waltz_trio.config.roles import access_warning, parse_roles, read_roles, roles_of
from waltz_trio.net.tls import TlsSettings
from waltz_trio.zk.security import ZkSasl, ZkSecurity, ZkTls, zookeeper_security

ROOT = Path(__file__).parents[2]
TRUSTING = TlsSettings(prefix="server.ssl.", ca="ca.pem")


def test_rules_are_read_as_written() -> None:
    roles = parse_roles(
        [
            {"certificate": "server-*", "role": "server"},
            {"certificate": "a", "role": "client"},
            {"certificate": "b", "role": "client", "write": "0-3, 7"},
            {"certificate": "c", "role": "client", "write": 5, "read": "all"},
            {"certificate": "d", "role": "client", "read": "none"},
        ],
        "x",
    )
    assert roles.rules == (
        Rule("server-*", Role.SERVER),
        Rule("a", Role.CLIENT, EVERY, NONE),
        Rule("b", Role.CLIENT, NONE, ((0, 3), (7, 7))),
        Rule("c", Role.CLIENT, EVERY, ((5, 5),)),
        Rule("d", Role.CLIENT, NONE, NONE),
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "expected a list"),
        ([], "expected a list"),
        ({"certificate": "a"}, "expected a list"),
        (["a"], "rule 1: expected `certificate`"),
        ([{"certificate": "a", "role": "admin", "rule": 1}], "unknown field 'rule'"),
        ([{"role": "admin"}], "`certificate` must be"),
        ([{"certificate": "a", "role": "root"}], "one of client, proxy, server, storage, admin, found 'root'"),
        (
            [{"certificate": "a", "role": "admin"}, {"certificate": "a", "role": "server", "read": "all"}],
            "rule 2: only",
        ),
        ([{"certificate": "a", "role": "client", "read": "3-1"}], "`read` must be all, none"),
        ([{"certificate": "a", "role": "client", "write": True}], "`write` must be all, none"),
        ([{"certificate": "a", "role": "client", "write": "1,,2"}], "`write` must be all, none"),
        ([{"certificate": "a", "role": "client", "write": "-1"}], "`write` must be all, none"),
    ],
)
def test_a_wrong_rule_is_named_with_what_is_wrong(value: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match="(?s)^source.*" + problem):
        parse_roles(value, "source")


def test_a_file_that_cannot_be_used_is_named_with_the_key(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yml"
    bad.write_text("[: {")
    for path in (tmp_path / "absent.yml", bad):
        with pytest.raises(ConfigError, match=rf"security\.roles: .*{path.name}"):
            read_roles(str(path))


@pytest.mark.parametrize(
    "rule",
    [
        "certificate: a, role: !!bool client",
        'certificate: a, role: client, read: !!int ""',
        "certificate: !!timestamp x, role: client",
        "certificate: a, role: client, read: " + "9" * 5_000,
        "certificate: a, role: client, read: '0-" + "9" * 5_000 + "'",
        "certificate: 2024-99-99, role: 2024-99-99",
        "certificate: a, role: client, read: 1:30",
        "certificate: a, role: client, read: 0x10",
        "certificate: a, role: client, read: 1_0",
        "certificate: a, role: client, read: true",
        "certificate: a, role: client, write: [1]",
        "certificate: a, role: client, write: ",
        "certificate: ~, role: client",
        "certificate: null, role: client",
        "certificate: !!binary x, role: client",
        "[a]: b, role: client",
    ],
)
def test_a_file_whose_rules_are_none_is_a_config_error(tmp_path: Path, rule: str) -> None:
    path = tmp_path / "roles.yml"
    path.write_text(f"- {{{rule}}}\n")

    with pytest.raises(ConfigError, match=r"^security\.roles: .*roles\.yml"):
        read_roles(str(path))


def test_numbers_in_a_file_of_rules_are_those_that_stand_there(tmp_path: Path) -> None:
    """For YAML, 010 is 8, and 1:30 is 90."""
    path = tmp_path / "roles.yml"
    path.write_text(
        "- &first {certificate: 010, role: client, read: 010}\n"
        "- {<<: *first, certificate: on, write: 0-3}\n"
        "- {certificate: 2024-01-01, role: server}\n"
    )

    assert read_roles(str(path)).rules == (
        Rule("010", Role.CLIENT, ((10, 10),), NONE),
        Rule("on", Role.CLIENT, ((10, 10),), ((0, 3),)),
        Rule("2024-01-01", Role.SERVER),
    )


def test_roles_without_certificates_are_refused_as_they_would_let_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "roles.yml"
    path.write_text("- {certificate: a, role: admin}\n")
    config = Config({"security.roles": str(path)})
    assert roles_of(config, TRUSTING).rules == (Rule("a", Role.ADMIN),)
    assert roles_of(Config({}), TlsSettings()).rules is None
    for tls in (TlsSettings(prefix="server.ssl."), TlsSettings(prefix="server.ssl.", ca="x", require_client=False)):
        with pytest.raises(ConfigError, match=r"set server\.ssl\.ca"):
            roles_of(config, tls)


def test_the_example_of_the_page_is_one() -> None:
    page = (ROOT / "docs" / "operations" / "security.md").read_text()
    example = page.split("## Roles\n")[1].split("```yaml\n")[1].split("```")[0]
    roles = parse_roles(yaml.safe_load(example), "the page")
    assert {rule.role for rule in roles.rules or ()} == set(Role)


def test_nothing_is_asked_of_zookeeper_by_default() -> None:
    security = zookeeper_security(Config({}))
    assert security == ZkSecurity()
    assert security.options() == {}
    [acl] = security.acls()
    assert (acl.id.scheme, acl.id.id, acl.perms) == ("world", "anyone", 31)


def test_logins_tls_and_acls_are_handed_to_the_client(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("p:w\nsecond line\n")
    (tmp_path / "ca.pem").write_text("")
    security = zookeeper_security(
        Config(
            {
                "zookeeper.sasl": {
                    "mechanism": "DIGEST-MD5",
                    "username": "u",
                    "passwordFile": str(tmp_path / "secret"),
                },
                "zookeeper.acl": {"auth": "digest:me:p:w", "create": "sasl:u:cdrwa, digest:me:ab=:r"},
                "zookeeper.ssl": {"ca": str(tmp_path / "ca.pem"), "certificate": str(tmp_path / "ca.pem")},
            }
        )
    )
    assert security.sasl == ZkSasl("DIGEST-MD5", "zookeeper", "u", "p:w")
    assert security.auth == ("digest", "me:p:w")
    assert security.tls == ZkTls(str(tmp_path / "ca.pem"), str(tmp_path / "ca.pem"))
    assert [(one.id.scheme, one.id.id, one.perms) for one in security.acls()] == [
        ("sasl", "u", 31),
        ("digest", "me:ab=", 1),
    ]
    options = security.options()
    assert options["sasl_options"]["mechanism"] == "DIGEST-MD5"
    assert (options["use_ssl"], options["check_hostname"], options["keyfile"]) == (
        True,
        True,
        str(tmp_path / "ca.pem"),
    )
    assert zookeeper_security(Config({"zookeeper.sasl.mechanism": "gssapi"})).options()["sasl_options"] == {
        "mechanism": "GSSAPI",
        "service": "zookeeper",
    }


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"zookeeper.acl.create": "creator"}, "the session is nobody's"),
        ({"zookeeper.acl.create": "mine"}, "expected open, creator"),
        ({"zookeeper.acl.create": "world:anyone:x"}, "expected open, creator"),
        ({"zookeeper.acl.auth": "secret"}, "expected SCHEME:CREDENTIAL"),
        ({"zookeeper.acl.authFile": "/absent"}, "cannot read /absent"),
        ({"zookeeper.sasl.mechanism": "digest-md5"}, "needs zookeeper.sasl.username"),
        ({"zookeeper.sasl.mechanism": "plain"}, "expected one of digest-md5, gssapi"),
        ({"zookeeper.ssl.certificate": "x"}, "zookeeper.ssl.ca is not"),
        ({"zookeeper.ssl.ca": "/absent"}, "zookeeper.ssl.ca: cannot read"),
    ],
)
def test_keys_that_do_not_go_together_are_an_error(keys: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        zookeeper_security(Config(keys))


def test_a_proxy_is_limited_to_partitions_like_a_client() -> None:
    roles = parse_roles([{"certificate": "gateway", "role": "proxy", "read": "all", "write": "0-3"}], "here")
    access = roles.access(("gateway",), "10.0.0.1:4000")
    assert access.carries_others
    assert (access.reads(9), access.writes(3), access.writes(4)) == (True, True, False)


def test_a_process_that_lets_in_more_than_roles_say_warns_at_start() -> None:
    trusts = TlsSettings("server.ssl.", ca="ca.pem")
    roles = parse_roles([{"certificate": "gateway", "role": "client"}], "here")
    assert "(server.ssl.ca) and no roles are set (security.roles)" in access_warning(
        TlsSettings("server.ssl."), NO_ROLES
    )
    open_port = TlsSettings("server.ssl.", ca="ca.pem", require_client=False)
    assert "server.ssl.requireClientCertificate" in access_warning(open_port, NO_ROLES)
    assert access_warning(trusts, NO_ROLES).startswith("no roles are set")
    assert access_warning(trusts, roles) == ""
