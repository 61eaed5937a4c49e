"""Adapters that a loop uses wrongly: refused before the first step, not trained without methods."""

import lightning.pytorch as L
import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from composable.algorithms import EMA, BlurPool, GradientClipping
from composable.integrations import huggingface, lightning
from tests.integrations import table, test_huggingface
from tests.integrations.table import SGD, loader, start

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
]


class PlainModule(L.LightningModule):
    """A module with a loss of its own."""

    def __init__(self, adapter, net):
        super().__init__()
        self.adapter, self.net = adapter, net

    def training_step(self, batch, batch_idx):
        return cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return SGD(self.net.parameters())


class PlainTrainer(transformers.Trainer):
    """A trainer with a loss of its own."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs).loss


CASES = [
    (lightning.LoopAdapterMixin, L.LightningModule, PlainModule, "training_step"),
    (huggingface.LoopAdapterMixin, transformers.Trainer, PlainTrainer, "compute_loss"),
]


@pytest.mark.parametrize(("mixin", "base", "plain", "method"), CASES)
def test_rejects_mixin_after_the_class(mixin, base, plain, method):
    for kind in (base, plain):
        with pytest.raises(TypeError, match=f"Wrong must have {mixin.__name__} before"):
            type("Wrong", (kind, mixin), {})


@pytest.mark.parametrize(("mixin", "base", "plain", "method"), CASES)
def test_rejects_loss_that_the_mixin_would_hide(mixin, base, plain, method):
    with pytest.raises(TypeError, match=rf"hides {plain.__name__}\.{method}"):
        type("Wrong", (mixin, plain), {})

    for body in ({method: getattr(mixin, method)}, {method: getattr(plain, method)}):
        kind = type("Right", (mixin, plain), body)
        assert getattr(type("Subclass", (kind,), {}), method) is body[method]


def fit(module, *callbacks):
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader())


def blurred(**options):
    """Return a model and its adapter, whose model has other modules and the same parameters."""
    model = table.image_net()
    return model, start([BlurPool(min_channels=0)], model, **options)


def test_lightning_rejects_the_model_before_surgery():
    net, t = blurred()

    with pytest.raises(ValueError, match=r"PlainModule has no module of t\.model"):
        fit(PlainModule(t, net), lightning.LoopAdapterCallback(t))


def test_lightning_rejects_mixin_without_its_callback():
    class Module(lightning.LoopAdapterMixin, L.LightningModule):
        def __init__(self, adapter):
            super().__init__()
            self.adapter, self.net = adapter, adapter.model

        def configure_callbacks(self):
            return []

        configure_optimizers = PlainModule.configure_optimizers

    with pytest.raises(RuntimeError, match=r"without LoopAdapterCallback, as by Lightning's Tuner"):
        fit(Module(start([EMA("2ba")], table.image_net())))


def test_lightning_rejects_two_callbacks():
    class Another(lightning.LoopAdapterCallback):
        state_key = "another"

    t = start([GradientClipping("norm", 1.0)], table.image_net())

    with pytest.raises(RuntimeError, match=r"before_step\(\) was called twice"):
        fit(PlainModule(t, t.model), lightning.LoopAdapterCallback(t), Another(t))


def hugging_face(kind, model, t, folder, **options):
    return kind(
        model,
        args=test_huggingface.arguments(folder, **options.pop("arguments", {})),
        train_dataset=test_huggingface.Examples(),
        optimizers=(SGD(model.parameters()), None),
        **options,
    )


class Composed(huggingface.LoopAdapterMixin, transformers.Trainer):
    """A trainer with transforms."""


@pytest.mark.parametrize("mixin", [True, False])
def test_hugging_face_rejects_the_model_before_surgery(mixin, tmp_path):
    model = test_huggingface.resnet()
    t = start([BlurPool(min_channels=0)], model, **test_huggingface.KEYS)
    kind = Composed if mixin else transformers.Trainer
    options = {"adapter": t} if mixin else {"callbacks": [huggingface.LoopAdapterCallback(t)]}
    made = hugging_face(kind, model.model, t, tmp_path, **options)

    with pytest.raises(ValueError, match=r"has no module of t\.model"):
        made.train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compute_loss_func": cross_entropy}, "compute_loss_func=.* must be None"),
        ({"arguments": {"label_smoothing_factor": 0.1}}, "label_smoothing_factor=0.1 must be 0"),
    ],
)
def test_hugging_face_rejects_a_second_loss(options, message, tmp_path):
    t = start([EMA("2ba")], test_huggingface.resnet(), **test_huggingface.KEYS)

    with pytest.raises(ValueError, match=message):
        hugging_face(Composed, t.model.model, t, tmp_path, adapter=t, **options)


@pytest.mark.parametrize("part", [lambda model: model, lambda model: model[:3]])
def test_own_loop_rejects_the_model_before_surgery(part):
    model = table.image_net()
    optimizer = SGD(model.parameters())
    t = start([BlurPool(min_channels=0)], model, optimizer=optimizer)

    def train():
        for inputs, _ in t.epoch(loader()):
            t.loss(part(model)(inputs))

    with pytest.raises(RuntimeError, match=r"calls \w+ of the model that was passed to adapt_loop"):
        train()

    model(torch.zeros(1, 2, 8, 8))  # outside of the loop


def test_own_loop_accepts_the_model_before_surgery_without_gradients():
    model = table.image_net()
    optimizer = SGD(model.parameters())
    t = start([BlurPool(min_channels=0)], model, optimizer=optimizer)

    for inputs, _ in t.epoch(loader()):
        with torch.no_grad():
            model(inputs)
        t.loss(t.model(inputs)).backward()
        optimizer.step()
