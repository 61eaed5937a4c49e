"""Running statistics of batch norms for weights that no training step has used."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.testing import assert_close

import composable.functional as F
from tests.support.models import same, seeded


def net(dropout=0.0, **options):
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4, **options),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Flatten(),
            nn.Linear(64, 5),
            nn.BatchNorm1d(5, **options),
        )
    )


def images(*sizes):
    generator = torch.Generator().manual_seed(1)
    return [3 + torch.randn(size, 2, 6, 6, generator=generator) for size in sizes]


def used(model):
    for batch in images(4, 4):
        model(batch * 2)
    return model


@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"momentum": 0.5}, {"affine": False}])
@pytest.mark.parametrize("ghost", [False, True])
def test_matches_update_bn_of_torch(options, ghost, still_generators):
    theirs = used(net(**options))
    theirs = F.ghost_batchnorm(theirs, ghost_batch_size=4) if ghost else theirs
    ours = F.recompute_batch_norm_statistics(theirs, images(8, 8, 5))

    update_bn(images(8, 8, 5), theirs)

    assert_close(dict(ours.state_dict()), dict(theirs.state_dict()))


class Views(nn.Module):
    """Two views of each batch, normalised one after the other, and a norm for large batches."""

    def __init__(self):
        super().__init__()
        self.norm, self.rare = nn.BatchNorm2d(2), nn.BatchNorm2d(2)

    def forward(self, x):
        y = self.norm(x) + self.norm(3 * x + 5)
        return self.rare(y) if len(x) > 5 else y


def test_layer_used_repeatedly_or_not_in_each_batch_has_its_own_mean():
    theirs = Views()
    ours = F.recompute_batch_norm_statistics(theirs, images(5, 8, 7))
    later = F.recompute_batch_norm_statistics(theirs, images(5, 8))
    later = F.recompute_batch_norm_statistics(later, images(5, 8, 7)[2:], seen=2)

    update_bn(images(5, 8, 7), theirs)

    assert_close(dict(ours.state_dict()), dict(theirs.state_dict()))
    assert_close(later.norm.running_var, theirs.norm.running_var)


@pytest.mark.parametrize("seen", [0, 2])
def test_frozen_layer_keeps_its_statistics(seen):
    model = used(net())
    model[1].eval()

    new = F.recompute_batch_norm_statistics(model, images(8, 8), seen=seen)

    assert_close(dict(new[1].named_buffers()), dict(model[1].named_buffers()), rtol=0, atol=0)
    assert not torch.equal(new[6].running_mean, model[6].running_mean)
    whole = F.recompute_batch_norm_statistics(model.eval(), images(8, 8), seen=seen)
    assert not torch.equal(whole[1].running_mean, model[1].running_mean)


def test_batches_can_be_given_one_by_one():
    whole = F.recompute_batch_norm_statistics(used(net()), images(8, 8, 5))

    model = used(net())
    for i, batch in enumerate(images(8, 8, 5)):
        model = F.recompute_batch_norm_statistics(model, [batch], seen=i)

    assert all(map(torch.equal, model.state_dict().values(), whole.state_dict().values()))


def test_modes_momenta_and_the_original_are_not_modified(still_generators):
    model = used(net(dropout=0.9).eval()).train()
    model[0].eval()
    before = copy.deepcopy(model.state_dict())

    new = F.recompute_batch_norm_statistics(model, images(8))

    assert all(map(torch.equal, model.state_dict().values(), before.values()))
    assert [m.training for m in new.modules()] == [m.training for m in model.modules()]
    assert new[1].momentum == new[6].momentum == 0.1
    assert new[0].weight is model[0].weight
    assert not new[1].running_mean.requires_grad
    without = F.recompute_batch_norm_statistics(used(net()), images(8))  # dropout is disabled
    assert torch.equal(without[6].running_mean, new[6].running_mean)


def test_statistics_load_into_another_model_and_are_reset():
    source, target, fresh = used(net()), net(), F.batch_norm_statistics(net())
    initial = F.batch_norm_statistics(target)

    new = F.with_tensors(target, F.batch_norm_statistics(source))
    reset = F.reset_batch_norm_statistics(new)
    target(images(4)[0])

    assert len(fresh) == 6
    assert same(initial, fresh)  # they are copies
    assert same(F.batch_norm_statistics(new), F.batch_norm_statistics(source))
    assert same(F.batch_norm_statistics(reset), fresh)
    assert reset[0].weight is new[0].weight is target[0].weight


def test_layers_without_statistics_are_not_modified():
    model = nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False), nn.LayerNorm(2))

    new = F.recompute_batch_norm_statistics(model, [torch.randn(4, 2)])

    assert F.batch_norm_statistics(model) == F.batch_norm_statistics(new) == {}
