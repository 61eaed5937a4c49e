"""A server with an empty bucket, and what an uninterrupted run trains."""

from collections.abc import Iterator
from typing import Any

import pytest

from composable import Trainer
from composable._support import object_stores
from tests.support.object_store import BUCKET, Server, machine
from tests.support.remote_run import run


@pytest.fixture(scope="session")
def one_server() -> Server:
    return Server()


@pytest.fixture
def server(one_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Server]:
    """Return a server with an empty bucket, of which the environment tells, and a first machine."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "an-id",
        "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-user",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_ENDPOINT_URL": one_server.address,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_stores, "WAITS", (0.0, 0.0))
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)  # its own take seconds
    one_server.work()
    files = one_server.files
    if files.exists(BUCKET):
        files.rm(BUCKET, recursive=True)
    files.mkdir(BUCKET)
    one_server.requests.clear()
    machine(monkeypatch, tmp_path / "machine-1")
    yield one_server
    one_server.work()
    object_stores.OPEN.clear()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: Any) -> Trainer:
    """Return an uninterrupted run in a local folder."""
    trainer = run(tmp_path_factory.mktemp("whole"))
    trainer.fit()
    return trainer
