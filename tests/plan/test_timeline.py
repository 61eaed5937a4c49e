"""The timeline of a run: its words, and that its picture can be read."""

import re
import runpy
import sys
import xml.etree.ElementTree as ET
from fractions import Fraction
from pathlib import Path

import pytest
from matplotlib import pyplot

from composable import Event, Plan, Stage, chain, choose, during, every, identity, when
from composable.algorithms import (
    EMA,
    SAM,
    SWA,
    BlurPool,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    SelectiveBackprop,
)
from composable.plan.plotting import _COLORS, new_figure
from tests.support.runs import make_trainer
from tests.support.stand_ins import stand_in

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def large(state):
    return True


EVALUATES = stand_in("Evaluates", Stage.OTHER, Event.FIT_END, writes=())

EVERYTHING = [
    during("0dur", "0.8dur", MixUp()),
    choose([LabelSmoothing(), identity]),
    BlurPool(),
    EMA("100ba", ema_start="0.5dur"),
    SelectiveBackprop(),
    when(large, GradientClipping("norm", 1.0)),
    every("2ep", during("0tok", "100tok", EVALUATES(name="<a & b>"))),
]


def said(algorithm, max_duration="10ep", epoch_length=None):
    timeline = Plan.compile([algorithm]).timeline(max_duration, epoch_length)
    return re.split(r"  +", str(timeline), maxsplit=2)[2]


def windows(end, start):
    """Return an algorithm that acts up to `end`, and again from `start` to 7ep."""
    mix = MixUp()
    return chain(during("0ep", end, mix), during(start, "7ep", mix))


@pytest.mark.parametrize(
    ("algorithm", "length", "words"),
    [
        (MixUp(), ("10ep",), "all along"),
        (SAM(interval=3), ("2ep", 3), "from 0ep to 1ba, from 1ep to 4ba"),
        (SWA(), ("100ep",), "from 70ep to 100ep, averaging every 1ep until 0.97dur"),
        (during("2ep", "30ep", MixUp()), ("10ep",), "from 2ep to 10ep"),
        (during("0.25dur", "3ep", MixUp()), ("4ep",), "from 1ep to 3ep"),
        (during("5ba", "3ep", MixUp()), ("4ep", 10), "from 5ba to 3ep"),
        (during("1ep", "2ep", MixUp()), ("40ba", 10), "from 10ba to 20ba"),
        (during("5ba", "3ep", MixUp()), ("4ep",), "from 0ep to 3ep, from 5ba on"),
        (during("1/3dur", "1dur", MixUp()), ("10ep",), "from 1/3dur to 10ep"),
        (during("5sp", "10sp", MixUp()), ("4ep", 10), "from 5sp on, up to 10sp"),
        (during("30s", "1m", MixUp()), ("2m",), "from 30sec to 60sec"),
        (during("0ep", "5ep", during("2ep", "9ep", MixUp())), ("10ep",), "from 2ep to 5ep"),
        (when(large, MixUp()), ("10ep",), "where large holds"),
        (every("2ep", MixUp()), ("3ep", 5), "from 0ep to 1ep, from 2ep to 3ep"),
        (every("2ba", MixUp()), ("4ba",), "from 0ba to 1ba, from 2ba to 3ba"),
        (every("2ba", MixUp()), ("4ep",), "every 2ba"),
        (every("2ba", MixUp()), ("4ep", 1000), "every 2ba"),  # too many to draw one by one
        (choose([MixUp(), identity]), ("4ep",), "where it is drawn, one of 2"),
        (SelectiveBackprop(interrupt=3), ("10ep",), "from 5ep to 9ep, but for one batch in 3"),
        (SelectiveBackprop(interrupt=0), ("10ep",), "from 5ep to 9ep"),
        (EMA(ema_start="3ep"), ("10ep",), "from 3ep to 10ep"),
        (EMA("2ep"), ("10ep",), "every 1ep"),
        (BlurPool(), ("10ep",), "once, before training"),
        (EVALUATES(), ("10ep",), "once, after training"),
        (windows("2ep", "5ep"), ("10ep",), "from 0ep to 2ep, from 5ep to 7ep"),
        (windows("2ep", "2ep"), ("10ep",), "from 0ep to 7ep"),
    ],
)
def test_a_row_says_when_its_algorithm_is_active(algorithm, length, words):
    assert said(algorithm, *length) == words


def test_a_row_can_be_asked():
    plan = Plan.compile([during("2ep", "5ep", MixUp()), when(large, LabelSmoothing())])
    mixing, smoothing = plan.timeline("10ep").rows

    active = {0.1: False, Fraction(1, 5): True, 0.49: True, 0.5: False}
    assert {f: mixing.active(f) for f in active} == active
    assert smoothing.active(0.5) is None
    assert [row.name for row in Plan.compile(EVERYTHING).timeline("10ep").rows] == [
        *("SelectiveBackprop", "MixUp", "LabelSmoothing", "BlurPool", "GradientClipping", "EMA"),
        "<a & b>",
    ]


def drawn(algorithms, *length):
    """Draw a timeline in a figure of its own size, and return the axes."""
    timeline = Plan.compile(algorithms).timeline(*length)
    figure = new_figure(len(timeline.rows))
    return timeline.plot(figure.axes[0])


@pytest.mark.parametrize("length", [("10ep", 100), ("7ep",), ("90s",), ("12345ba", 10), ("1ba",)])
@pytest.mark.parametrize("algorithms", [EVERYTHING, [EMA(name="an average of a long name")], []])
def test_the_text_of_the_picture_stays_inside(algorithms, length):
    axes = drawn(algorithms, *length)

    figure = axes.figure
    figure.draw_without_rendering()
    texts = [*axes.texts, axes.title, *axes.get_xticklabels()]
    assert len(axes.texts) >= 2 * len(algorithms)
    for text in texts:
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0, text.get_text()
        assert box.x1 <= figure.bbox.x1, text.get_text()
        assert figure.bbox.y0 <= box.y0, text.get_text()
        assert box.y1 <= figure.bbox.y1, text.get_text()


def test_the_picture_has_a_bar_for_each_span_labelled_with_its_words():
    axes = drawn([during("2ep", "8ep", MixUp()), BlurPool()], "10ep", 100)

    (bar,) = axes.patches
    assert (bar.get_x(), bar.get_width()) == (pytest.approx(0.2), pytest.approx(0.6))
    (diamond,) = axes.lines
    assert list(diamond.get_xdata()) == [0]
    assert [text.get_text() for text in axes.texts] == [
        *("MixUp", "mix", "from 2ep to 8ep"),
        *("BlurPool", "surgery", "once, before training"),
    ]
    assert axes.get_xticklabels()[5].get_text() == "5ep\n500ba\n0.5"
    assert axes.get_title(loc="left").endswith("over 10 epochs of 100 batches")


def test_a_label_that_does_not_fit_into_its_bar_is_beside_it():
    axes = drawn([during("0ep", "1ep", MixUp()), during("9ep", "10ep", LabelSmoothing())], "10ep")

    early, late = (text for text in axes.texts if text.get_text().startswith("from"))
    assert early.get_position()[0] > 0.1
    assert late.get_position()[0] < 0.9


def test_stages_have_colors_and_what_is_known_only_at_run_time_is_hatched():
    (known,) = drawn([MixUp()], "10ep").patches
    axes = drawn([when(large, MixUp())], "10ep")
    (unknown,) = axes.patches

    assert known.get_hatch() is None
    assert unknown.get_hatch()
    assert axes.get_title(loc="right") == "hatched: known only at run time"
    bars = drawn([MixUp(), LabelSmoothing(), EMA()], "10ep").patches
    assert len({bar.get_facecolor() for bar in bars}) == 3
    assert len(set(_COLORS.values())) == len(Stage)


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_it_is_saved_as_a_file(tmp_path, suffix):
    timeline = make_trainer(algorithms=MixUp()).timeline()

    timeline.save(tmp_path / f"run.{suffix}")

    start = (tmp_path / f"run.{suffix}").read_bytes()[:5]
    assert start == {"svg": b"<?xml", "png": b"\x89PNG\r", "pdf": b"%PDF-"}[suffix]
    assert str(timeline.max_duration) == "2ep"
    assert timeline.epoch_length == 3
    assert timeline._repr_svg_() == timeline._repr_svg_()
    assert "all along" in timeline._repr_svg_()


def test_a_new_figure_is_one_of_pyplot():
    axes = Plan.compile([MixUp()]).timeline("10ep").plot()

    assert pyplot.gcf() is axes.figure
    pyplot.close(axes.figure)


def test_without_matplotlib_there_are_words(monkeypatch):
    timeline = Plan.compile([MixUp()]).timeline("10ep")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("composable.plan.timeline.find_spec", lambda name: None)

    assert timeline._repr_svg_() is None
    assert str(timeline) == "MixUp  mix  all along"
    for draw in (timeline.plot, lambda: timeline.save("run.svg")):
        with pytest.raises(ImportError, match=r'pip install "composable\[plot\]"'):
            draw()


def words_of(svg):
    return [text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_picture_in_the_docs_is_the_one_that_is_drawn():
    timeline = runpy.run_path(str(PICTURES / "timeline.py"))["TIMELINE"]

    # Not all of the file: how it draws a line is matplotlib's business, and changes with it.
    words = words_of((PICTURES / "timeline.svg").read_text(encoding="utf-8"))
    assert len(words) > 20
    assert words == words_of(timeline._repr_svg_())
