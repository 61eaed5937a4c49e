"""Losses that are not finite are found later, since the host would wait for each."""

from itertools import count

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable.checkpoint import files
from composable.trainer.guards import NonFiniteLossError
from tests.support.data import batches
from tests.support.runs import make_trainer


def error_of(model=None, bad=None, length=70, **options):
    """Train on batches, of which one may have an input that is NaN, and return the error."""
    data = batches([4] * length)
    if bad is not None:
        data[bad][0][0, 0] = torch.nan
    with pytest.raises(NonFiniteLossError) as caught:
        make_trainer(model, data, device="cuda", max_duration="1ep", **options).fit()
    return str(caught.value)


@pytest.mark.parametrize("batch", [0, 63, 64, 69])
def test_a_nonfinite_loss_is_found_later_with_its_batch(batch):
    assert f"the loss of batch {batch} was" in error_of(bad=batch)


def test_nothing_is_saved_after_a_nonfinite_loss(tmp_path):
    error_of(bad=2, length=8, save_folder=tmp_path, save_interval="1ba")

    whole, _ = files.find(tmp_path)
    assert [found.manifest.batch for found in whole] == [2, 1]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (2, "batch 3 was nan, because of it or of a step before it that made weights NaN. Insp"),
        (63, "batch 64 was nan, because weights of the model were not finite before it, such as"),
    ],
)
def test_a_loss_is_not_blamed_on_its_batch_alone(bad, message):
    calls = count()

    def breaks_weights(outputs, targets):
        loss = cross_entropy(outputs, targets)
        return loss + (outputs * 0).sum().sqrt() if next(calls) == bad else loss

    found = error_of(nn.Linear(4, 3), loss_fn=breaks_weights)
    assert found.startswith(f"the loss of {message}")


def test_weights_that_are_nan_from_the_start_are_named():
    model = nn.Linear(4, 3)
    nn.init.constant_(model.bias, torch.nan)

    assert "when training began, such as 'bias'" in error_of(model)
