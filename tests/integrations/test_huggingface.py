"""Hugging Face's Trainer: its evaluations and files, and what it refuses."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import ResNetForImageClassification

from composable.algorithms import EMA, BlurPool, GradientClipping, WeightStandardization
from tests.integrations.huggingface_loop import Classifier, resnet, start
from tests.integrations.loops import LOOPS, Run, own_loop, row, trained
from tests.integrations.table import dense_net
from tests.support.models import same, weights

RUN = row("EMA", keyed=True)
WHOLE = {"pixel_values": RUN.data(14)[0], "labels": RUN.data(14)[1]}


def score_of(model):
    """Return the loss that an evaluation reports, for a model of Transformers."""
    with torch.no_grad():
        logits = model.eval()(pixel_values=WHOLE["pixel_values"]).logits
    return cross_entropy(logits, WHOLE["labels"]).item()


def scores_in(made):
    return [entry["eval_loss"] for entry in made.state.log_history if "eval_loss" in entry]


def test_averaged_weights_are_used_for_evaluation(tmp_path):
    t, made = start(RUN, tmp_path)
    made.train()
    before = weights(t.model)
    with t.evaluating() as model:
        made.predict(RUN.dicts(RUN.data(5)))
        expected = model.loss(model(WHOLE), WHOLE).item()

    assert scores_in(made)[-1] == pytest.approx(expected)
    assert same(weights(t.model), before)


class TakesKeywords(Classifier):
    """A model that would use the number of items in the batch, as language models do."""

    def forward(self, pixel_values, labels=None, **kwargs):
        return super().forward(pixel_values, labels)


def test_models_with_loss_keywords_accumulate_the_mean():
    run = Run([GradientClipping("norm", 0.05), EMA("2ba")], dense_net, accumulate_batches=2)

    assert same(trained(LOOPS["HF, mixin"](run, net=TakesKeywords)), trained(own_loop(run)))


# --- files ---


@pytest.mark.parametrize("load_best", [False, True])
def test_every_file_has_the_weights_that_were_scored(load_best, tmp_path):
    saving = {
        "save_strategy": "epoch",
        "load_best_model_at_end": load_best,
        "metric_for_best_model": "loss",
        "greater_is_better": False,  # so that the first is the best
    }
    t, made = start(RUN, tmp_path, changes=saving)
    made.train()

    logged = scores_in(made)
    folders = sorted(tmp_path.glob("checkpoint-*"), key=lambda one: int(one.name[11:]))
    for folder, loss in zip(folders, logged, strict=True):
        loaded = ResNetForImageClassification.from_pretrained(folder)
        assert score_of(loaded) == pytest.approx(loss)
    expected = min(logged) if load_best else logged[-1]
    assert min(logged) != logged[-1]
    assert score_of(t.model.model) == pytest.approx(expected)
    assert made.evaluate()["eval_loss"] == pytest.approx(expected)
    made.save_model(tmp_path / "last")
    last = ResNetForImageClassification.from_pretrained(tmp_path / "last")
    assert score_of(last) == pytest.approx(expected)


def test_last_checkpoint_is_found(tmp_path):
    whole = LOOPS["HF, mixin"](RUN, tmp_path)
    t, made = start(RUN, tmp_path)
    made.train(resume_from_checkpoint=True)

    assert same(trained(t), trained(whole))


def test_callback_rejects_a_resume_without_the_state(tmp_path):
    LOOPS["HF, callback"](Run([GradientClipping("norm", 0.1)], dense_net), tmp_path)
    _, made = start(Run([GradientClipping("norm", 0.1)], dense_net), tmp_path, mixin=False)

    with pytest.raises(RuntimeError, match="resumes at step 4, and the algorithms are at batch 0"):
        made.train(str(tmp_path / "checkpoint-4"))


def test_checkpoints_of_changed_models_are_not_those_of_from_pretrained(tmp_path):
    run = Run([WeightStandardization()], resnet, keyed=True)
    _, made = start(run, tmp_path, changes={"save_strategy": "epoch"})
    made.train()

    with pytest.raises(ValueError, match="layers were replaced: load these weights into"):
        ResNetForImageClassification.from_pretrained(tmp_path / "checkpoint-4")
    with pytest.raises(RuntimeError, match="would not build this model"):
        made.save_model(tmp_path / "last")


# --- what is refused ---


@pytest.mark.parametrize("mixin", [True, False])
def test_rejects_the_model_before_surgery(mixin, tmp_path):
    given = resnet()  # surgery shares its parameters
    run = Run([BlurPool(min_channels=0)], lambda: given, keyed=True)
    _, made = start(run, tmp_path, mixin=mixin, model=given.model)

    with pytest.raises(ValueError, match=r"has no module of t\.model"):
        made.train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compute_loss_func": cross_entropy}, "compute_loss_func=.* must be None"),
        ({"changes": {"label_smoothing_factor": 0.1}}, "label_smoothing_factor=0.1 must be 0"),
    ],
)
def test_rejects_a_second_loss(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        start(RUN, tmp_path, **options)
