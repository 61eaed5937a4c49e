"""The algorithms in Lightning's Trainer."""

from functools import partial

import lightning.pytorch as L
import pytest
import torch
from torch.nn.functional import cross_entropy

from composable.algorithms import EMA, SWA, GradientClipping
from composable.integrations.external_loop import UnsupportedRequestError
from composable.integrations.lightning import LoopAdapterCallback, LoopAdapterMixin
from composable.utils.reproducibility import seed_step
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
from tests.support.runs import same, weights

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


@pytest.mark.parametrize("name", works_in("Lightning, mixin"))
def test_in_lightning_with_the_mixin(name):
    t = begin(name)
    module = Composed(t, inputs=probe(name))
    fit(module, name=name)
    result = evaluated(t, probe(name))

    assert same(result, ours(name))
    assert acts(name, result)
    assert torch.equal(module.seen[-1], result[-1])  # Lightning evaluated with these weights


@pytest.mark.parametrize("name", works_in("Lightning, callback"))
def test_in_lightning_by_callback(name):
    t = begin(name)
    module = Plain(t.model, inputs=probe(name))
    fit(module, LoopAdapterCallback(t), name=name)
    result = evaluated(t, probe(name))

    assert same(result, ours(name))
    assert acts(name, result)
    assert torch.equal(module.seen[-1], result[-1])


CALLED_WITHOUT = r"acts at \w+, and this loop made a step without t\."


@pytest.mark.parametrize("name", refused_in("Lightning, callback"))
def test_refused_in_lightning_by_callback(name):
    def train():
        t = begin(name)
        module = Plain(t.model, inputs=probe(name), loss_fn=lambda outputs, _: outputs.mean())
        fit(module, LoopAdapterCallback(t), name=name)

    with pytest.raises(RuntimeError, match=f"{CALLED_WITHOUT}|{ASKS}"):
        train()


@pytest.mark.parametrize("name", refused_in("Lightning, mixin"))
def test_refused_in_lightning_with_the_mixin(name):
    with pytest.raises(UnsupportedRequestError, match=ASKS):
        begin(name)


def test_an_average_that_needs_no_batch_works_by_callback():
    early = [SWA(swa_start="1ba", swa_end="1dur", update_interval="1ba")]
    t = start(early, image_net())
    fit(Plain(t.model), LoopAdapterCallback(t))

    assert same(evaluated(t, probe()), ours("", algorithms=early))


def test_with_an_adaptive_optimizer_too():
    adamw = partial(torch.optim.AdamW)
    t = begin(SIX)
    fit(Composed(t, adamw))

    assert same(evaluated(t, probe()), ours(SIX, optimizers=adamw))


def test_the_trainer_counts_the_batches_of_an_epoch():
    t = begin(WITHIN)
    fit(Composed(t))

    assert same(evaluated(t, probe()), ours(WITHIN))


def test_a_test_gets_the_averaged_weights_and_training_its_own():
    t = start([EMA("2ba")], image_net())
    module = Plain(t.model)
    trainer = fit(module, LoopAdapterCallback(t))
    before = weights(t.model)

    trainer.test(module, loader(), verbose=False)

    assert torch.equal(module.seen[-1], evaluated(t, probe())[-1])
    assert same(weights(t.model), before)


def test_after_an_exception_in_an_evaluation_the_weights_are_back():
    class Fails(Plain):
        def validation_step(self, batch, batch_idx):
            if not self.trainer.sanity_checking:
                raise KeyError

    t = start([EMA("2ba")], image_net())
    with pytest.raises(KeyError):
        fit(Fails(t.model), LoopAdapterCallback(t))

    average = t.state.memory["EMA"]["average"]
    assert not same([t.model[0].weight], [average["0.weight"]])
    assert torch.is_grad_enabled()


def test_accumulated_batches_are_refused():
    t = start([GradientClipping("norm", 1.0)], image_net())

    with pytest.raises(ValueError, match="accumulate_grad_batches=2 must be 1"):
        fit(Plain(t.model), LoopAdapterCallback(t), accumulate_grad_batches=2)


def test_manual_optimization_is_refused():
    t = start([GradientClipping("norm", 1.0)], image_net())
    module = Plain(t.model)
    module.automatic_optimization = False

    with pytest.raises(ValueError, match="automatic_optimization=False is not supported"):
        fit(module, LoopAdapterCallback(t))
