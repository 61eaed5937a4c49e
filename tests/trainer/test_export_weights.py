"""Weights for plain PyTorch and for Transformers."""

import copy
from contextlib import suppress
from functools import partial
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    BertForMaskedLM,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
)

import composable.functional as F
from composable import Algorithm, Event
from composable.algorithms import EMA, Alibi, GatedLinearUnits, GhostBatchNorm, Rotary
from composable.checkpoint import atomic, export
from composable.checkpoint.errors import CheckpointExistsError, UnsavableError
from composable.models import HuggingFaceModel
from tests.checkpoint.faulty_os import FaultyOS, Killed
from tests.support.data import batches
from tests.support.hugging_face import build
from tests.support.models import linear, same, seeded, weights
from tests.support.runs import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*was set in the config:UserWarning")

TEXT = [{"input_ids": (ids := torch.arange(24).reshape(2, 12) % 17), "labels": ids}] * 3


gpt, bert = (
    partial(build, family, num_hidden_layers=1, max_position_embeddings=16)
    for family in ("gpt2", "bert")
)


def on_text(model, *algorithms):
    trainer = make_trainer(model, TEXT, loss_fn=None, algorithms=list(algorithms))
    trainer.fit()
    return trainer


@pytest.mark.parametrize("wrap", [lambda model: model, HuggingFaceModel], ids=["itself", "adapter"])
def test_folder_is_read_by_from_pretrained(wrap, tmp_path):
    model = gpt()
    trainer = on_text(wrap(model), EMA("2ba"))

    path = trainer.export_weights(tmp_path / "a" / "model")

    loaded = GPT2LMHeadModel.from_pretrained(path)
    assert same(weights(loaded), weights(model))
    with torch.no_grad():
        expected = trainer.eval(TEXT[:1])["eval"]["loss"]
        assert loaded.eval()(**TEXT[0]).loss.item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("build", "algorithm"),
    [(gpt, Alibi(16)), (gpt, Rotary()), (bert, GatedLinearUnits())],
    ids=["alibi", "rotary", "units"],
)
def test_model_with_replaced_layers_is_not_exported_for_from_pretrained(build, algorithm, tmp_path):
    model = build()
    trainer = on_text(model, algorithm)

    for save in (
        lambda: trainer.export_weights(tmp_path / "model"),
        lambda: model.save_pretrained(tmp_path / "model"),
        lambda: copy.deepcopy(trainer.state.model).save_pretrained(tmp_path / "model"),
    ):
        with pytest.raises(RuntimeError, match=r"from_pretrained would not build.*export_weights"):
            save()
    assert not list(tmp_path.iterdir())
    path = trainer.export_weights(tmp_path / "model.safetensors")
    again = on_text(build(), algorithm).state.model
    again.load_state_dict(load_file(path))
    assert same(weights(again), weights(model))


@pytest.mark.parametrize("change", [F.alibi, F.gated_linear_units], ids=["alibi", "units"])
def test_functions_refuse_it_too_and_leave_the_old_model(change, tmp_path):
    model = bert()
    changed = F.alibi(model, max_sequence_length=16) if change is F.alibi else change(model)

    with pytest.raises(RuntimeError, match="would not build this model"):
        changed.save_pretrained(tmp_path / "changed")
    model.save_pretrained(tmp_path / "model")
    assert same(weights(BertForMaskedLM.from_pretrained(tmp_path / "model")), weights(model))


def test_layers_that_differ_in_training_only_are_exported(tmp_path):
    config = ResNetConfig(
        num_channels=2, embedding_size=4, hidden_sizes=[4], depths=[1], layer_type="basic"
    )
    model = seeded(lambda: ResNetForImageClassification(config))
    trainer = make_trainer(
        model,
        [{"pixel_values": batches(images=True)[0][0], "labels": torch.tensor([0, 1, 1, 0])}],
        loss_fn=None,
        algorithms=[GhostBatchNorm(2)],
    )
    trainer.fit()

    loaded = ResNetForImageClassification.from_pretrained(trainer.export_weights(tmp_path / "m"))

    assert same(weights(loaded), weights(model))


class Extra(Algorithm):
    """Adds a layer by itself, without the functions of the library."""

    events = frozenset({Event.INIT})
    writes = frozenset({"model"})

    def apply(self, event, state):
        model = copy.deepcopy(state.model)
        model.transformer.h[0].mlp = nn.Sequential(nn.Linear(12, 12), model.transformer.h[0].mlp)
        return state.evolve(model=model)


@pytest.mark.filterwarnings("ignore")
def test_folder_that_would_be_read_as_another_model_is_not_written(tmp_path):
    model = gpt()
    trainer = on_text(model, Extra())

    with pytest.raises(
        UnsavableError, match=r"would build another model.*differs in transformer.h.0.mlp"
    ):
        trainer.export_weights(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path):
    trainer = make_trainer(linear())
    file, folder = tmp_path / "model.safetensors", tmp_path / "folder"
    file.write_text("mine")
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")

    with pytest.raises(CheckpointExistsError, match=r"model\.safetensors exists.*overwrite=True"):
        trainer.export_weights(file)
    with pytest.raises(CheckpointExistsError, match=r"folder exists, and 'notes\.txt' is not from"):
        on_text(gpt()).export_weights(folder)
    with pytest.raises(CheckpointExistsError, match=r"model\.safetensors exists, and 'model"):
        export_folder(gpt(), file)
    with pytest.raises(ValueError, match=r"must end in '\.safetensors'"):
        trainer.export_weights(tmp_path / "other")
    assert file.read_text() == (folder / "notes.txt").read_text() == "mine"
    trainer.export_weights(file, overwrite=True)
    assert same(load_file(file), weights(trainer.state.model))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder", "model.safetensors"]


def export_folder(model, folder):
    export._write_folder(model, model.state_dict(), folder)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def model_with(value):
    model = gpt()
    with torch.no_grad():
        model.transformer.ln_f.bias.fill_(value)
    return model


def test_a_script_that_is_run_twice_replaces_its_folder(tmp_path):
    for value in (1.0, 2.0):
        trainer = make_trainer(model_with(value), TEXT, loss_fn=None)
        path = trainer.export_weights(tmp_path / "model")
        loaded = GPT2LMHeadModel.from_pretrained(path)
        assert same(weights(loaded), weights(trainer.state.model))
    assert [one.name for one in tmp_path.iterdir()] == ["model"]

    (path / "tokenizer.json").write_text("mine")
    with pytest.raises(
        CheckpointExistsError, match=r"'tokenizer\.json' is not from export_weights"
    ):
        trainer.export_weights(path)
    (path / "tokenizer.json").unlink()
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(CheckpointExistsError, match="link exists, and 'link' is not from"):
        trainer.export_weights(tmp_path / "link")


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchanged", "renamed"])
def test_a_kill_at_any_call_leaves_the_old_folder_or_the_new_one(tmp_path, monkeypatch, exchanges):
    models = dict(zip(("old", "new", "last"), map(model_with, (1.0, 2.0, 3.0)), strict=True))
    for name, model in models.items():
        export_folder(model, tmp_path / name)
    old, new, last = (contents(tmp_path / name) for name in models)
    if not exchanges:
        monkeypatch.setattr(atomic, "_exchange", lambda first, second: False)
    seen = []
    for at in range(99):
        folder = tmp_path / str(at) / "model"
        copytree(tmp_path / "old", folder)
        with monkeypatch.context() as patch:
            fault = FaultyOS(at, Killed)
            patch.setattr(atomic, "os", fault)
            with suppress(Killed):
                export_folder(models["new"], folder)
        fault.bury()
        found = folder
        if not folder.exists() and not exchanges:  # between the two renames
            (found,) = folder.parent.glob(".model.*.replaced")
        assert contents(found) in (old, new)
        seen.append(contents(found) == new)

        export_folder(models["last"], folder)
        assert contents(folder) == last
        assert [one.name for one in folder.parent.iterdir()] == ["model"]
        if len(fault.made) <= at:
            break
    assert at > 10
    assert seen == sorted(seen)
    assert set(seen) == {False, True}


def test_values_that_are_no_tensors_are_an_error(tmp_path):
    class Counts(nn.Linear):
        def get_extra_state(self):
            return {"count": 3}

        def set_extra_state(self, state):
            pass

    trainer = make_trainer(Counts(4, 3))

    with pytest.raises(UnsavableError, match="_extra_state of the state dict is a dict"):
        trainer.export_weights(tmp_path / "model.safetensors")


def test_export_within_a_fit_is_an_error(tmp_path):
    trainer = make_trainer()

    def export(event, state, logger):
        if event is Event.BATCH_END:
            trainer.export_weights(tmp_path / "model.safetensors")

    trainer.add_callback(export)
    with pytest.raises(RuntimeError, match="export_weights was called while the Trainer runs"):
        trainer.fit()
