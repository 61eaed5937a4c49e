"""The picture of a run: what it says, and that it can be read."""

import re
import runpy
import xml.etree.ElementTree as ET
from fractions import Fraction
from pathlib import Path

import pytest

from composable import Event, Plan, Stage, chain, choose, during, every, identity, when
from composable.algorithms import (
    EMA,
    BlurPool,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    SelectiveBackprop,
)
from tests.core.stand_ins import stand_in
from tests.helpers import make_trainer

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


@pytest.mark.parametrize(
    ("algorithm", "length", "words"),
    [
        (MixUp(), ("10ep",), "all along"),
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
    ],
)
def test_a_row_says_when_its_algorithm_is_active(algorithm, length, words):
    assert said(algorithm, *length) == words


def test_one_algorithm_in_two_windows_has_one_row():
    mix = MixUp()

    assert said(chain(during("0ep", "2ep", mix), during("5ep", "7ep", mix))) == (
        "from 0ep to 2ep, from 5ep to 7ep"
    )
    assert said(chain(during("0ep", "2ep", mix), during("2ep", "7ep", mix))) == "from 0ep to 7ep"


def test_a_row_can_be_asked():
    plan = Plan.compile([during("2ep", "5ep", MixUp()), when(large, LabelSmoothing())])
    mixing, smoothing = plan.timeline("10ep").rows

    assert [mixing.active(f) for f in (0.1, Fraction(1, 5), 0.49, 0.5)] == [
        False,
        True,
        True,
        False,
    ]
    assert smoothing.active(0.5) is None


def test_the_rows_stand_in_the_order_of_the_plan():
    plan = Plan.compile(EVERYTHING)

    assert [row.name for row in plan.timeline("10ep").rows] == [
        *("SelectiveBackprop", "MixUp", "LabelSmoothing", "BlurPool", "GradientClipping", "EMA"),
        "<a & b>",
    ]


@pytest.mark.parametrize("length", [("10ep", 100), ("7ep",), ("90s",), ("12345ba", 10), ("1ba",)])
@pytest.mark.parametrize("algorithms", [EVERYTHING, []])
def test_the_picture_is_well_formed_and_its_words_stay_inside(algorithms, length):
    root = ET.fromstring(Plan.compile(algorithms).timeline(*length).svg())

    ns = "{http://www.w3.org/2000/svg}"
    width, height = float(root.get("width")), float(root.get("height"))
    assert root.find(f"{ns}title").text.startswith("When each algorithm is active")
    titles = [title.text for title in root.iterfind(f"{ns}g/{ns}title")]
    assert len(titles) == len(algorithms)
    for text in root.iter(f"{ns}text"):
        long = 6.5 * len(text.text) * float(text.get("font-size")) / 11
        shift = {"start": 0, "middle": long / 2, "end": long}[text.get("text-anchor")]
        assert float(text.get("x")) - shift >= 0
        assert float(text.get("x")) - shift + long <= width
        assert float(text.get("y")) <= height
    for rect in root.iter(f"{ns}rect"):
        if rect.get("x"):
            assert float(rect.get("x")) + float(rect.get("width")) <= width


def test_what_cannot_be_known_is_hatched_and_what_can_is_not():
    timeline = Plan.compile([when(large, MixUp())]).timeline("10ep")
    known = Plan.compile([MixUp()]).timeline("10ep")

    assert "url(#hatched-mix)" in timeline.svg()
    assert "url(#" not in known.svg()


def test_it_is_saved_as_a_file_and_shown_in_notebooks(tmp_path):
    timeline = make_trainer(algorithms=MixUp()).timeline()

    timeline.save(tmp_path / "run.svg")

    assert (tmp_path / "run.svg").read_text(encoding="utf-8") == timeline._repr_svg_()
    assert str(timeline.max_duration) == "2ep"
    assert timeline.epoch_length == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda plan: plan.timeline("0.5dur"), "max_duration='0.5dur' is no length of a run"),
        (lambda plan: plan.timeline("0ep"), "max_duration='0ep' is no length of a run"),
        (lambda plan: plan.timeline("soon"), "max_duration='soon'"),
        (lambda plan: plan.timeline("1ep", 0), "epoch_length=0 must be 1 or more"),
        (lambda plan: plan.timeline("1ep").save("run.png"), "path='run.png' must end in .svg"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(Plan.compile([MixUp()]))


def test_the_picture_in_the_docs_is_the_one_that_is_drawn():
    drawn = runpy.run_path(str(PICTURES / "timeline.py"))["TIMELINE"].svg()

    assert (PICTURES / "timeline.svg").read_text(encoding="utf-8") == drawn
