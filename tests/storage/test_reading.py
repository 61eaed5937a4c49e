"""What is at a URL is read as in a folder of this machine."""

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from composable._support.checks import PathError
from composable._support.object_stores import OPEN, cache
from composable.checkpoint import (
    CheckpointExistsError,
    MissingCheckpointError,
    UnreadableCheckpointError,
    load_weights,
)
from composable.cli import main
from composable.report import RecordedRun
from composable.runs.diff import diff_runs
from composable.storage import RemoteFolder
from tests.support import models
from tests.support.models import conv_net, weights
from tests.support.object_store import BUCKET, machine
from tests.support.remote_run import URL, run, same, saved


@pytest.fixture
def recorded(server, monkeypatch, tmp_path):
    """Return the batches that a finished run has in the bucket, seen from another machine."""
    run(URL, save_num_checkpoints_to_keep=None).fit()
    machine(monkeypatch, tmp_path / "machine-2")
    return saved(server)


@pytest.mark.parametrize("path", [URL, f"{URL}/ep3-ba9", f"{URL}/"])
def test_load_path_continues(path, recorded, whole):
    trainer = run(None, load_path=path)
    assert trainer.state.timestamp.batch == 9
    assert same(trainer, whole)
    assert [*cache().iterdir()]  # until the process ends


def test_load_path_gives_the_weights_alone(recorded, whole):
    trainer = run(None, load_path=URL, load_weights_only=True)
    assert trainer.state.timestamp.batch == 0
    assert same(trainer, whole)


def test_weights_are_loaded(recorded, whole):
    model = conv_net()
    load_weights(model, f"{URL}/ep3-ba9")
    assert models.same(weights(model), weights(whole.state.model))


def test_weights_are_exported(server, whole, tmp_path):
    url = f"s3://{BUCKET}/exports/model.safetensors"
    assert whole.export_weights(url) == url
    with pytest.raises(CheckpointExistsError, match="overwrite=True"):
        whole.export_weights(url)
    whole.export_weights(url, overwrite=True)
    server.files.get_file(url, str(tmp_path / "model.safetensors"))
    assert load_file(tmp_path / "model.safetensors").keys() == whole.state.model.state_dict().keys()
    load_weights(conv_net(), url)


def test_a_checkpoint_is_saved_between_calls(server, whole):
    whole.save_checkpoint(f"s3://{BUCKET}/kept/final")
    assert server.files.exists(f"{BUCKET}/kept/final/manifest.json")
    assert run(None, load_path=f"s3://{BUCKET}/kept").state.timestamp.batch == 9


@pytest.mark.parametrize("path", [f"s3://{BUCKET}/nothing", "s3://no-such-bucket/run"])
def test_what_is_missing_is_named(path, server):
    with pytest.raises(MissingCheckpointError, match=path):
        load_weights(conv_net(), path)
    with pytest.raises(MissingCheckpointError, match=path):
        run(None, load_path=path)


def test_a_store_that_cannot_be_read_is_named(recorded, server):
    server.fault = lambda method, path: (403, "AccessDenied")
    with pytest.raises(UnreadableCheckpointError, match=r"cannot be listed.*AccessDenied"):
        load_weights(conv_net(), URL)
    with pytest.raises(UnreadableCheckpointError, match="AccessDenied"):
        run(URL)


def test_runs_are_compared_and_reported(recorded, whole):
    assert diff_runs(URL, whole._options.save_folder).same
    reported = RecordedRun(URL)
    assert reported.num_batches == 9
    assert [one["batch"] for one in reported.checkpoints] == recorded
    assert not reported.problems


def test_commands_read_urls(recorded, server, capsys, tmp_path):
    def call(command: str) -> str:
        assert main(command.replace("URL", URL).split()) == 0
        return capsys.readouterr().out

    assert re.findall(r"ba(\d+) ", call("checkpoint ls URL")) == ["9", "8", "6", "4", "2"]
    assert URL in call("checkpoint ls URL --json")
    assert call("checkpoint verify URL").count(": whole") == 5
    assert "optimizers/0/state" in call("checkpoint inspect URL/ep3-ba9")
    call(f"checkpoint consolidate URL/ep3-ba9 {tmp_path / 'one'}")
    call(f"report URL -o {tmp_path / 'report.html'}")
    assert call("checkpoint prune URL --keep 2").count("deleted") == 3
    assert saved(server) == [8, 9]
    call(f"checkpoint prune {tmp_path} --keep 1")
    assert main(["checkpoint", "prune", URL, "--keep", "0"]) == 2


def test_copies_have_no_data_of_tensors_where_sizes_do(recorded, server):
    server.requests.clear()
    main(["checkpoint", "ls", URL])
    read = [path for method, path in server.requests if method == "GET"]
    assert not [path for path in read if "tensors" in path or "steps" in path]


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("s3://key:secret@bucket/run", "credentials in it"),
        ("s3://key@bucket/run", "credentials in it"),
        ("https://host/run?X-Amz-Signature=secret", "credentials in it"),
        ("s3://", "names no folder; add one, as in s3://bucket/run"),
        ("s3://b", "names no folder; add one, as in s3://b/run"),
        ("s3://b/", "names no folder; add one, as in s3://b/run"),
        ("s4://bucket/run", "unknown scheme"),
        ("s3:/bucket/run", "pathlib removes a slash"),
        (Path("s3://bucket/run"), "pathlib removes a slash"),
        ("simplecache::s3://bucket/run", "chain|unknown scheme|neither"),
        ("abfs://container/run", r"composable\[azure\]"),
    ],
)
def test_other_urls_are_refused_before_anything_is_trained(url, match):
    for use in (
        lambda: run(url),
        lambda: run(None, load_path=url),
        lambda: load_weights(conv_net(), url),
        lambda: RemoteFolder(url),
    ):
        with pytest.raises(PathError, match=match) as caught:
            use()
        assert "secret" not in str(caught.value)
        assert len(str(caught.value).split()) <= 60
    assert not OPEN


@pytest.mark.parametrize("url", ["memory://runs/one", "file:///RUN"])
def test_other_file_systems(url, whole, monkeypatch, tmp_path):
    url = url.replace("/RUN", str(tmp_path / "mounted" / "run"))
    machine(monkeypatch, tmp_path / "machine-1")
    with pytest.raises(KeyError):
        run(url, stop=7).fit()
    machine(monkeypatch, tmp_path / "machine-2")
    trainer = run(url)
    assert trainer.state.timestamp.batch == 6
    trainer.fit()
    assert same(trainer, whole)
    OPEN.clear()


def test_a_local_folder_may_be_chosen(server, tmp_path):
    local = tmp_path / "local"
    trainer = run(RemoteFolder(URL, local_folder=local))
    trainer.fit()
    assert trainer._options.save_folder == local
    assert saved(server) == [8, 9]
    OPEN.clear()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for folder, match in [(local, "belongs to s3"), (tmp_path / "other", "has other files")]:
        url = f"s3://{BUCKET}/second"
        with pytest.raises(CheckpointExistsError, match=match):
            run(RemoteFolder(url, local_folder=folder))
        OPEN.clear()
