"""Files of others in a bucket are neither deleted, nor copied, nor written elsewhere."""

from contextlib import suppress
from pathlib import Path

import pytest

from composable._support.checks import PathError
from composable._support.object_stores import OPEN, ObjectStore
from composable.checkpoint import CheckpointExistsError
from composable.cli import main
from composable.loggers import CSVLogger, JSONLinesLogger
from composable.storage import RemoteFolder
from composable.storage.copies import uploading
from tests.support.object_store import BUCKET, machine
from tests.support.remote_run import URL, run, saved

DATA = f"{BUCKET}/run/data/train.bin"


def test_checkpoints_with_other_files_are_not_deleted(server):
    notes = f"{BUCKET}/run/ep0-ba2/notes.txt"

    def note(event, state, logger):
        if event.value == "batch_start" and state.timestamp.batch == 5:
            next(iter(OPEN.values())).finish()
            server.files.pipe_file(notes, b"mine")

    run(URL, callbacks=[note]).fit()
    main(["checkpoint", "prune", URL, "--keep", "1"])
    assert saved(server) == [2, 9]
    assert server.files.cat_file(notes) == b"mine"


@pytest.mark.parametrize("read", [lambda: run(URL), lambda: run(None, load_path=URL)])
def test_other_files_in_the_folder_of_a_run_are_not_copied(read, server, monkeypatch, tmp_path):
    server.files.pipe_file(DATA, b"many gigabytes")
    with suppress(KeyError):
        run(URL, stop=5).fit()
    machine(monkeypatch, tmp_path / "machine-2")
    server.requests.clear()
    assert read().state.timestamp.batch == 4
    assert main(["report", URL, "-o", str(tmp_path / "report.html")]) == 0
    assert ("GET", f"/{DATA}") not in server.requests
    assert server.files.cat_file(DATA)


@pytest.mark.parametrize("name", ["../../../stolen", "/stolen", "..", "a//b"])
def test_names_that_are_no_paths_are_not_copied(name, server, monkeypatch, tmp_path):
    def sizes(root, detail):
        return {f"{root}/{name}": {"size": 1}, f"{root}/ep1-ba1/x": {"size": 1}}

    store = ObjectStore("path", "memory://names/run")
    monkeypatch.setattr(type(store.files), "find", lambda self, *args, **kwargs: sizes(*args, True))
    assert store.sizes() == {"ep1-ba1/x": 1}


def test_an_export_replaces_exported_files_alone(server):
    url = f"s3://{BUCKET}/exports"

    def export(*names):
        with uploading("path", url, overwrite=True) as target:
            target.mkdir()
            for name in names:
                (target / name).touch()
            (target / "exported_files.txt").write_text("\n".join(["exported_files.txt", *names]))

    export("a", "b")
    export("a", "c")
    names = [path.rpartition("/")[2] for path in server.files.find(f"{BUCKET}/exports")]
    assert names == ["a", "c", "exported_files.txt"]
    server.files.pipe_file(f"{BUCKET}/exports/other", b"mine")
    with pytest.raises(CheckpointExistsError, match="'other', which is not from export_weights"):
        export("a")
    assert server.files.cat_file(f"{BUCKET}/exports/other") == b"mine"


def test_what_was_read_before_the_store_changed_is_not_resumed(server, monkeypatch, tmp_path):
    run(URL).fit()
    machine(monkeypatch, tmp_path / "machine-2")
    assert run(URL).state.timestamp.batch == 9  # and never fitted
    OPEN.clear()
    server.files.rm(f"{BUCKET}/run", recursive=True)
    with pytest.warns(UserWarning, match="has changed since this machine used it"):
        assert run(URL).state.timestamp.batch == 0


@pytest.mark.parametrize("kind", [JSONLinesLogger, CSVLogger])
def test_an_existing_log_is_named_by_its_url(kind, server, monkeypatch, tmp_path):
    url = f"s3://{BUCKET}/logs/log"
    run(None, loggers=[kind(url)]).fit()
    machine(monkeypatch, tmp_path / "machine-2")
    with pytest.raises(FileExistsError, match=f"path='{url}' exists"):
        run(None, loggers=[kind(url)]).fit()


@pytest.mark.parametrize("use", [RemoteFolder, run])
def test_credentials_in_a_path_are_not_shown(use):
    with pytest.raises(PathError, match="credentials in it") as caught:
        use(Path("s3://key:secret@bucket/run"))
    assert "secret" not in str(caught.value)


def test_a_folder_of_the_user_that_has_a_name_of_a_part_is_kept(server, monkeypatch, tmp_path):
    run(URL).fit()
    mine = [f"{BUCKET}/run/mine/{name}" for name in ("state.json", "notes.txt")]
    for path in mine:
        server.files.pipe_file(path, b"{}")
    machine(monkeypatch, tmp_path / "machine-2")
    run(URL).fit()
    assert all(map(server.files.exists, mine))
