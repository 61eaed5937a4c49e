"""What notebooks show: self-contained, escaped, in the colors of the notebook."""

import math
import re
from html.parser import HTMLParser

import pytest
import torch

from composable import Plan, State, Timestamp
from composable._support.html import sparkline
from composable.algorithms import EMA, MixUp
from composable.loggers import InMemoryLogger
from tests.support.data import batches
from tests.support.models import linear
from tests.support.runs import make_trainer


class Checked(HTMLParser):
    """Collects the texts of a page, and checks that every element is closed."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.open, self.names = [], [], set()
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, name, attributes):
        self.names.add(name)
        self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.names.add(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, text):
        self.texts.append(text)


def trained(tmp_path):
    trainer = make_trainer(
        algorithms=[EMA("1ba"), MixUp(name="<script>alert(1)</script>")],
        eval_dataloader={"<b>": batches([4])},
        loggers=InMemoryLogger(),
        save_folder=tmp_path,
        save_best="<b>/loss",
    )
    trainer.fit()
    return trainer


@pytest.mark.parametrize("what", ["trainer", "state", "plan", "history"])
def test_representation_is_self_contained_and_escaped(what, tmp_path):
    trainer = trained(tmp_path)
    one = trainer if what == "trainer" else getattr(trainer, what)

    page = one._repr_html_()
    found = Checked(page)

    allowed = {"div", "table", "tr", "th", "td", "details", "summary", "svg", "polyline"}
    assert found.names <= allowed
    assert not re.search(r"https?:|url\(|src=|href=|#[0-9a-f]{3}|rgb", page)
    texts = " ".join(found.texts)
    expected = {
        "trainer": ["Trainer of Linear", "epoch 2, batch 6", "(100% of 2ep)", "best", "EMA"],
        "state": ["State of Linear", "metrics/<b>/loss", "EMA", "seed 17"],
        "plan": ["2 algorithms", "<script>alert(1)</script>", "batch_end"],
        "history": ["InMemoryLogger: 8 records", "loss/train", "metrics/<b>/loss"],
    }
    assert [text for text in expected[what] if text not in texts] == []


def test_texts():
    memory = InMemoryLogger()
    trainer = make_trainer(algorithms=EMA("1ba"), loggers=memory)
    assert repr(memory) == "<InMemoryLogger: 0 records of nothing>"
    trainer.fit()

    assert repr(trainer) == (
        "<Trainer of Linear: epoch 2, batch 6, max_duration 2ep, algorithms [EMA]>"
    )
    assert repr(memory) == "<InMemoryLogger: 6 records of loss/train, lr>"


def test_empty_ones_are_shown_too():
    for one in (State(linear()), Plan.compile(), InMemoryLogger(), make_trainer(max_duration=None)):
        Checked(one._repr_html_())


@pytest.mark.parametrize(
    "values", [[], [1.0], [math.nan] * 3, [1.0, 1.0], [-1e308, 1e308, math.inf], [0.0] * 10**5]
)
def test_sparkline_of_any_values(values):
    drawn = sparkline(values)

    points = re.findall(r"(-?[\d.]+),(-?[\d.]+)", "".join(re.findall('points="([^"]*)"', drawn)))
    assert len(points) <= 301
    assert all(0 <= float(x) <= 180 and 0 <= float(y) <= 28 for x, y in points)
    assert bool(points) is (sum(map(math.isfinite, values)) > 1)


def test_history_shows_texts_and_numbers():
    memory = InMemoryLogger()
    for batch in range(3):
        memory.log_metrics({"loss": torch.tensor(batch / 2), "note": "a"}, Timestamp(batch=batch))

    texts = Checked(memory._repr_html_()).texts

    assert texts[-6:] == ["1", "0", "1", "note", "3", "a"]
