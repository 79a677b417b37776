"""What can be said of a cluster of both kinds where there is no installation of the original."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.interop.cluster import Kind, MixedCluster
from tests.interop.installation import SERVER, STORAGE, Installation


def test_every_process_has_a_file_and_the_command_of_its_kind(tmp_path: Path) -> None:
    """The rows run only where the original is; the cluster that they stand on changes everywhere."""
    installation = Installation("original.jar", (), tmp_path)
    made = MixedCluster(
        tmp_path, "127.0.0.1:1", installation, storage=(Kind.OURS, Kind.JAVA), server=(Kind.JAVA, Kind.OURS)
    )
    try:
        for name, main in (("storage-1", STORAGE), ("server-0", SERVER)):
            path = tmp_path / f"{name}.yml"
            assert made.children[name].command[-2:] == [main, str(path)]
            assert yaml.safe_load(path.read_text())["cluster.root"] == "/cluster"
        for name in ("storage-0", "server-1"):
            assert made.children[name].command[-2:] == ["run", str(tmp_path / f"{name}.yml")]
        made.assign("storage-0", Kind.JAVA)
        assert STORAGE in made.children["storage-0"].command
    finally:
        made.end()
