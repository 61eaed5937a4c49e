"""ColOut in the loop does what the function does, with the generator of its name and step."""

import pytest
import torch
from torch import nn

from composable import Event, Key
from composable.algorithms import ColOut
from composable.functional import colout
from tests.helpers import CLASSES, Watch, batches, make_trainer, seeded


def images():
    return [(x.reshape(-1, 1, 8, 12), y) for x, y in batches(features=96)]


def model():
    return seeded(
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, CLASSES))
    )


def watched(data, event=Event.BATCH_START, net=None, options=None, **changes):
    watch = Watch(event, read=lambda s: s.batch)
    defaults = {"train_dataloader": data, "max_duration": "1ep"}
    algorithms = [ColOut(**(options or {}))]
    make_trainer(
        net or model(), algorithms=algorithms, callbacks=[watch], **{**defaults, **changes}
    ).fit()
    return watch.values


@pytest.mark.parametrize("options", [{}, {"p_row": 0.5, "p_col": 0.0}])
def test_the_inputs_are_those_of_the_function(options):
    seen = watched(images(), options=options)

    for step, ((x, y), (inputs, targets)) in enumerate(zip(seen, images(), strict=True)):
        generator = Key(17).fold("ColOut", step).generator()
        assert torch.equal(x, colout(inputs, **options, generator=generator).inputs)
        assert torch.equal(y, targets)
        assert x.shape[2:] != inputs.shape[2:]


def test_maps_of_targets_stay_in_line():
    data = [(x, (x[:, 0] > 0).long()) for x, _ in images()]

    for x, y in watched(data, net=seeded(lambda: nn.Conv2d(1, 2, 3, padding=1))):
        assert x.shape == (4, 1, 7, 10)
        assert torch.equal(y, (x[:, 0] > 0).long())


def test_targets_that_are_no_tensor_stay():
    data = [(x, {"label": y}) for x, y in images()]

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets["label"])

    for (x, y), (_, before) in zip(watched(data, loss_fn=loss), data, strict=True):
        assert x.shape == (4, 1, 7, 10)
        assert y is before


def test_leaving_out_nothing_changes_nothing():
    seen = watched(images(), options={"p_row": 0, "p_col": 0})

    assert all(torch.equal(x, inputs) for (x, _), (inputs, _) in zip(seen, images(), strict=True))


def test_evaluation_sees_the_examples_as_they_are():
    data = images()
    for x, _ in watched(data, Event.EVAL_BEFORE_FORWARD, eval_dataloader=data):
        assert any(x is inputs for inputs, _ in data)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"p_row": 1}, ValueError, r"p_row=1 must be in \[0, 1\)"),
        ({"p_col": -0.1}, ValueError, r"p_col=-0.1 must be in \[0, 1\)"),
        ({"p_col": "a"}, TypeError, "p_col='a' must be a number"),
    ],
)
def test_hyperparameters_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        ColOut(**options)


def test_an_algorithm_is_a_frozen_value():
    assert ColOut(0.2) == ColOut(p_row=0.2)
    assert repr(ColOut()) == "ColOut(p_row=0.15, p_col=0.15)"
