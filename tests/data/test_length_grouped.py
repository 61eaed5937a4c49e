"""Global batches of examples of similar length."""

from itertools import chain

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from composable.data import GlobalBatchSampler, LengthGroupedBatchSampler
from tests.data.loaders import Stream
from tests.support.data import examples
from tests.support.models import mlp, same, weights
from tests.support.runs import make_trainer

LENGTHS = [9, 2, 7, 1, 8, 3, 5, 4, 6, 10, 11]


def batches(lengths=LENGTHS, epoch=0, **options):
    sampler = LengthGroupedBatchSampler(lengths, **{"batch_size": 2, "seed": 17, **options})
    sampler.set_epoch(epoch)
    assert len(sampler) == len(list(sampler))
    return list(sampler)


def test_batches_of_a_window_of_the_whole_epoch_are_those_of_the_sorted_lengths():
    plain = GlobalBatchSampler(11, batch_size=2, seed=17)
    *_, rest = plain

    found = [sorted(LENGTHS[i] for i in batch) for batch in batches()]

    left = sorted(set(LENGTHS) - {LENGTHS[rest[0]]})
    assert sorted(found[:-1]) == [left[i : i + 2] for i in range(0, 10, 2)]
    assert found != sorted(found)
    assert batches()[-1] == rest
    assert len({tuple(map(tuple, batches(epoch=epoch))) for epoch in range(4)}) == 4


def test_incomplete_batch_is_dropped_or_filled_at_random():
    dropped = {
        i
        for epoch in range(99)
        for i in set(range(11)) - set(chain(*batches(epoch=epoch, last_batch="drop")))
    }
    padded = batches(last_batch="pad")

    assert dropped == set(range(11))
    assert [len(batch) for batch in padded] == [2] * 6
    assert set(chain(*padded)) == set(range(11))


def test_without_shuffling_every_epoch_is_the_same():
    assert batches(shuffle=False, epoch=3) == batches(shuffle=False)
    assert sorted(chain(*batches(shuffle=False))) == list(range(11))


@pytest.mark.parametrize("kind", [torch.tensor, tuple, lambda given: torch.tensor(given).half()])
def test_lengths_may_be_of_any_kind(kind):
    assert batches(kind(LENGTHS)) == batches()


def test_the_order_does_not_change_with_the_lengths_of_the_caller():
    lengths = torch.tensor(LENGTHS, dtype=torch.float64, requires_grad=True)
    sampler = LengthGroupedBatchSampler(lengths, batch_size=2, seed=17)
    lengths.detach().zero_()

    assert list(sampler) == batches()


def test_run_resumes_bit_for_bit_in_mid_epoch_with_workers(tmp_path):
    data = list(zip(*examples(11), strict=True))

    def run(workers=0, **options):
        sampler = LengthGroupedBatchSampler(LENGTHS, batch_size=2, seed=5, window=2)
        loader = DataLoader(data, batch_sampler=sampler, num_workers=workers)
        trainer = make_trainer(mlp(), loader, loss_fn=cross_entropy, max_duration="3ep", **options)
        return weights(trainer.fit().model)

    whole = run(save_folder=tmp_path, save_interval="1ba")

    for workers in (0, 2):
        assert same(whole, run(workers, load_path=tmp_path / "ep1-ba9"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"lengths": Stream()}, TypeError, "lengths=Stream is an iterable dataset.*map-style"),
        ({"lengths": 3}, TypeError, "lengths must be a list of numbers"),
        ({"lengths": ["a"]}, TypeError, r"pass the length of each example, \[len"),
        ({"lengths": [[1, 2]]}, TypeError, "lengths must be a list of numbers"),
        ({"lengths": [1.0, float("nan")]}, ValueError, "lengths must be finite"),
        ({"lengths": []}, ValueError, "lengths must not be empty"),
        ({"window": 0}, ValueError, "window=0 must be"),
        ({"batch_size": 3, "world_size": 2}, ValueError, "batch_size=3 must be a multiple"),
        ({"world_size": 2}, ValueError, "has 1 examples for 2 processes"),
    ],
)
def test_invalid_arguments_are_rejected_by_name(change, error, message):
    with pytest.raises(error, match=message):
        LengthGroupedBatchSampler(**{"lengths": LENGTHS, "batch_size": 2, "seed": 17, **change})
