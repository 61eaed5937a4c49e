"""What a run deletes: its own checkpoints, whatever a file says."""

import os
import shutil

import pytest

from composable.checkpoint import MismatchError
from composable.checkpoint.files import delete
from tests.support.forging import forge
from tests.support.runs import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
KEEP_ONE = {"save_interval": "1ba", "save_num_checkpoints_to_keep": 1}


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", ["../thesis", "{tmp}/thesis", "..", ".", "", "a/../../thesis", 3])
@pytest.mark.parametrize("field", ["kept", "best"])
def test_rejects_paths_as_names_of_checkpoints(field, name, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("text")
    run = tmp_path / "run"
    make_trainer(save_folder=run, max_duration="1ep", **KEEP_ONE).fit()
    if isinstance(name, str):
        name = name.format(tmp=tmp_path)

    def change(state):
        value = [name, name] if field == "kept" else (name, 0.5)
        state["callbacks"]["CheckpointSaver"][field] = value

    forge(run / "ep1-ba3", change)

    message = rf"{field}(/0)? is .*, and must be the name of a checkpoint"
    with pytest.raises(MismatchError, match=f"state/callbacks/CheckpointSaver.*{message}"):
        make_trainer(save_folder=run, autoresume=True, **KEEP_ONE)
    assert (tmp_path / "thesis" / "thesis.tex").exists()


@pytest.mark.parametrize("kind", ["other run", "link", "other files", "no checkpoint", "broken"])
def test_deletes_only_checkpoints_of_the_same_run(kind, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    make_trainer(save_folder=other, max_duration="1ep").fit()
    make_trainer(save_folder=run, max_duration="1ep", **KEEP_ONE).fit()
    target = run / "ep0-ba1"
    if kind == "other run":
        shutil.copytree(other / "ep1-ba3", target)
    elif kind == "link":
        shutil.copytree(run / "ep1-ba3", tmp_path / "linked")
        target.symlink_to(tmp_path / "linked")
    else:
        shutil.copytree(run / "ep1-ba3", target)
        if kind == "broken":
            (target / "manifest.json").write_text("{}")
        elif kind == "other files":
            (target / "notes.txt").write_text("text")
        else:
            (target / "manifest.json").unlink()
    forge(run / "ep1-ba3", lambda s: s["callbacks"]["CheckpointSaver"].update(kept=["ep0-ba1"]))

    again = {"load_path": run / "ep1-ba3", "save_folder": run, "save_overwrite": True}
    make_trainer(**again, **KEEP_ONE).fit()

    assert os.path.lexists(target)
    assert len(list(target.iterdir())) >= 2


def test_overwriting_keeps_checkpoints_of_another_run(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    options = {"save_interval": "1ba", "max_duration": "1ep"}
    make_trainer(save_folder=a, **options).fit()
    make_trainer(save_folder=b, **options).fit()

    again = {"load_path": a, "save_folder": b, "save_overwrite": True, "save_interval": "2ep"}
    make_trainer(**again, save_num_checkpoints_to_keep=1).fit()

    assert names(b) == ["ep0-ba1", "ep0-ba2", "ep0-ba3", "ep1-ba3", "ep2-ba6"]


def test_deletes_a_checkpoint_of_the_run(tmp_path):
    trainer = make_trainer(save_folder=tmp_path, max_duration="1ep")
    trainer.fit()

    assert not delete(tmp_path / "ep1-ba3", "another")
    assert delete(tmp_path / "ep1-ba3", trainer._records.run_id)
    assert not delete(tmp_path / "ep1-ba3", trainer._records.run_id)
    assert names(tmp_path) == []
