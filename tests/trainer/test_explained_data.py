"""Errors about the data of a first run say what to change."""

import re
from functools import partial

import pytest
import torch
from torch import nn

from composable import Trainer
from composable.callbacks import EarlyStopper
from composable.metrics import accuracy

INPUTS = torch.rand(8, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(8) % 3


def fit(batch, loss_fn=nn.functional.cross_entropy, *, model=None, loader=None, **options):
    trainer = Trainer(
        model or nn.Linear(5, 3),
        train_dataloader=loader or [batch],
        loss_fn=loss_fn,
        optimizers=partial(torch.optim.SGD, lr=0.1),
        max_duration="1ep",
        progress_bar=False,
        **options,
    )
    trainer.fit()


def told(error):
    """Return all that an error prints; on Python 3.10 its notes are in its message."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


@pytest.mark.parametrize(
    ("batch", "advice"),
    [
        ((INPUTS, LABELS.float()), r"targets of shape \(8,\) of torch.float32. .* labels.long\(\)"),
        ((INPUTS, LABELS.int()), r"of torch.int32. .* return labels.long\(\)"),
        ((INPUTS, LABELS[:, None]), r"targets of shape \(8, 1\) .* return labels.squeeze\(1\)"),
        ((INPUTS, LABELS + 1), "labels are from 1 to 3, and the model has 3 outputs: number the c"),
        ((INPUTS, LABELS - 1), "labels are from -1 to 1, and the model has 3 outputs"),
        ((INPUTS, LABELS[:7]), r"outputs of shape \(8, 3\) .* and targets of shape \(7,\)"),
        ((INPUTS.double(), LABELS), r"a tensor of torch.float64, and the .* inputs.float\(\)"),
        (
            (INPUTS.half(), LABELS.byte()),
            "a tensor of torch.float16, and the weights are of torch.f",
        ),
        (((255 * INPUTS).byte(), LABELS), "a tensor of uint8, as images are stored"),
        ((INPUTS.numpy(), LABELS.numpy()), r"torch.from_numpy\(array\)"),
        ((INPUTS[:, :4], LABELS), "^mat1 and mat2 shapes cannot be multiplied [^\n]*$"),
    ],
)
def test_an_error_about_the_data_says_what_to_change(batch, advice):
    with pytest.raises((RuntimeError, IndexError, ValueError)) as caught:
        fit(batch)

    assert re.search(advice, told(caught.value))


@pytest.mark.parametrize(
    ("outputs", "targets", "advice"),
    [
        (1, LABELS.float(), r"return labels\[:, None\]\.$"),
        (3, nn.functional.one_hot(LABELS, 3), r"return labels.float\(\)\.$"),
        (3, torch.zeros(8, 2), r"targets of shape \(8, 2\) of torch.float32\.$"),
    ],
)
def test_an_error_of_binary_targets_says_what_to_change(outputs, targets, advice):
    with pytest.raises((RuntimeError, ValueError)) as caught:
        fit((INPUTS, targets), nn.BCEWithLogitsLoss(), model=nn.Linear(5, outputs))

    assert re.search(advice, told(caught.value))


def test_a_result_that_no_evaluator_has_is_named_before_its_mode():
    options = {"eval_dataloader": [(INPUTS, LABELS)], "metrics": {"accuracy": accuracy}}

    with pytest.raises(ValueError, match="monitor='eval/acuracy' must be a result of an evaluat"):
        fit((INPUTS, LABELS), callbacks=EarlyStopper("acuracy"), **options)
    with pytest.raises(ValueError, match="save_best='eval/acuracy' must be a result of an evalua"):
        fit((INPUTS, LABELS), save_best="acuracy", save_folder="unused", **options)


def test_two_tensors_are_no_batches():
    with pytest.raises(ValueError, match=r"a list of one pair, \[\(inputs, targets\)\]"):
        fit((INPUTS, LABELS), loader=(INPUTS, LABELS))


def test_a_loss_of_other_targets_gets_no_advice_on_class_indices():
    with pytest.raises(RuntimeError) as caught:
        fit(
            (INPUTS, torch.zeros(8, 4)),
            lambda outputs, targets: (outputs - targets).square().mean(),
        )

    assert told(caught.value).endswith("targets of shape (8, 4) of torch.float32.")


def test_a_dictionary_of_loaders_is_refused():
    with pytest.raises(TypeError, match="dictionary of 'train', 'test'; pass one of its loaders"):
        Trainer(nn.Linear(5, 3), train_dataloader={"train": [], "test": []})


def test_an_error_of_the_loss_keeps_its_class_and_its_message():
    def loss_fn(outputs, targets):
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine") as caught:
        fit((INPUTS, LABELS), loss_fn)

    assert "return labels" not in told(caught.value)
