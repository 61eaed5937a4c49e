"""Errors about the data of a first run say what to change."""

import re
from functools import partial

import pytest
import torch
from torch import nn

from composable import Trainer

INPUTS = torch.rand(8, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(8) % 3


def fit(batch, loss_fn=nn.functional.cross_entropy, **options):
    trainer = Trainer(
        nn.Linear(5, 3),
        train_dataloader=[batch],
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
