"""Key stores in the original's format, made by Java's own tool: a key for each role, and all certificates to trust."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROLES = ("server", "storage", "client", "tools")
PASSWORD = "changeit"


class Stores:
    """JKS files in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        for role in ROLES:
            store = self._store(role)
            _keytool(
                "-genkeypair",
                "-keyalg",
                "RSA",
                "-dname",
                f"CN={role}",
                *_in(store),
                "-keypass",
                PASSWORD,
                "-alias",
                role,
            )
            certificate = str(directory / f"{role}.der")
            _keytool("-exportcert", *_in(store), "-alias", role, "-file", certificate)
            _keytool("-importcert", "-noprompt", *_in(self._store("trust")), "-alias", role, "-file", certificate)

    def _store(self, name: str) -> Path:
        return self.directory / f"{name}.jks"

    def keys(self, prefix: str, role: str) -> dict[str, object]:
        """The TLS group of a configuration, as the original knows it."""
        return {
            f"{prefix}keyStore.location": str(self._store(role)),
            f"{prefix}keyStore.password": PASSWORD,
            f"{prefix}trustStore.location": str(self._store("trust")),
            f"{prefix}trustStore.password": PASSWORD,
        }


def _in(store: Path) -> tuple[str, ...]:
    return "-keystore", str(store), "-storetype", "JKS", "-storepass", PASSWORD


def _keytool(*arguments: str) -> None:
    subprocess.run(["keytool", *arguments], check=True, capture_output=True, stdin=subprocess.DEVNULL)
