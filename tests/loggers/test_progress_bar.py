"""A bar that shows how far training is."""

import io
import re

import pytest
import torch

from composable.loggers import ProgressBarLogger
from composable.metrics import accuracy
from composable.testing import NoSync
from tests.support.tiny import as_on_a_gpu, batches, make_trainer


def drawn(refresh_seconds=0, **changes):
    stream = io.StringIO()
    bar = ProgressBarLogger(stream=stream, refresh_seconds=refresh_seconds)
    make_trainer(loggers=[bar], **changes).fit()
    return stream.getvalue()


def test_it_shows_what_is_done_the_time_left_the_loss_and_the_last_evaluation():
    text = drawn(eval_dataloader=batches([4]), metrics={"accuracy": accuracy})
    last = text.rstrip().split("\r")[-1]

    assert re.search(r"100%\|.*\| 6/6 ba \[\d\d:\d\d<\d\d:\d\d", last)
    assert re.search(r"loss/train=[\d.]+", last)
    assert re.search(r"eval/loss=[\d.]+", last)
    assert re.search(r"eval/accuracy=[\d.]+", last)


@pytest.mark.parametrize(
    ("max_duration", "end"),
    [("2ep", "6/6 ba"), ("4ba", "4/4 ba"), ("24sp", "24/24 sp")],
)
def test_it_counts_in_the_unit_of_the_run(max_duration, end):
    assert end in drawn(max_duration=max_duration)


def test_a_loader_without_a_length_is_counted_in_epochs():
    class Stream:
        def __iter__(self):
            return iter(batches())

    assert "2/2 ep" in drawn(train_dataloader=Stream())


def test_it_draws_at_the_start_and_at_the_end_even_of_a_short_run():
    text = drawn(refresh_seconds=1000)

    frames = re.findall(r"\d/6 ba", text)
    assert frames[0] == "0/6 ba"
    assert frames[-1] == "6/6 ba"
    assert len(frames) <= 3


def test_it_draws_each_batch_where_it_may():
    assert {f"{i}/6 ba" for i in range(7)} <= set(re.findall(r"\d/6 ba", drawn()))


def test_numbers_are_read_only_to_be_drawn():
    stream = io.StringIO()
    bar = ProgressBarLogger(stream=stream, refresh_seconds=1000)

    def leave_before_the_last_drawing(event, state, logger):
        if event.value == "batch_end" and state.timestamp.batch == 5:
            raise KeyboardInterrupt

    trainer = make_trainer(loggers=[bar], callbacks=[leave_before_the_last_drawing])
    with NoSync(), pytest.raises(KeyboardInterrupt):
        as_on_a_gpu(trainer).fit()


def test_a_second_fit_goes_on_from_where_the_first_ended():
    stream = io.StringIO()
    bar = ProgressBarLogger(stream=stream, refresh_seconds=0)
    trainer = make_trainer(loggers=[bar], max_duration="1ep")
    trainer.fit()
    trainer.fit(duration="1ep")

    first, second = stream.getvalue().rstrip("\n").split("\n")
    assert "3/3 ba" in first
    assert "3/6 ba" in second
    assert "6/6 ba" in second


def test_the_trainer_shows_one_on_standard_error_unless_told_not_to(capsys):
    make_trainer(progress_bar=True).fit()
    assert "6/6 ba" in capsys.readouterr().err

    make_trainer(progress_bar=False).fit()
    assert capsys.readouterr() == ("", "")


def test_evaluation_and_prediction_alone_draw_nothing(capsys):
    trainer = make_trainer(progress_bar=True)
    trainer.eval(batches([4]))
    trainer.predict(batches([4]))

    assert capsys.readouterr() == ("", "")


def test_a_loss_that_is_not_a_number_is_shown():
    def poison(event, state):
        if event.value == "after_loss":
            return state.evolve(loss=state.loss * torch.nan)
        return state

    assert "loss/train=nan" in drawn(algorithms=[poison], nonfinite_loss="ignore")


def test_the_bar_of_a_second_fit_does_not_show_the_evaluation_of_the_first():
    stream = io.StringIO()
    trainer = make_trainer(
        loggers=[ProgressBarLogger(stream=stream, refresh_seconds=0)],
        eval_dataloader=batches([4]),
        max_duration="1ep",
    )
    trainer.fit()
    assert "eval/loss" in stream.getvalue()
    stream.truncate(0)
    trainer.fit(duration="2ba")

    first = [one for one in stream.getvalue().split("\r") if "4/5" in one]
    assert first
    assert not any("eval/loss" in one for one in first)


def test_a_bar_remembers_nothing_since_the_run_says_where_it_stands():
    stream = io.StringIO()
    bar = ProgressBarLogger(stream=stream, refresh_seconds=0)
    trainer = make_trainer(max_duration=None)
    trainer.fit(duration="4ba")
    trainer.add_callback(bar)
    trainer.fit(duration="2ba")

    assert bar.state_dict() == {}
    assert "4/6 ba" in stream.getvalue()
    assert "3/6 ba" not in stream.getvalue()
