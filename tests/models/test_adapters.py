"""Models with a loss, `validate` and `metrics` of their own; auxiliary outputs and detection."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable import SplitLossError
from composable.algorithms import EMA, LabelSmoothing, MixUp
from composable.metrics import accuracy
from composable.models import AuxiliaryLoss, Classifier, Detector
from tests.support.data import batches
from tests.support.models import conv_net, linear, seeded, weights
from tests.support.runs import make_trainer

LOADER = batches([4, 4, 1])


# --- the protocol of a model with a loss of its own ---


class Own(nn.Module):
    """A model whose evaluation differs from its forward pass."""

    def __init__(self):
        super().__init__()
        self.module = linear()
        self.modes = []

    def forward(self, batch):
        return self.module(batch[0])

    def loss(self, outputs, batch):
        return cross_entropy(outputs, batch[1])

    def validate(self, batch):
        self.modes.append((self.training, torch.is_grad_enabled()))
        return self.module(batch[0] * 0), batch[1] * 0

    def metrics(self, train):
        return {"train" if train else "zeros": lambda outputs, targets: (targets == 0).float()}


def test_evaluation_uses_validate_and_metrics_of_the_model():
    model = Own()
    trainer = make_trainer(model, LOADER, loss_fn=None, eval_dataloader=LOADER, max_duration="1ep")

    results = trainer.fit().metrics["eval"]

    zeros = [(inputs * 0, targets) for inputs, targets in LOADER]
    outputs, targets = (
        torch.cat(part) for part in zip(*[(model.module(x), y) for x, y in zeros], strict=True)
    )
    assert results == pytest.approx({"loss": cross_entropy(outputs, targets).item(), "zeros": 1.0})
    assert model.modes == [(False, False)] * 3


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"metrics": {"accuracy": accuracy}}, {"loss", "accuracy"}),
        ({"loss_fn": lambda outputs, targets: outputs.sum()}, {"loss"}),
    ],
)
def test_given_metrics_and_a_given_loss_replace_those_of_the_model(options, names):
    class Both(Own):
        def forward(self, batch):
            return self.module(batch if isinstance(batch, torch.Tensor) else batch[0])

    results = make_trainer(Both(), **{"loss_fn": None, **options}).eval(LOADER)["eval"]

    assert set(results) == names


def test_metrics_that_are_a_submodule_of_the_model_are_not_called():
    class Holder(nn.Module):
        forward, loss = Own.forward, Own.loss

        def __init__(self):
            super().__init__()
            self.module, self.metrics = linear(), nn.ModuleDict()

    model = Holder()

    assert set(make_trainer(model, loss_fn=None).eval(LOADER)["eval"]) == {"loss"}


def test_validate_runs_with_the_averaged_weights():
    options = {"loss_fn": None, "eval_dataloader": LOADER, "algorithms": EMA("1ba")}
    trainer = make_trainer(Classifier(linear()), LOADER, **options)

    results = trainer.fit().metrics["eval"]

    plain = make_trainer(linear(), LOADER, **{**options, "loss_fn": cross_entropy})
    assert results["loss"] == plain.fit().metrics["eval"]["loss"]


# --- Classifier ---


@pytest.mark.parametrize("algorithms", [(), [MixUp(), LabelSmoothing()]])
def test_classifier_trains_like_its_module_with_a_loss(algorithms):
    options = {"algorithms": algorithms, "eval_dataloader": LOADER, "grad_accum": 2}
    plain = make_trainer(linear(), LOADER, **options, metrics={"accuracy": accuracy}).fit()

    found = make_trainer(Classifier(linear()), LOADER, loss_fn=None, **options).fit()

    assert_close(weights(found.model.module), weights(plain.model))
    assert found.metrics["eval"] == pytest.approx(dict(plain.metrics["eval"]))


def test_classifier_reads_the_parts_of_a_batch_by_their_names():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, left, right):
            return self.scale * left * right

    pairs = [{"left": x, "right": x + 1, "label": torch.zeros(len(x)).long()} for x, _ in LOADER]
    keys = {"input_key": ("left", "right"), "target_key": "label"}
    plain = make_trainer(Product(), pairs, **keys).fit()

    found = make_trainer(Classifier(Product(), **keys), pairs, loss_fn=None, grad_accum=2).fit()

    assert_close(found.model.module.scale, plain.model.scale)
    assert found.timestamp.sample == 18


def test_outputs_without_an_auxiliary_part_are_refused():
    with pytest.raises(TypeError, match="outputs must be a tensor, a tuple"):
        AuxiliaryLoss(cross_entropy)(None, None)


# --- several inputs and targets in the Trainer ---


class Sum(nn.Module):
    """A model of two inputs and two outputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = linear(), linear(1)

    def forward(self, left, right):
        return self.first(left), self.second(right)


def both(outputs, targets):
    return cross_entropy(outputs[0], targets[0]) + cross_entropy(outputs[1], targets[1])


@pytest.mark.parametrize("grad_accum", [None, 2])
@pytest.mark.parametrize("kind", [tuple, dict])
def test_several_inputs_are_arguments_and_several_targets_are_a_tuple(kind, grad_accum):
    parts = [(x, x.flip(0), y, y.flip(0)) for x, y in LOADER]
    inputs, targets = (0, 1), (2, -1)
    if kind is dict:
        parts = [dict(zip("abcd", part, strict=True)) for part in parts]
        inputs, targets = ("a", "b"), ("c", "d")
    model = seeded(Sum)
    expected = both(model(*[x for x, _ in [LOADER[0]] * 2]), (LOADER[0][1], LOADER[0][1]))

    trainer = make_trainer(
        model, parts, loss_fn=both, input_key=inputs, target_key=targets, grad_accum=grad_accum
    )
    state = trainer.fit(duration="1ba")

    assert state.loss.item() == pytest.approx(expected.item())
    assert state.timestamp.sample == 4


# --- auxiliary outputs ---

GoogLeNetOutputs = namedtuple("GoogLeNetOutputs", ["logits", "aux_logits2", "aux_logits1"])


class Auxiliary(nn.Module):
    """A stand-in for a model of torchvision with auxiliary outputs."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.main, self.aux = (
            kind,
            conv_net(one_by_one=True),
            conv_net(seed=1, one_by_one=True),
        )

    def forward(self, x):
        if self.kind is OrderedDict:
            return OrderedDict(out=self.main(x), aux=self.aux(x))
        return GoogLeNetOutputs(self.main(x), self.aux(x), None) if self.training else self.main(x)


@pytest.mark.parametrize("grad_accum", [None, 2])
@pytest.mark.parametrize("kind", [OrderedDict, GoogLeNetOutputs])
def test_auxiliary_outputs_count_in_training_only(kind, grad_accum):
    loader = batches(8, images=True)
    inputs, targets = loader[0]
    model = Auxiliary(kind)
    main, aux = (cross_entropy(part(inputs), targets).item() for part in (model.main, model.aux))
    metrics = {"accuracy": lambda outputs, y: accuracy(outputs["out"], y)}
    trainer = make_trainer(
        model,
        loader,
        loss_fn=AuxiliaryLoss(cross_entropy, 0.5),
        grad_accum=grad_accum,
        metrics=metrics if kind is OrderedDict else {"accuracy": accuracy},
    )

    assert trainer.eval([loader[0]])["eval"]["loss"] == pytest.approx(main)
    assert trainer.fit(duration="1ba").loss.item() == pytest.approx(main + 0.5 * aux)


def test_error_of_a_loss_of_one_tensor_names_the_cure():
    trainer = make_trainer(Auxiliary(OrderedDict), batches(8, images=True))

    with pytest.raises(TypeError) as caught:
        trainer.fit()

    assert "OrderedDict; pass a loss_fn that reads" in "".join(caught.value.__notes__)


# --- detection ---


class Boxes(nn.Module):
    """A stand-in for a detection model of torchvision."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images, targets=None):
        if self.training:
            errors = [
                (image.mean() * self.scale - t["size"])
                for image, t in zip(images, targets, strict=True)
            ]
            return {"box": torch.stack(errors).square().mean(), "label": self.scale.square()}
        return [{"boxes": image.mean() * self.scale} for image in images]


class Found:
    def reset(self):
        self.count = 0

    def update(self, detections, targets):
        assert (set(detections[0]), set(targets[0])) == ({"boxes"}, {"size"})
        self.count += len(detections)

    def compute(self):
        return {"images": self.count}


IMAGES = [torch.ones(3, 4, 4), torch.ones(3, 2, 5) * 2]
DETECTION = [(IMAGES, [{"size": torch.tensor(0.5)}, {"size": torch.tensor(1.0)}])]


def test_detector_trains_on_the_sum_of_its_losses_and_evaluates_detections():
    model = Detector(Boxes(), {"found": Found()}, weights={"label": 2.0})
    trainer = make_trainer(
        model, DETECTION, loss_fn=None, eval_dataloader=DETECTION, max_duration="1ba"
    )

    state = trainer.fit()

    assert state.loss.item() == pytest.approx((0.5**2 + 1.0**2) / 2 + 2.0)
    assert state.metrics["eval"] == {"found/images": 2}
    assert state.timestamp.sample == 2


def test_microbatches_of_detections_add_up_to_the_batch():
    whole, split = (
        make_trainer(Detector(Boxes()), DETECTION, loss_fn=None, max_duration="1ba", **options)
        for options in ({}, {"grad_accum": 2, "loss_mean_over": "examples"})
    )

    assert_close(split.fit().model.module.scale, whole.fit().model.module.scale)


class OwnDetector(Detector):
    """A wrapper whose loss is defined in training mode only."""

    def loss(self, outputs, batch):
        return sum(outputs.values())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Detector, "the loss of Detector is None in evaluation mode"),
        (OwnDetector, r"the loss of OwnDetector fails in evaluation mode.*no attribute 'values'"),
    ],
)
def test_detections_are_split_only_if_that_is_declared(kind, message):
    with pytest.raises(SplitLossError, match=message):
        make_trainer(kind(Boxes()), DETECTION, loss_fn=None, grad_accum=2).fit()


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (Detector(Boxes(), weights={"mask": 1.0}), ValueError, r"weights has \['mask'\]"),
        (Detector(nn.Identity()), TypeError, "Identity"),
    ],
)
def test_rejects_other_losses(model, error, message):
    with pytest.raises(error, match=message):
        model.loss(model.module(*DETECTION[0]) if error is ValueError else None, DETECTION[0])
