"""Training ends when a result gets no better."""

import pytest

from composable import Evaluator, State
from composable.callbacks import EarlyStopper
from composable.core.control import Control
from composable.core.logger import Logger
from composable.core.time import Timestamp
from tests.support.tiny import batches, linear, make_trainer


def replay(stopper, values, *, label="eval", name="loss", start=0, length=3, max_duration="100ep"):
    """Show the results of epochs to a stopper; the epoch after which it asks to stop, if any."""
    logger = Logger()
    state = State(linear(), epoch_length=length, max_duration=max_duration)
    for epoch, value in enumerate(values, start + 1):
        now = Timestamp(epoch=epoch, batch=length * epoch)
        state = state.evolve(timestamp=now)
        stopper.eval_before_all(state, logger)
        state = state.evolve(metrics={**state.metrics, label: {name: value}})
        if stopper.eval_after_all(state, logger) is Control.STOP:
            return epoch
    return None


@pytest.mark.parametrize(
    ("patience", "epoch"), [("1ep", 4), ("2ep", 5), (0, 3), ("3ba", 4), ("4ba", 4), ("0.02dur", 5)]
)
def test_it_stops_at_the_first_evaluation_later_than_the_patience(patience, epoch):
    stopper = EarlyStopper("loss", patience=patience)

    assert replay(stopper, [3.0, 2.0, 2.0, 2.5, 2.0, 2.0]) == epoch
    assert stopper.best == 2.0


def test_a_better_result_begins_the_wait_again():
    assert replay(EarlyStopper("loss"), [3.0, 4.0, 2.0, 2.0, 1.0, 1.0]) is None


@pytest.mark.parametrize(
    ("monitor", "mode", "falling_is_better"),
    [
        ("loss", None, True),
        ("TopError", None, True),
        ("perplexity", None, True),
        ("accuracy", None, False),
        ("loss", "max", False),
        ("accuracy", "min", True),
    ],
)
def test_less_or_more_is_better_by_name_or_as_one_says(monitor, mode, falling_is_better):
    falling = [0.9, 0.8, 0.7, 0.6]

    better = EarlyStopper(monitor, mode=mode)
    worse = EarlyStopper(monitor, mode=mode)

    assert replay(better, falling if falling_is_better else falling[::-1], name=monitor) is None
    assert replay(worse, falling[::-1] if falling_is_better else falling, name=monitor) == 3


def test_a_gain_counts_only_above_min_delta():
    values = [1.0, 0.75, 0.75, 0.75]

    assert replay(EarlyStopper("loss", min_delta=0.25), values) == 3
    assert replay(EarlyStopper("loss", min_delta=0.2), values) == 4


def test_nan_is_never_better():
    nan = float("nan")
    stopper = EarlyStopper("loss")

    assert replay(stopper, [nan, nan, nan]) == 3
    assert stopper.best is None
    assert replay(EarlyStopper("loss"), [nan, 1.0, nan, 0.5]) is None


def test_what_others_evaluate_does_not_count():
    stopper = EarlyStopper("loss", dataloader_label="test")
    logger = Logger()
    state = State(linear(), metrics={"test": {"loss": 1.0}}, epoch_length=3)
    for epoch in range(1, 9):
        state = state.evolve(timestamp=Timestamp(epoch=epoch, batch=3 * epoch))
        stopper.eval_before_all(state, logger)
        state = state.evolve(metrics={**state.metrics, "eval": {"loss": 5.0}})
        assert stopper.eval_after_all(state, logger) is None
    assert stopper.best is None


def test_two_stoppers_know_nothing_of_each_other():
    first, second = EarlyStopper("loss"), EarlyStopper("loss", patience="9ep")

    replay(first, [1.0, 2.0])

    assert first.state_dict() == {"best": 1.0, "since": 3}
    assert second.state_dict() == {"best": None, "since": None}


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_run_that_goes_on_stops_where_the_whole_run_does(cut):
    values = [3.0, 2.0, 2.5, 2.5, 2.5]
    before, after = EarlyStopper("loss", patience="2ep"), EarlyStopper("loss", patience="2ep")

    replay(before, values[:cut])
    after.load_state_dict(before.state_dict())

    assert replay(after, values[cut:], start=cut) == 5


def test_a_state_of_something_else_is_refused():
    with pytest.raises(ValueError, match=r"EarlyStopper was given the state \['window'\]"):
        EarlyStopper("loss").load_state_dict({"window": []})


def test_in_a_run_it_ends_training():
    stopper = EarlyStopper("loss", dataloader_label="test", min_delta=1e9, patience="2ep")
    evaluator = Evaluator("test", batches([4]))

    trainer = make_trainer(eval_dataloader=evaluator, callbacks=stopper, max_duration="9ep")
    state = trainer.fit()

    assert state.timestamp.epoch == 4
    assert stopper.best is not None


def test_another_run_begins_without_what_it_knew():
    stopper = EarlyStopper("loss", min_delta=1e9)
    stopper.load_state_dict({"best": -1e12, "since": 0})

    ends = [
        make_trainer(eval_dataloader=batches([4]), callbacks=stopper, max_duration="9ep")
        .fit()
        .timestamp.epoch
        for _ in range(2)
    ]

    assert ends == [3, 3]


def test_an_unknown_result_is_named_with_those_there_are():
    stopper = EarlyStopper("acuracy", mode="max")

    with pytest.raises(
        ValueError, match=r"monitor='acuracy' must be a result .* one of \['loss'\]"
    ):
        make_trainer(eval_dataloader=batches([4]), callbacks=stopper).fit()


def test_an_evaluator_that_never_ran_is_reported():
    stopper = EarlyStopper("loss", dataloader_label="tset")

    with pytest.warns(UserWarning, match=r"dataloader_label='tset' .* one of \['eval'\]"):
        make_trainer(eval_dataloader=batches([4]), callbacks=stopper).fit()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "less"}, "mode='less' must be 'min', 'max' or None"),
        ({"min_delta": -1.0}, "min_delta=-1.0 must be non-negative"),
        ({"min_delta": float("nan")}, "min_delta=nan must be non-negative"),
        ({"patience": "3 epochs"}, "patience='3 epochs'"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EarlyStopper("loss", **options)
