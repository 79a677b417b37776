"""The files of docs/operations: what they name exists, and what can be checked or started is."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes.cluster import ROOT, poll, running_cluster
from tests.processes.zookeeper import ZooKeeperServer
from waltz_trio.cli.main import main
from waltz_trio.config import Config

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
def test_the_configurations_hold_known_keys_only(name: str) -> None:
    config = Config.parse(configurations()[name], name)
    assert config.unknown() == ()
    assert config.text("cluster.root") == "/waltz"


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


def test_what_is_copied_into_the_image_is_enough_to_run(tmp_path: Path) -> None:
    for names, target in re.findall(r"^COPY (.+) (\S+)$", text_of("Dockerfile"), re.MULTILINE):
        for name in names.split():
            to = tmp_path / target / name if target == "./" else tmp_path / target
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, to)
    script = "import sys, waltz_trio.cli.main as m; assert m.__file__.startswith(sys.argv[1]); m.main(sys.argv[2:])"
    for command in (("--help",), ("storage", "--help"), ("server", "--help"), ("zookeeper", "--help")):
        done = subprocess.run(
            [sys.executable, "-c", script, tmp_path, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        assert "Error" not in done.stderr, done.stderr


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


def test_alerts_and_dashboard_ask_for_metrics_that_exist(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    rules = yaml.safe_load(text_of("alerts.yml"))["groups"][0]["rules"]
    expressions = [rule["expr"] for rule in rules]
    panels = json.loads(text_of("grafana.json"))["panels"]
    expressions += [target["expr"] for panel in panels for target in panel["targets"]]
    wanted = {name for text in expressions for name in re.findall(r"\bwaltz_\w+", text)}
    with running_cluster(tmp_path, zookeeper.fresh_chroot()) as cluster:

        def missing() -> set[str]:
            pages = [cluster.get(name, "/metrics/prometheus") for name in ("server-0", "storage-0")]
            shown = set(re.findall(r"^(waltz_\w+)", "\n".join(pages), re.MULTILINE))
            return wanted - shown

        poll("all of them are shown", lambda: not missing())
        assert all(rule["annotations"]["command"] for rule in rules)


def test_the_page_names_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    pages = [text_of("README.md"), text_of("alerts.yml")]
    commands = set(re.findall(r"waltz (zookeeper|storage|server|cluster|client|disk) ([a-z-]+)", "\n".join(pages)))
    assert len(commands) > 10
    for noun, verb in sorted(commands):
        assert main([noun, verb, "--help"]) == 0, (noun, verb)
        capsys.readouterr()
