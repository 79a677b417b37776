"""Configuration: the original's reading rules, defaults, unknown keys, and the page made from the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import Endpoint
from waltz_core.server.append_queue import PACE
from waltz_trio.config import page as config_page
from waltz_trio.config.config import Config, net_limits, tls_settings
from waltz_trio.node.server_settings import proxy_settings, server_settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "text",
    [
        "storage.admin.port: 7",
        "storage: {admin: {port: 7}}",
        "storage.admin: {port: 7}",
        "storage: {admin.port: 7}",
        "storage:\n  admin.port: '7'",
        "base: &b {admin.port: 7}\nstorage: *b",
        "base: &b {port: 7}\nstorage: {admin: {<<: *b}}",
    ],
)
def test_flat_nested_and_mixed_keys_are_the_same_key(text: str) -> None:
    assert Config.parse(text).number("storage.admin.port") == 7


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("server.port: 1\nserver: {port: 2}", 2),
        ("server: {port: 2}\nserver.port: 1", 1),
        ("server: {port: 2}\nserver.port: 1\nserver: {port: 3}", 3),
        ("server.port: 1\nserver.port: 2", 2),
    ],
)
def test_the_later_of_two_equal_keys_wins(text: str, port: int) -> None:
    assert Config.parse(text).number("server.port") == port


def test_a_missing_key_is_an_error_only_when_it_is_read() -> None:
    config = Config.parse("server.port: 1")

    with pytest.raises(ConfigError, match=r"^parameter not found: cluster\.root \(in configuration\)$"):
        config.text("cluster.root")


def test_a_missing_key_with_a_default_gives_the_default() -> None:
    config = Config({})

    assert config.number("server.feedCacheSize") == 16 << 20
    assert config.number("server.transactionDataCacheSize") == 32 << 20
    assert config.number("storage.checkpointInterval") == 250_000
    assert config.flag("client.autoMount") is True
    assert config.text_or_none("server.host") is None


@pytest.mark.parametrize(
    ("value", "flag"),
    [("true", True), ("'TRUE'", True), ("'yes'", False), ("'no way'", False), ("yes", True), ("off", False)],
)
def test_only_the_text_true_is_true(value: str, flag: bool) -> None:
    assert Config.parse(f"client.autoMount: {value}").flag("client.autoMount") is flag


@pytest.mark.parametrize(
    "text",
    [
        "server.port: eight",
        "server.port: 1.5",
        "server.port: true",
        "server.port: [1]",
        "server.port: -1",
        "server.port: 65536",
        "storage.maxBatchSize: 2147483648",
        "storage.maxBatchSize: 0",
        "server.journal.mode: sometimes",
        "client.autoMount: 1",
        "server.feedCacheSize: 3 parsec",
        "server.graphite.port: 65536",
        "storage.graphite.port: 0",
        'client.ssl.ca: "a\\0b"',
    ],
)
def test_a_value_that_cannot_be_used_is_refused_at_load_with_its_key(text: str) -> None:
    with pytest.raises(ConfigError, match=text.split(":", maxsplit=1)[0]):
        Config.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n- b",
        "just text",
        "a: {b",
        "? [1, 2]\n: 3",
        "~: 1",
        "a: &a {b: *a}",
        "a: !!python/object/apply:os.getpid []",
        "a: \0",
        "a: 2020-99-99",
        "[" * 2000,
    ],
)
def test_a_file_that_is_no_mapping_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError):
        Config.parse(text)


def test_sizes_and_times_may_carry_a_unit() -> None:
    config = Config.parse("server.payloadSizeMax: 2 MiB\nnetwork.connectTimeout: 3s\nserver.feedCacheSize: '4096'")

    assert config.number("server.payloadSizeMax") == 2 << 20
    assert net_limits(config).connect_timeout == 3.0
    assert config.number("server.feedCacheSize") == 4096


def test_two_ports_of_one_process_may_not_be_equal() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^Validation failed for storage\.admin\.port: value '1' is already taken \(in configuration\)$",
    ):
        Config.parse("storage.port: 1\nstorage.admin.port: 1")


def test_equal_ports_of_different_processes_in_one_file_are_fine() -> None:
    Config.parse("storage.port: 1\nserver.port: 1")
    Config.parse("server.port: 0\nserver.jetty.port: 0")


def test_a_key_known_to_any_component_is_silent_and_another_names_the_nearest() -> None:
    config = Config.parse("client.autoMount: true\nDataSource.Username: x\nserver.feedCachSize: 1\nzzz: 1", "s.yml")
    told: list[str] = []

    config.warn_unknown(told.append)

    assert told == [
        "s.yml: unknown key server.feedCachSize; did you mean server.feedCacheSize?",
        "s.yml: unknown key zzz",
    ]
    with pytest.raises(ConfigError, match=r"feedCacheSize"):
        config.refuse_unknown()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("server.port: many\n", r"server\.port: expected a whole number, found 'many' \(in .*node\.yml\)$"),
        ("server.port: 1\nserver.jetty.port: 1\n", r"'1' is already taken \(in .*node\.yml\)$"),
        ("a: 1\n? [b]\n: 2\n", r"node\.yml, line 2: a key must be text, found \['b'\]$"),
        ("a:\n  b: 1\n  ~: 2\n", r"node\.yml, line 3: a key below a must be text, found None$"),
        ("a:\t1\n", r"node\.yml is no valid YAML: (.|\n)*in \".*node\.yml\", line 1, column 3"),
    ],
)
def test_what_is_wrong_in_a_file_names_the_file_and_the_place(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "node.yml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        Config.load(path)


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        Config.load(tmp_path / "absent.yml")
    (tmp_path / "latin.yml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        Config.load(tmp_path / "latin.yml")
    with pytest.raises(ConfigError, match=r"cannot read .*null byte"):
        Config.load("a\0b.yml")


def test_endpoints_and_tls_groups_are_read_by_prefix() -> None:
    config = Config.parse(
        "server: {advertisedEndpoint: 'h:9', ssl: {ca: a.pem, keyStore.location: k.p12, verify: 'false'}}"
    )

    assert config.endpoint_or_none("server.advertisedEndpoint") == Endpoint("h", 9)
    settings = tls_settings(config, "server.ssl.")
    assert (settings.ca, settings.key_store, settings.verify) == ("a.pem", "k.p12", False)
    assert tls_settings(config, "storage.ssl.").ca is None


def test_the_page_of_the_keys_is_current() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()

    assert page == config_page.page(), "run: python -m waltz_trio.config.page > docs/configuration.md"


@pytest.mark.parametrize("key", ["ssl.keyPassword", "ssl.keyStore.password", "ssl.trustStore.password"])
def test_passwords_may_stand_in_files(tmp_path: Path, key: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes("pässword: with # signs\r\nsecond line\n".encode())
    settings = tls_settings(Config({f"{key}File": str(path)}), "ssl.")
    assert "pässword: with # signs" in (
        settings.key_password,
        settings.key_store_password,
        settings.trust_store_password,
    )


def test_a_password_is_refused_that_is_told_twice_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("\nx")
    with pytest.raises(ConfigError, match=r"ssl\.keyStore\.password and ssl\.keyStore\.passwordFile are both set"):
        tls_settings(Config({"ssl.keyStore.password": "x", "ssl.keyStore.passwordFile": str(path)}), "ssl.")
    with pytest.raises(ConfigError, match=r"ssl\.keyPasswordFile: the first line of .*secret is empty"):
        tls_settings(Config({"ssl.keyPasswordFile": str(path)}), "ssl.")
    with pytest.raises(ConfigError, match=r"ssl\.keyPasswordFile: cannot read .*absent: No such file"):
        tls_settings(Config({"ssl.keyPasswordFile": str(tmp_path / "absent")}), "ssl.")


def test_the_pace_beside_a_client_that_waits_is_the_one_of_the_file() -> None:
    keys = {"cluster.root": "/x", "zookeeper.connectString": "zk", "zookeeper.sessionTimeout": 4000, "server.port": 0}
    assert server_settings(Config(keys, "x"), lambda text: None).machine.append_pace == PACE == 10
    faster = server_settings(Config({**keys, "server.appendPace": 80}, "x"), lambda text: None).machine
    assert faster.partition(0).append_pace == 80
    proxy = {**keys, "server.appendPace": 80, "proxy.upstream.root": "/y"}
    assert proxy_settings(Config(proxy, "x"), lambda text: None).server.machine.partition(0).append_pace == 80


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("server.port: !!bool client", "is no valid YAML"),
        ('server.port: !!int ""', "is no valid YAML"),
        ("server.port: !!timestamp x", "is no valid YAML"),
        ("!!timestamp x: 1", "is no valid YAML"),
        ("server.port: " + "9" * 5_000, "is no valid YAML"),
        ("server.port: '" + "9" * 5_000 + "'", "server.port: "),
        ("server.port: 0x" + "f" * 5_000, "server.port: "),
        ("cluster.root: 0x" + "f" * 5_000, "cluster.root: "),
        ("gateway.topics: [{name: a, cluster: b, partitions: 010}]", "line 1: 010 is another number in YAML"),
        ("gateway.topics:\n- {name: a, cluster: b, partitions: 1:30}", "line 2: 1:30 is another number in YAML"),
    ],
)
def test_a_file_with_values_that_yaml_cannot_make_is_a_config_error(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Config.parse(text).items("gateway.topics")


def test_a_list_of_somebody_else_may_hold_any_number() -> None:
    config = Config.parse("cluster.root: /a\nmyApp:\n  modes: [0644]\n  times: [12:30]\n")
    assert config.text("cluster.root") == "/a"
    assert [name for name, _ in config.unknown()] == ["myApp.modes", "myApp.times"]


def test_a_list_that_holds_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="recursive"):
        Config.parse("gateway.topics: &topics [{name: a, partitions: 8}, *topics]")
