"""An S3 server on this machine, which can fail, and machines that can vanish."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from composable._support import object_stores

BUCKET = "bucket"
WRITES = ("PUT", "POST", "DELETE")


class Server:
    """The server of moto, between which and its clients a function may stand.

    Its `fault` is called with the method and the path of each request. It may wait, and returns the
    status and the code of an error, or None to pass the request on.
    """

    def __init__(self) -> None:
        from moto.server import create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            protocol_version = "HTTP/1.1"

            def log(self, *args: Any) -> None:
                pass

        self.app = create_backend_app("s3")
        self.fault: Callable[[str, str], tuple[int, str] | None] = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        self.server = make_server("127.0.0.1", 0, self, threaded=True, request_handler=Quiet)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        if (error := self.fault(method, path)) is None:
            return self.app(environ, start_response)
        status, code = error
        body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
        start_response(f"{status} {code}", headers)
        return [b"" if method == "HEAD" else body]

    def work(self) -> None:
        """Let every request pass."""
        self.fault = lambda method, path: None

    @property
    def files(self) -> Any:
        """The file system of its buckets."""
        import fsspec

        files = fsspec.filesystem("s3")
        files.invalidate_cache()
        return files


def machine(monkeypatch: pytest.MonkeyPatch, home: Any) -> None:
    """Continue on a machine with an empty disk: nothing of this process knows the old one."""
    object_stores.OPEN.clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))


@contextmanager
def elsewhere(monkeypatch: pytest.MonkeyPatch, home: Any) -> Iterator[None]:
    """Be on a machine with an empty disk, and then on the first one again."""
    opened, first = dict(object_stores.OPEN), os.environ["XDG_CACHE_HOME"]
    machine(monkeypatch, home)
    yield
    machine(monkeypatch, first)
    object_stores.OPEN.update(opened)


@contextmanager
def lost_at(server: Server, number: int) -> Iterator[None]:
    """Let the machine of the block vanish at a write: no request of it arrives from then on."""
    count = 0

    def fault(method: str, path: str) -> tuple[int, str] | None:
        nonlocal count
        count += method in WRITES
        return (403, "AccessDenied") if count > number else None

    server.fault = fault
    try:
        yield
    finally:
        for one in object_stores.OPEN.values():
            if one._thread is not None:
                one._thread.shutdown(cancel_futures=True)
        server.work()
