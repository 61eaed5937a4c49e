"""Liger's kernels: used where they are installed and a device is there, refused otherwise."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from torch import nn

from composable.models import with_liger_kernels
from tests.support.adapters import with_lora
from tests.support.hugging_face import llama
from tests.support.models import same, weights


class FusedNorm(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.weight = norm.weight

    def forward(self, x):
        return x


def fuse(model, rms_norm=True):
    """Change a model in place, as Liger does."""
    if rms_norm:
        model.model.norm = FusedNorm(model.model.norm)


@pytest.fixture
def liger(monkeypatch):
    """Install a stand-in of Liger, which has kernels for Llama."""
    package, inner, patch = (
        ModuleType(f"liger_kernel{name}") for name in ("", ".transformers", ".monkey_patch")
    )
    patch.MODEL_TYPE_TO_APPLY_LIGER_FN = {"llama": fuse}
    package.transformers, inner.monkey_patch = inner, patch
    monkeypatch.setitem(sys.modules, "liger_kernel", package)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", inner)


@pytest.fixture
def device(monkeypatch):
    """Let torch find an accelerator."""
    find(monkeypatch, SimpleNamespace(type="cuda"))


def find(monkeypatch, device):
    found = SimpleNamespace(current_accelerator=lambda check_available: device)
    monkeypatch.setattr("composable.models.liger.accelerator", found)


@pytest.mark.parametrize("build", [llama, with_lora], ids=["itself", "with adapters"])
def test_a_copy_has_the_kernels_and_shares_the_parameters(liger, device, build):
    model = build()

    new = with_liger_kernels(model)

    assert [type(one) for one in new.modules()].count(FusedNorm) == 1
    assert not any(isinstance(one, FusedNorm) for one in model.modules())
    assert same(weights(new), weights(model))
    ours, theirs = dict(new.named_parameters()), dict(model.named_parameters())
    assert all(ours[name] is one for name, one in theirs.items())


def test_kernels_can_be_left_out(liger, device):
    new = with_liger_kernels(llama(), rms_norm=False)

    assert not any(isinstance(one, FusedNorm) for one in new.modules())


def test_a_kernel_that_the_model_does_not_have_is_refused(liger, device):
    with pytest.raises(ValueError, match=r"kernels=\{'rope': False\} .* 'llama': rms_norm"):
        with_liger_kernels(llama(), rope=False)


def test_an_error_within_liger_is_its_own(liger, device, monkeypatch):
    monkeypatch.setitem(
        sys.modules["liger_kernel.transformers"].monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN,
        "llama",
        lambda model: len(0),
    )
    with pytest.raises(TypeError, match="has no len"):
        with_liger_kernels(llama())


def test_a_model_without_kernels_is_refused(liger, device):
    from transformers import GPT2Config, GPT2LMHeadModel

    with pytest.raises(ValueError, match="no kernels for models of type 'gpt2', but for llama"):
        with_liger_kernels(GPT2LMHeadModel(GPT2Config(n_embd=4, n_layer=1, n_head=1)))


@pytest.mark.parametrize("found", [None, SimpleNamespace(type="mps")])
def test_a_machine_without_a_device_is_refused(liger, monkeypatch, found):
    find(monkeypatch, found)

    with pytest.raises(RuntimeError, match=r"need a device of type cuda, .* has (none|one of)"):
        with_liger_kernels(llama())


def test_the_package_to_install_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", None)

    with pytest.raises(ModuleNotFoundError, match=r'pip install "composable\[liger\]"'):
        with_liger_kernels(llama())
