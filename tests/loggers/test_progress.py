"""Bars on a terminal, lines of text elsewhere, and the lines of the console."""

import io
import math
import re
import sys

import pytest
import torch

from composable import Evaluator
from composable.loggers import ConsoleLogger, ProgressBarLogger
from composable.loggers import progress_bar as module
from composable.metrics import accuracy
from tests.support.data import batches, stream
from tests.support.runs import make_trainer

EVALUATORS = [Evaluator("eval", batches(8)), Evaluator("other", batches(12))]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Set the width of the terminal, so that all metrics fit."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock by one that advances by a second each time it is read."""
    seconds = iter(range(10**6))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(seconds)))


def frames(out):
    """Return what a terminal showed, without the movements of the cursor."""
    parts = re.split(r"\r|\n|\x1b\[A", out.getvalue())
    return [part.strip() for part in parts if part.strip()]


def trainer(out, style="bar", pause=0, evaluators=EVALUATORS, **options):
    own = {name: options.pop(name) for name in ("bars", "metrics") if name in options}
    bar = ProgressBarLogger(style=style, stream=out, refresh_seconds=pause, **own)
    return make_trainer(loggers=[bar], eval_dataloader=evaluators, **options)


def counts(frames, start):
    """Return the counts of the bars whose description begins like this, without repeats."""
    found = [re.search(r"(\d+(?:/\d+)?) ba", one)[1] for one in frames if one.startswith(start)]
    return list(dict.fromkeys(found))


# --- bars


def test_epoch_in_progress_is_shown():
    out = Terminal()
    trainer(out, evaluators=None, max_duration="3ep").fit()

    shown = [re.match(r"epoch \d/3", one)[0] for one in frames(out)]
    assert list(dict.fromkeys(shown)) == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert frames(out)[-1].startswith("epoch 3/3: 100%|")


@pytest.mark.parametrize(
    ("options", "last"),
    [
        ({"max_duration": "4ba"}, r"epoch 2: 100%\|.*\| 4/4 ba"),
        ({"max_duration": "20sp"}, r"epoch 2: 100%\|.*\| 20/20 sp"),
        ({"max_duration": "24sp"}, r"epoch 2: 100%\|.*\| 24/24 sp"),  # and no third one
        ({"loader": stream(12)}, r"epoch 2/2, batch 6: 100%\|.*\| 2/2 ep"),
    ],
)
def test_a_bar_counts_in_the_unit_of_the_run_and_has_the_epoch_too(options, last):
    out = Terminal()
    trainer(out, evaluators=None, **options).fit()

    assert re.match(last, frames(out)[-1])


def test_a_bar_shows_progress_remaining_time_loss_and_evaluation():
    out = Terminal()
    trainer(out).fit()

    assert re.search(r"100%\|.*\| 6/6 ba \[\d\d:\d\d<\d\d:\d\d", frames(out)[-1])
    for name in ("loss/train", "eval/loss", "other/loss"):
        assert re.search(rf"{name}=[\d.]+", frames(out)[-1])
    assert counts(frames(out), "epoch") == [f"{i}/6" for i in range(7)]


def test_a_bar_of_a_second_fit_starts_at_the_end_of_the_first():
    out = io.StringIO()
    one = trainer(out, bars=["train"], max_duration="1ep")
    one.fit()
    one.fit(duration="2ba")

    first, second = out.getvalue().rstrip("\n").split("\n")
    assert "3/3 ba" in first
    assert "eval/loss" in first
    assert "3/5 ba" in second
    assert "5/5 ba" in second
    assert not any("eval/loss" in frame for frame in second.split("\r") if "4/5" in frame)
    (bar,) = one.plan.destinations
    assert bar.state_dict() == {}  # the state of the run suffices to resume it

    added, late = io.StringIO(), make_trainer(max_duration=None)
    late.fit(duration="4ba")
    late.add_callback(ProgressBarLogger(style="bar", stream=added, refresh_seconds=0))
    late.fit(duration="2ba")
    assert "4/6 ba" in added.getvalue()
    assert "3/6 ba" not in added.getvalue()


def test_a_bar_shows_a_loss_that_is_not_a_number():
    def poison(event, state):
        if event.value == "after_loss":
            return state.evolve(loss=state.loss * torch.nan)
        return state

    out = Terminal()
    trainer(out, evaluators=None, algorithms=[poison], nonfinite_loss="ignore").fit()
    assert "loss/train=nan" in out.getvalue()


def test_evaluation_in_training_has_a_bar_below_that_disappears(clock):
    out = Terminal()
    trainer(out).fit()

    assert counts(frames(out), "eval") == ["1", "2", "3", "1/2", "2/2", "1/3", "2/3", "3/3"]
    assert "\n\reval" in out.getvalue()  # in the line below
    assert frames(out)[-1].startswith("epoch 2/2: 100%")


def test_short_evaluation_has_no_bar():
    out = Terminal()
    trainer(out, pause=1000).fit()

    assert counts(frames(out), "eval") == []
    assert counts(frames(out), "epoch") == ["0/6", "4/6", "6/6"]  # 4/6 shows the results


@pytest.mark.parametrize("pause", range(3, 9))
def test_evaluation_that_is_shorter_than_the_pause_has_no_bar(pause, clock):
    out = Terminal()
    trainer(out, pause=pause, evaluators=EVALUATORS[:1]).fit()

    assert counts(frames(out), "eval") == []


def test_evaluation_and_prediction_of_their_own_have_bars_that_stay():
    out = Terminal()
    run = trainer(out)
    run.eval(EVALUATORS)
    run.eval(EVALUATORS)
    run.predict(batches(12))

    lines = [line.rpartition("\r")[2] for line in out.getvalue().rstrip("\n").split("\n")]
    shown = [
        (line.partition(":")[0], re.search(r"[\d/]+ ba", line)[0], re.findall(r"\w+/loss", line))
        for line in lines
    ]
    both = ["eval/loss", "other/loss"]
    assert shown == [
        ("eval", "2 ba", ["eval/loss"]),
        ("eval", "3 ba", both),
        ("eval", "2/2 ba", ["eval/loss"]),
        ("eval", "3/3 ba", both),
        ("predict", "3 ba", []),
    ]


def test_bars_can_be_chosen(clock):
    out = Terminal()
    run = trainer(out, bars=["eval"])
    run.fit()
    run.predict(batches(12))
    assert {one.partition(":")[0] for one in frames(out)} == {"eval"}

    out = Terminal()
    run = trainer(out, bars=["train", "predict"])
    run.fit()
    run.eval(batches(4))
    assert all(one.startswith("epoch") for one in frames(out))


def test_metrics_can_be_chosen():
    out = Terminal()
    trainer(out, metrics=["lr", "metrics/other/*"]).fit()

    (shown,) = re.findall(r"/s, (.*)\]", frames(out)[-1])
    assert re.fullmatch(r"lr=0.1, other/loss=[\d.]+", shown)


@pytest.mark.parametrize(
    ("columns", "shown"),
    [(60, ["loss/train"]), (80, ["loss/train"]), (120, ["loss/train", "eval/loss", "other/loss"])],
)
def test_metrics_that_do_not_fit_leave_room_for_the_bar(columns, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    trainer(out).fit()

    (last,) = re.findall(r"/s, (.*)\]", frames(out)[-1])
    assert [one.partition("=")[0] for one in last.split(", ")] == shown


def test_results_of_a_call_are_not_shown_in_the_next():
    out = Terminal()
    run = trainer(out)
    run.fit()
    out.truncate(0)
    run.predict(batches(12))

    assert "loss" not in out.getvalue()


# --- lines


def test_lines_replace_bars_where_there_is_no_terminal():
    out = io.StringIO()
    trainer(out, style=None, pause=0).fit()

    lines = out.getvalue().splitlines()
    assert "\r" not in out.getvalue()
    assert re.fullmatch(
        r"epoch 2/2: 100%, 6/6 ba \[0:00:00<0:00:00, [\d.e+]+ ba/s\]"
        r"  loss/train=[\d.]+, eval/loss=[\d.]+, other/loss=[\d.]+",
        lines[-1],
    )


def test_lines_have_a_readable_pace(clock):
    out = io.StringIO()
    trainer(out, style="lines", pause=2).fit()

    lines = out.getvalue().splitlines()
    assert 1 < len(lines) < 10
    assert lines[-1].startswith("epoch 2/2: 100%, 6/6 ba")
    assert any(line.startswith("eval: ") for line in lines)


def test_a_short_run_is_one_line_by_default_and_a_short_evaluation_none(capsys):
    run = make_trainer(progress_bar=True)
    run.eval(batches([4]))
    run.predict(batches([4]))
    make_trainer(progress_bar=False).fit()
    assert capsys.readouterr() == ("", "")

    run.fit()
    shown = capsys.readouterr().err.splitlines()
    assert ["6/6 ba" in line for line in shown if line.startswith(("epoch", "eval"))] == [True]


@pytest.mark.parametrize(
    ("out", "style", "pause", "lines"),
    [
        (Terminal(), None, 0.1, False),
        (io.StringIO(), None, 10, True),
        (Terminal(), "lines", 10, True),
        (io.StringIO(), "bar", 10, False),
    ],
)
def test_style_follows_from_the_stream_or_is_given(out, style, pause, lines):
    bar = ProgressBarLogger(style=style, stream=out)
    make_trainer(loggers=[bar]).fit()

    assert bar._lines is lines
    assert bar._pause == pause
    assert ("\r" in out.getvalue()) is not lines


def test_lines_need_no_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    out = io.StringIO()

    trainer(out, style="lines").fit()

    assert "6/6 ba" in out.getvalue()


# --- both


@pytest.mark.parametrize("style", ["bar", "lines"])
def test_other_ranks_show_nothing(style, monkeypatch):
    monkeypatch.setattr("composable.distributed.Processes.is_main", False)
    out = Terminal()
    run = trainer(out, style)
    run.fit()
    run.eval(batches([4]))
    run.predict(batches([4]))

    assert out.getvalue() == ""


def test_console_prints_above_the_bar():
    out = Terminal()
    bar = ProgressBarLogger(stream=out, refresh_seconds=0)
    make_trainer(loggers=[bar, ConsoleLogger("1ep", stream=out)]).fit()

    whole = out.getvalue()
    printed = [line for line in whole.split("\n") if "[epoch" in line]
    assert len(printed) == 2
    assert all(line.rpartition("\r")[2].startswith("[epoch") for line in printed)


# --- the console


def printed(interval="1ep", shown=("*",), **options):
    """Return the lines of the console of a run."""
    out = io.StringIO()
    make_trainer(loggers=[ConsoleLogger(interval, metrics=shown, stream=out)], **options).fit()
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("interval", "loader", "starts"),
    [
        ("1ep", None, ["[epoch 0, batch 3]", "[epoch 1, batch 6]"]),
        ("1ep", stream(12), ["[epoch 1, batch 3]", "[epoch 2, batch 6]"]),
        ("2ba", None, ["[epoch 0, batch 2]", "[epoch 1, batch 4]", "[epoch 1, batch 6]"]),
        ("0.5dur", None, ["[epoch 0, batch 3]", "[epoch 1, batch 6]"]),
        (2, None, ["[epoch 1, batch 6]"]),
    ],
)
def test_console_prints_the_latest_metrics_at_each_interval(interval, loader, starts):
    lines = printed(interval, loader=loader)

    assert [line.partition("]")[0] + "]" for line in lines] == starts
    assert all("  loss/train " in line and "  lr 0.1" in line for line in lines)


def test_console_prints_the_chosen_metrics():
    assert printed(shown=["lr"]) == [
        "[epoch 0, batch 3]  lr 0.1",
        "[epoch 1, batch 6]  lr 0.1",
    ]


def test_console_prints_every_evaluation():
    out = io.StringIO()
    make_trainer(loggers=[ConsoleLogger(stream=out)]).eval(batches([4]))
    assert out.getvalue().startswith("[epoch 0, batch 0]  metrics/eval/loss ")

    lines = printed("2ep", eval_dataloader=batches([4]), metrics={"accuracy": accuracy})
    found = [line.split("]")[0] for line in lines if "metrics/eval/accuracy" in line]
    assert found == ["[epoch 1, batch 3", "[epoch 2, batch 6"]


def test_console_prints_numbers_with_four_digits():
    def log(event, state, logger):
        if event.value == "batch_end":
            logger.log_metrics({"pi": math.pi, "n": 123456, "nan": math.nan, "text": "a"})

    (line,) = printed("1ba", max_duration="1ba", callbacks=[log])

    assert "pi 3.142  n 123456  nan nan  text a" in line


def test_console_prints_to_standard_error_by_default(capsys):
    make_trainer(loggers=[ConsoleLogger()]).fit()

    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 2


@pytest.mark.parametrize(
    ("interval", "error", "message"),
    [
        *((x, ValueError, "must be in epochs, batches or frac") for x in ("10sp", "3sec", "9tok")),
        ("often", ValueError, "invalid time 'often'"),
        (1.5, TypeError, r"got 1\.5"),
    ],
)
def test_console_rejects_an_invalid_interval(interval, error, message):
    with pytest.raises(error, match=f"log_interval={interval!r}.* {message}"):
        ConsoleLogger(interval)
