"""The algorithms in Lightning's Trainer."""

import copy
from functools import partial

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from torch.nn.functional import cross_entropy

from composable.algorithms import EMA, SWA, GradientClipping
from composable.integrations.external_loop import UnsupportedRequestError
from composable.integrations.lightning import (
    TRAINING_WEIGHTS,
    LoopAdapterCallback,
    LoopAdapterMixin,
)
from composable.utils.reproducibility import seed_step
from tests.integrations.loops import dense_net
from tests.integrations.table import (
    ASKS,
    SGD,
    SIX,
    WITHIN,
    acts,
    begin,
    evaluated,
    image_net,
    loader,
    ours,
    probe,
    refused_in,
    start,
    works_in,
)
from tests.support.campaign import drawn
from tests.support.models import same, weights

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
]


class Plain(L.LightningModule):
    """A plain module, without the mixin."""

    def __init__(self, net, optimizers=SGD, *, inputs=None, loss_fn=cross_entropy):
        super().__init__()
        self.net, self.optimizers_, self.loss_fn = net, optimizers, loss_fn
        self.inputs, self.seen = probe() if inputs is None else inputs, []

    def training_step(self, batch, batch_idx):
        seed_step(17, self.global_step)  # where a callback is alone, nothing seeds dropout
        return self.loss_fn(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.seen.append(self.net(self.inputs))

    test_step = validation_step

    def configure_optimizers(self):
        return self.optimizers_(self.net.parameters())


class Composed(LoopAdapterMixin, Plain):
    """The same module with transforms."""

    training_step = LoopAdapterMixin.training_step

    def __init__(self, adapter, optimizers=SGD, **options):
        super().__init__(adapter.model, optimizers, **options)
        self.adapter = adapter


def fit(module, *callbacks, name="", **options):
    """Train for two epochs, and evaluate after them."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        callbacks=list(callbacks),
        enable_model_summary=False,
        **quiet,
        **options,
    )
    trainer.fit(module, loader(name), loader(name))
    return trainer


@pytest.mark.parametrize(
    ("name", "mixin"),
    [(name, True) for name in drawn(works_in("Lightning, mixin"), 20)]
    + [(name, False) for name in drawn(works_in("Lightning, callback"), 10)],
)
def test_matches_the_trainer(name, mixin):
    t, inputs = begin(name), probe(name)
    module = Composed(t, inputs=inputs) if mixin else Plain(t.model, inputs=inputs)
    fit(module, *([] if mixin else [LoopAdapterCallback(t)]), name=name)
    result = evaluated(t, inputs)

    assert same(result, ours(name))
    assert acts(name, result)
    assert torch.equal(module.seen[-1], result[-1])  # Lightning evaluated with these weights


CALLED_WITHOUT = r"acts at \w+, and this loop made a step without t\."


@pytest.mark.parametrize("name", refused_in("Lightning, callback"))
def test_callback_rejects_algorithm(name):
    def train():
        t = begin(name)
        module = Plain(t.model, inputs=probe(name), loss_fn=lambda outputs, _: outputs.mean())
        fit(module, LoopAdapterCallback(t), name=name)

    with pytest.raises(RuntimeError, match=f"{CALLED_WITHOUT}|{ASKS}"):
        train()


@pytest.mark.parametrize("name", refused_in("Lightning, mixin"))
def test_mixin_rejects_algorithm(name):
    with pytest.raises(UnsupportedRequestError, match=ASKS):
        begin(name)


def test_callback_supports_swa_without_batch_norm_statistics():
    early = [SWA(swa_start="1ba", swa_end="1dur", update_interval="1ba")]
    t = start(early, image_net())
    fit(Plain(t.model), LoopAdapterCallback(t))

    assert same(evaluated(t, probe()), ours("", algorithms=early))


@pytest.mark.parametrize(("name", "kind"), [(SIX, torch.optim.AdamW), (WITHIN, SGD)])
def test_matches_the_trainer_with_another_optimizer_or_window(name, kind):
    t = begin(name)
    fit(Composed(t, partial(kind)))

    assert same(evaluated(t, probe()), ours(name, optimizers=partial(kind)))


def test_averaged_weights_are_used_for_tests_only():
    t = start([EMA("2ba")], image_net())
    module = Plain(t.model)
    trainer = fit(module, LoopAdapterCallback(t))
    before = weights(t.model)

    trainer.test(module, loader(), verbose=False)

    assert torch.equal(module.seen[-1], evaluated(t, probe())[-1])
    assert same(weights(t.model), before)
    assert torch.equal(t.model[0].weight, t.state.averages["EMA"]["0.weight"])


def test_model_has_the_average_after_an_exception_in_evaluation():
    class Fails(Plain):
        def validation_step(self, batch, batch_idx):
            if not self.trainer.sanity_checking:
                raise KeyError

    t = start([EMA("2ba")], image_net())
    with pytest.raises(KeyError):
        fit(Fails(t.model), LoopAdapterCallback(t))

    average = t.state.averages["EMA"]
    assert same([t.model[0].weight], [average["0.weight"]])  # as after any training
    t.state = t.weights.remove(t.state)
    assert not same([t.model[0].weight], [average["0.weight"]])
    assert torch.is_grad_enabled()


def test_rejects_manual_optimization():
    t = start([GradientClipping("norm", 1.0)], image_net())
    module = Plain(t.model)
    module.automatic_optimization = False

    with pytest.raises(ValueError, match="automatic_optimization=False is not supported"):
        fit(module, LoopAdapterCallback(t))


def test_rejects_accumulation_that_changes():
    t = start([GradientClipping("norm", 1.0)], image_net())

    with pytest.raises(ValueError, match="accumulate_grad_batches=2 must not change"):
        fit(Plain(t.model), LoopAdapterCallback(t), GradientAccumulationScheduler({1: 2}))


def test_averages_of_bfloat16_weights_are_kept_in_float32():
    t = start([EMA("2ba")], dense_net())
    fit(Plain(t.model), LoopAdapterCallback(t), precision="bf16-true", limit_val_batches=0)

    assert {x.dtype for x in weights(t.model).values()} == {torch.bfloat16}
    assert {x.dtype for x in t.state.averages["EMA"].values()} == {torch.float32}


class Scored(Composed):
    """Logs what its evaluation measures."""

    def validation_step(self, batch, batch_idx):
        outputs = self.net(batch[0])
        self.seen.append(outputs)
        self.log("score", cross_entropy(outputs, batch[1]))


QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def score_of(net):
    net = copy.deepcopy(net).eval()
    with torch.no_grad():
        sizes, losses = zip(
            *((len(y), cross_entropy(net(x), y) * len(y)) for x, y in loader()), strict=True
        )
    return (sum(losses) / sum(sizes)).item()


@pytest.mark.parametrize("weights_only", [False, True])
def test_every_file_has_the_weights_that_were_scored(weights_only, tmp_path):
    t = start([EMA("2ba")], image_net())
    module = Scored(t)
    saver = ModelCheckpoint(
        tmp_path, "{epoch}", monitor="score", mode="max", save_weights_only=weights_only
    )
    options = {**QUIET, "enable_checkpointing": True, "callbacks": [saver], "max_epochs": 2}
    trainer = L.Trainer(**options)
    trainer.fit(module, loader(), loader())

    best = torch.load(saver.best_model_path)
    fresh = Scored(start([EMA("2ba")], image_net()))
    fresh.load_state_dict(best["state_dict"])
    assert score_of(fresh.net) == pytest.approx(saver.best_model_score.item())
    assert (TRAINING_WEIGHTS in best) is not weights_only
    assert score_of(module.net) == pytest.approx(trainer.callback_metrics["score"].item())


def test_file_of_the_callback_alone_continues_the_training(tmp_path):
    def build(**options):
        t = start([EMA("2ba")], image_net())
        return t, Plain(t.model), {"callbacks": [LoopAdapterCallback(t)], **QUIET, **options}

    whole, module, options = build(max_epochs=3)
    L.Trainer(**options).fit(module, loader(), loader())
    first, module, options = build(max_epochs=1)
    trainer = L.Trainer(**options)
    trainer.fit(module, loader(), loader())
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    saved = torch.load(tmp_path / "run.ckpt")
    assert same([saved["state_dict"]["net.0.weight"]], [first.model[0].weight])
    second, module, options = build(max_epochs=3)

    L.Trainer(**options).fit(module, loader(), loader(), ckpt_path=tmp_path / "run.ckpt")

    assert same(weights(second.model), weights(whole.model))
    assert same(weights_of_training(second), weights_of_training(whole))


def weights_of_training(t):
    t.state = t.weights.remove(t.state)
    return weights(t.model)


def test_weights_alone_need_the_mixin(tmp_path):
    t = start([EMA("2ba")], image_net())
    saver = ModelCheckpoint(tmp_path, save_weights_only=True)
    options = {**QUIET, "enable_checkpointing": True, "callbacks": [LoopAdapterCallback(t), saver]}
    options["max_epochs"] = 1

    with pytest.raises(ValueError, match=r"would save the training weights.*LoopAdapterMixin"):
        L.Trainer(**options).fit(Plain(t.model), loader(), loader())
