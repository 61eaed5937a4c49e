"""Mixins that a class combines wrongly are refused when the class is defined."""

import lightning.pytorch as L
import pytest
import transformers

from composable.integrations import huggingface, lightning
from tests.integrations import huggingface_loop, lightning_loop

CASES = [
    (lightning.LoopAdapterMixin, L.LightningModule, lightning_loop.Plain, "training_step"),
    (
        huggingface.LoopAdapterMixin,
        transformers.Trainer,
        huggingface_loop.Plain,
        "compute_loss",
    ),
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
