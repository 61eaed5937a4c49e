"""Real models of timm and torchvision, trained with each surgery: `make vision`.

It writes what changed to docs/evidence/architectures.json, of which docs/models.md has the table:
each architecture with which all methods passed, so that a part can run again (`-k vit_tiny`).
Weights are random, so nothing is downloaded.
"""

import json
import warnings
from collections import Counter
from functools import partial
from importlib import metadata
from math import isfinite
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from torch.nn.functional import cross_entropy

import composable.algorithms as A
from composable import Trainer
from composable.checkpoint import load_weights
from composable.core.algorithm import Stage
from composable.functional import NoEffectWarning
from composable.models import AuxiliaryLoss
from composable.utils.reproducibility import seed_context

RECORD = Path(__file__).parents[2] / "docs/evidence/architectures.json"
SIDE, CLASSES = 64, 5


def of_timm(name, **options):
    return partial(timm.create_model, name, num_classes=CLASSES, **options)


SIZED = partial(of_timm, img_size=SIDE)
ARCHITECTURES = {
    "resnet50": partial(torchvision.models.resnet50, num_classes=CLASSES),
    "resnext50": of_timm("resnext50_32x4d"),
    "densenet121": partial(torchvision.models.densenet121, num_classes=CLASSES),
    "mobilenet_v3": of_timm("mobilenetv3_small_050"),
    "efficientnet_b0": of_timm("efficientnet_b0"),
    "regnet_y": of_timm("regnety_002"),
    "convnext_atto": of_timm("convnext_atto"),
    "vit_tiny": SIZED("vit_tiny_patch16_224"),
    "swin_tiny": SIZED("swin_tiny_patch4_window7_224"),
    "mixer_s": SIZED("mixer_s16_224"),
    "deit_tiny": SIZED("deit_tiny_patch16_224"),
    "deeplabv3": partial(
        torchvision.models.segmentation.deeplabv3_resnet50,
        weights_backbone=None,
        num_classes=CLASSES,
        aux_loss=True,
    ),
    "vit of torchvision": partial(
        torchvision.models.VisionTransformer, SIDE, 16, 3, 3, 48, 96, num_classes=CLASSES
    ),
    "swin of torchvision": partial(
        torchvision.models.SwinTransformer,
        *([4, 4], 24, [2, 2], [2, 4], [4, 4]),
        num_classes=CLASSES,
    ),
}


def images(count=4):
    return torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


OPTIONS = {
    "ActivationCheckpointing": {"every": 2},
    "Alibi": {"max_sequence_length": 64},
    "Factorize": {"min_channels": 128, "min_features": 128},
    "GhostBatchNorm": {"ghost_batch_size": 2},
    "LowPrecisionGroupNorm": {"precision": torch.bfloat16},
    "LowPrecisionLayerNorm": {"precision": torch.bfloat16},
    "StochasticDepth": {"drop_rate": 0.5},
    "WhitenedFirstLayer": {"sample": images},
}
OTHERS = (
    *("ActivationCheckpointing", "Alibi", "ChannelsLast"),
    *("LowPrecisionGroupNorm", "LowPrecisionLayerNorm"),
)
"""Those that run after or before the stage of surgery."""
SURGERIES = sorted(
    name
    for name in A.__all__
    if name in OTHERS or getattr(getattr(A, name), "stage", None) is Stage.SURGERY
)
found = {name: {} for name in ARCHITECTURES}
"""What each surgery changed, or None, by the architecture: of the tests that passed."""


def batches(architecture):
    """Return two batches, of masks for a model of segments."""
    size = (4, SIDE, SIDE) if architecture == "deeplabv3" else (4,)
    return [
        (images() + i, torch.arange(4).reshape(4, *[1] * len(size[1:])).expand(size))
        for i in (0, 1)
    ]


def build(architecture):
    with seed_context(0):
        return ARCHITECTURES[architecture]()


def trainer(model, architecture, surgery, **options):
    return Trainer(
        model,
        train_dataloader=batches(architecture),
        eval_dataloader=batches(architecture)[:1],
        loss_fn=AuxiliaryLoss(cross_entropy, 0.4) if architecture == "deeplabv3" else cross_entropy,
        optimizers=partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
        algorithms=[getattr(A, surgery)(**OPTIONS.get(surgery, {}))],
        max_duration="2ba",
        seed=3,
        progress_bar=False,
        **options,
    )


def described(model):
    """Return the class and the description of each layer."""
    return {name: (type(one).__name__, one.extra_repr()) for name, one in model.named_modules()}


def changes(before, after):
    """Count the layers whose class or description changed, by their class."""
    return Counter(old[0] for name, old in before.items() if after.get(name, old) != old)


def logits(outputs):
    return outputs["out"] if isinstance(outputs, dict) else outputs


@pytest.mark.parametrize("surgery", SURGERIES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_trains_evaluates_resumes_and_exports(architecture, surgery, tmp_path):
    make = partial(trainer, architecture=architecture, surgery=surgery)
    plain = build(architecture)
    before = described(plain)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        whole = make(plain)
    idle = [str(one.message) for one in said if issubclass(one.category, NoEffectWarning)]
    if any("found nothing" in message for message in idle):
        assert "looked for" in idle[0]
        found[architecture][surgery] = None
        return
    changed = dict(changes(before, described(whole.state.model)))

    assert whole.fit().loss.isfinite()
    assert isfinite(whole.eval()["eval"]["loss"])

    first = make(build(architecture))
    first.fit(duration="1ba")
    first.save_checkpoint(tmp_path / "half")
    second = make(build(architecture), load_path=tmp_path / "half")
    second.fit()
    resumed, expected = (one.state.model.state_dict() for one in (second, whole))
    assert resumed.keys() == expected.keys()
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)

    model, loaded, x = whole.state.model.eval(), first.state.model.eval(), images()
    load_weights(loaded, whole.export_weights(tmp_path / "model.safetensors"))
    with torch.no_grad():
        outputs = logits(model(x))
        assert torch.equal(logits(loaded(x)), outputs)
        exported = torch.export.export(model, (x,)).module()
        torch.testing.assert_close(logits(exported(x)), outputs, rtol=1e-3, atol=1e-3)
    found[architecture][surgery] = changed


def test_architectures_that_passed_are_recorded():
    packages = {name: metadata.version(name) for name in ("torch", "torchvision", "timm")}
    old = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    known = old["architectures"] if old.get("packages") == packages else {}
    known |= {name: of for name, of in found.items() if of.keys() == {*SURGERIES}}
    record = {"packages": packages, "architectures": {n: known[n] for n in found if n in known}}
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
