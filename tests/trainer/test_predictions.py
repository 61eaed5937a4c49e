"""Predictions are written as they are computed, and are continued; an iterator keeps none."""

import weakref

import pytest
import torch
from safetensors.torch import load, load_file
from torch import nn

from composable import Event, Trainer
from composable._support.object_stores import ObjectStore
from composable.algorithms import EMA
from tests.support.data import batches
from tests.support.hugging_face import build, tokens
from tests.support.models import same
from tests.support.observers import Watch
from tests.support.runs import make_trainer, training_weights


def predictor(*callbacks, fitted=True, **options):
    """Build a Trainer with averaged weights, and count the batches that it predicts."""
    watch = Watch(Event.PREDICT_BATCH_END)
    trainer = make_trainer(
        callbacks=[watch, *callbacks], algorithms=EMA(half_life="2ba"), **options
    )
    if fitted:
        trainer.fit()
    return trainer, watch.seen


class Killed(Watch):
    """Fails at the third batch that is predicted."""

    def run_event(self, event, state, logger):
        super().run_event(event, state, logger)
        if len(self.seen) == 3:
            raise RuntimeError("killed")


@pytest.mark.parametrize("remote", [False, True])
def test_killed_prediction_is_continued(remote, tmp_path):
    to = f"memory://predictions/{tmp_path.name}" if remote else tmp_path / "outputs"
    loader = batches(20)
    killed, _ = predictor(Killed(Event.PREDICT_BATCH_START))
    with pytest.raises(RuntimeError, match="killed"):
        killed.predict(loader, to=to)

    trainer, seen = predictor()
    assert trainer.predict(loader, to=to) == to

    assert len(seen) == 3  # of five
    outputs = trainer.predict(loader)
    for i, output in enumerate(outputs):
        name = f"part-{i:08d}.safetensors"
        found = load(ObjectStore("to", to).read(name)) if remote else load_file(to / name)
        assert torch.equal(found["outputs"], output)


def test_folder_of_other_weights_or_files_is_refused(tmp_path):
    trainer, _ = predictor()
    trainer.predict(batches(4), to=tmp_path / "outputs")
    trainer.fit(duration="1ba")
    (tmp_path / "notes.txt").touch()

    with pytest.raises(FileExistsError, match="has outputs of other weights; pass a new"):
        trainer.predict(batches(4), to=tmp_path / "outputs")
    with pytest.raises(FileExistsError, match=r"has the file 'notes.txt'; pass a new"):
        trainer.predict(batches(4), to=tmp_path)


def test_outputs_have_names_and_the_cache_of_a_model_is_omitted(tmp_path):
    ids = tokens(5)
    model = build("gpt2")
    trainer = Trainer(model, progress_bar=False)
    trainer.predict([{"input_ids": ids}], to=tmp_path)

    found = load_file(tmp_path / "part-00000000.safetensors")
    assert found.keys() == {"logits"}
    assert torch.equal(found["logits"], model(input_ids=ids).logits)


def test_output_that_a_file_has_not_is_named(tmp_path):
    class Notes(nn.Module):
        def forward(self, x):
            return {"sum": x.sum(), "notes": ["a", 3]}

    with pytest.raises(TypeError, match=r"the output notes\.0 is a str, .* use predict_each"):
        Trainer(Notes(), progress_bar=False).predict(batches(4), to=tmp_path)


# --- the iterator


def test_iterator_yields_the_outputs_and_keeps_none():
    trainer, _ = predictor()
    kept, outputs = [], []
    for output in trainer.predict_each(batches(20)):
        outputs.append(output.clone())
        kept.append(weakref.ref(output))
        del output
        assert sum(one() is not None for one in kept) <= 1  # in the state of the last batch

    expected = trainer.predict(batches(20))
    assert all(map(torch.equal, outputs, expected))
    assert len(outputs) == len(expected)


def test_between_two_outputs_nothing_is_switched():
    trainer = make_trainer()
    trainer.state.model.train()
    torch.manual_seed(3)
    expected = torch.rand(5)

    torch.manual_seed(3)
    drawn = []
    for _ in trainer.predict_each(batches(20)):
        drawn.append(torch.rand(1))
        assert torch.is_grad_enabled()
        assert trainer.state.model.training
    assert torch.equal(torch.cat(drawn), expected)


def test_iterator_that_is_left_ends_the_call():
    (left, _), (plain, _) = (
        predictor(max_duration="3ep", fitted=False),
        predictor(max_duration="3ep", fitted=False),
    )
    for trainer in (left, plain):
        trainer.fit(duration="1ep")
    for _ in left.predict_each(batches(20)):
        break
    for trainer in (left, plain):
        trainer.fit()

    assert same(training_weights(left), training_weights(plain))
