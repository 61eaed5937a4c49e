"""The timeline of a run, in words."""

import re
from fractions import Fraction

import pytest

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
from tests.support.stand_ins import stand_in


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
