"""Where only a path of this machine will do, none with a scheme is taken for one."""

from pathlib import Path

import pytest
import torch

from composable import callbacks, compare, loggers
from composable.checkpoint import (
    export_dcp,
    find,
    import_dcp,
    read,
    verify,
    write,
)
from composable.cli import main
from composable.core.logger import Logger
from composable.data import TokenFiles, write_token_file
from tests.support.runs import make_trainer

URLS = ["s3://bucket/run", "gs://bucket/run", "memory://run", "hf://buckets/me/run", "file:/run"]


CLASSES = {
    loggers.TensorBoardLogger: "log_dir",
    loggers.WandBLogger: "dir",
    loggers.CometLogger: "offline_directory",
    callbacks.ExportForInference: "path",
    callbacks.MemorySnapshot: "folder",
    callbacks.OOMObserver: "folder",
    callbacks.Profiler: "folder",
}
CALLS = {
    **{kind.__name__: lambda url, k=kind, n=name: k(**{n: url}) for kind, name in CLASSES.items()},
    "log_artifact": lambda url: Logger([loggers.InMemoryLogger()]).log_artifact("model", url),
    "checkpoint.write": lambda url: write(url, {}, None),
    "checkpoint.read": read,
    "checkpoint.verify": verify,
    "checkpoint.find": find,
    "export_dcp": lambda url: export_dcp("run", url),
    "import_dcp": lambda url: import_dcp(url, "run"),
    "compare": lambda url: compare(make_trainer, {"a": [], "b": []}, metric="m", folder=url),
    "TokenFiles": lambda url: TokenFiles([url], length=8),
    "write_token_file": lambda url: write_token_file(url, torch.arange(3)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_url_is_refused_and_nothing_is_written(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in [*URLS, Path(URLS[0])]:
        with pytest.raises(ValueError, match="must be a local path, not a URL") as caught:
            CALLS[name](url)
        assert str(url) in str(caught.value)
        assert len(str(caught.value).split()) <= 60
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["runs/a:b", r"C:\runs", "C:/runs", "s3", "12:/a", "a b:/c"])
def test_a_local_path_is_accepted(name):
    assert callbacks.CheckpointSaver(name).folder == Path(name)


@pytest.mark.parametrize(
    "command",
    [
        "checkpoint import-dcp URL run",
        "launch -n 2 --stdout URL/{rank} -m this",
    ],
)
def test_a_command_refuses_a_url_in_one_line(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(command.replace("URL", URLS[0]).split()) == 2
    printed = capsys.readouterr().err
    assert "must be a local path, not a URL" in printed
    assert len(printed.splitlines()) == 1
    assert not [*tmp_path.iterdir()]
