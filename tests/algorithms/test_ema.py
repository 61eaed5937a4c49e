"""EMA in the loop does what the function does, at each interval."""

import pytest
import torch
from torch import nn

from composable import Event, IdleAlgorithmWarning
from composable.algorithms import EMA
from composable.functional import ema, ema_smoothing
from tests.support.tiny import CLASSES, Watch, batches, make_trainer, same, seeded, weights


def averages(algorithm, **changes):
    """Return the weights after each batch and epoch, and the last average."""
    after = Watch(Event.BATCH_END, Event.EPOCH_END, read=lambda s: (s.timestamp, weights(s.model)))
    trainer = make_trainer(algorithms=[algorithm], callbacks=[after], **changes)
    state = trainer.fit()
    by_event = {e: [w for f, (_, w) in after.seen if f is e] for e, _ in after.seen}
    average = state.memory[algorithm.name]["average"]
    return by_event[Event.BATCH_END], by_event[Event.EPOCH_END], average


def expected(seen, smoothing):
    average = seen[0]
    for current in seen[1:]:
        average = ema(average, current, smoothing=smoothing)
    return average


def test_it_averages_after_every_batch():
    batches_seen, _, average = averages(EMA(half_life="2ba"))

    assert len(batches_seen) == 6
    assert same(average, expected(batches_seen, 2**-0.5))


def test_a_smoothing_may_be_given_instead_of_a_half_life():
    batches_seen, _, average = averages(EMA(half_life=None, smoothing=0.75))

    assert same(average, expected(batches_seen, 0.75))


def test_an_interval_skips_updates_and_keeps_the_half_life():
    batches_seen, _, average = averages(EMA(half_life="4ba", update_interval="2ba"))

    assert same(average, expected(batches_seen[1::2], ema_smoothing(4, 2)))


def test_a_half_life_in_epochs_averages_after_every_epoch():
    _, epochs_seen, average = averages(EMA(half_life="1ep"), max_duration="3ep")

    assert len(epochs_seen) == 3
    assert same(average, expected(epochs_seen, 0.5))


@pytest.mark.parametrize("start", ["0.5dur", "3ba", "1ep", "12sp"])
def test_averaging_starts_when_it_is_told(start):
    batches_seen, _, average = averages(EMA(half_life="2ba", ema_start=start))

    assert same(average, expected(batches_seen[2:], 2**-0.5))


def test_no_smoothing_is_the_last_weights():
    batches_seen, _, average = averages(EMA(half_life=None, smoothing=0.0))

    torch.testing.assert_close(average, batches_seen[-1])


def test_full_smoothing_is_the_first_weights():
    batches_seen, _, average = averages(EMA(half_life=None, smoothing=1.0))

    assert same(average, batches_seen[0])


def test_running_statistics_are_averaged_and_counts_are_copied():
    model = seeded(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, CLASSES)))
    batches_seen, _, average = averages(EMA("2ba"), model=model)

    assert same(average, expected(batches_seen, 2**-0.5))
    assert not torch.equal(average["0.running_mean"], batches_seen[-1]["0.running_mean"])
    assert average["0.num_batches_tracked"] == 6


def test_before_it_starts_evaluation_uses_the_weights():
    data = batches([4])
    plain = make_trainer(eval_dataloader=data).fit()
    with pytest.warns(IdleAlgorithmWarning, match="EMA can never act: its window lies outside"):
        trainer = make_trainer(eval_dataloader=data, algorithms=EMA("2ba", ema_start="100ba"))
    late = trainer.fit()

    assert late.metrics["eval"] == plain.metrics["eval"]
    assert "EMA" not in late.memory


def test_an_average_that_does_not_exist_is_an_error():
    algorithm = EMA()

    with pytest.raises(KeyError):
        algorithm.averaged_model(make_trainer(algorithms=[algorithm]).state)
