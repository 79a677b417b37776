"""The installation of Waltz 0.13.2 that somebody gave us, and our driver of its public client interface."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import attrs

SERVER = "com.wepay.waltz.server.WaltzServer"
STORAGE = "com.wepay.waltz.storage.WaltzStorage"
DRIVER = "InteropDriver"
TOOLS = {
    "zookeeper": "com.wepay.waltz.tools.zk.ZooKeeperCli",
    "storage": "com.wepay.waltz.tools.storage.StorageCli",
    "server": "com.wepay.waltz.tools.server.ServerCli",
    "client": "com.wepay.waltz.tools.client.ClientCli",
    "cluster": "com.wepay.waltz.tools.cluster.ClusterCli",
    "performance": "com.wepay.waltz.tools.performance.PerformanceCli",
}

# What the certificates that the original makes for itself need on a newer Java; a given WALTZ_JAVA_OPTS stands instead.
_OPENED = ("java.base/sun.security.x509", "java.base/sun.security.util", "java.base/sun.security.provider")
# The original's own settings have its log among what its tools print.
_LOGGING = """log4j.rootLogger=INFO, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.Target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%d %-5p [%t] %c - %m%n
"""
_SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # many machines share few cores


@attrs.frozen
class Installation:
    """How to start main classes of the original. `directory` holds what we compile and write for it."""

    class_path: str
    options: tuple[str, ...]
    directory: Path

    def command(self, main: str, *arguments: str, heap: str = "256m") -> list[str]:
        """A command line that runs one main class."""
        # The original binds to the address of the local host's name and registers the name of that address.
        hosts = f"-Djdk.net.hosts.file={self.directory / 'hosts'}"
        logging = f"-Dlog4j.configuration={(self.directory.absolute() / 'log4j.properties').as_uri()}"
        java = ["java", *_SMALL, f"-Xmx{heap}", logging, *self.options, hosts]
        return [*java, "-cp", f"{self.directory / 'classes'}:{self.class_path}", main, *arguments]


def missing() -> str | None:
    """What is missing to run the original here, None if nothing."""
    if not os.environ.get("WALTZ_JAVA_CLASSPATH"):
        return "no installation of Waltz 0.13.2 is given: set WALTZ_JAVA_CLASSPATH (and WALTZ_JAVA_OPTS)"
    for program, why in (("java", "to run the original"), ("javac", "to compile our driver of its client")):
        if shutil.which(program) is None:
            return f"no `{program}` on PATH, needed {why} (Debian: default-jdk-headless)"
    return None


def prepare(directory: Path) -> Installation:
    """Compile the driver into `directory`; call only if nothing is `missing`.

    Raises:
        RuntimeError: it does not compile against the given class path.
    """
    class_path = os.environ["WALTZ_JAVA_CLASSPATH"]
    classes = directory / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    (directory / "hosts").write_text(f"127.0.0.1 localhost\n127.0.0.1 {socket.gethostname()}\n")
    (directory / "log4j.properties").write_text(_LOGGING)
    source = Path(__file__).parent / f"{DRIVER}.java"
    command = ["javac", "-nowarn", "-cp", class_path, "-d", str(classes), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source.name} does not compile against WALTZ_JAVA_CLASSPATH:\n{done.stdout}{done.stderr}")
    given = os.environ.get("WALTZ_JAVA_OPTS")
    return Installation(class_path, tuple(shlex.split(given)) if given else tuple(_default_options()), directory)


def _default_options() -> Sequence[str]:
    version = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    if re.search(r'version "1\.', version):
        return ()
    return [f"--add-{verb}={name}=ALL-UNNAMED" for name in _OPENED for verb in ("exports", "opens")]
