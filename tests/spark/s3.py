"""An S3 server for tests of archives, which may lose its bucket for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

NO_BUCKET = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"
outage = threading.Event()
"""While it is set, the S3 server has no bucket."""


@pytest.fixture(scope="session")
def bucket() -> Iterator[str]:
    """An S3 server in a thread, and a bucket in which each test has names of its own.

    There is one for all tests of a process: s3fs keeps the address that it was made with.
    """
    import fsspec
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    whole, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def app(environ: Any, start_response: Any) -> list[bytes]:
        def answer(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            own = {"server", "date"}  # the server in front adds them, and clients want them once
            return start_response(status, [pair for pair in headers if pair[0].lower() not in own], *rest)

        if outage.is_set():
            start_response(
                "404 Not Found", [("Content-Type", "application/xml"), ("Content-Length", str(len(NO_BUCKET)))]
            )
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [NO_BUCKET]
        with one_at_a_time:  # the backend looks for the name and puts the object in two steps
            return list(whole(environ, answer))

    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        file_system = fsspec.filesystem("s3")
        file_system.mkdir("vault")
        yield "s3://vault"
        server.shutdown()
        thread.join()
        server.server_close()
