"""What notebooks show: self-contained, escaped, in the colors of the notebook."""

import re
from html.parser import HTMLParser

from composable import State
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


def test_representation_is_self_contained_and_escaped():
    trainer = make_trainer(
        algorithms=[EMA("1ba"), MixUp(name="<script>alert(1)</script>")],
        eval_dataloader={"<b>": batches([4])},
    )
    trainer.fit()

    page = trainer.state._repr_html_()
    found = Checked(page)

    assert found.names <= {"div", "table", "tr", "td"}
    assert not re.search(r"https?:|url\(|src=|href=|#[0-9a-f]{3}|rgb", page)
    texts = " ".join(found.texts)
    expected = ["State of Linear", "metrics/<b>/loss", "EMA", "seed 17"]
    assert [text for text in expected if text not in texts] == []


def test_texts():
    memory = InMemoryLogger()
    trainer = make_trainer(algorithms=EMA("1ba"), loggers=memory)
    assert repr(memory) == "<InMemoryLogger: 0 records of nothing>"
    trainer.fit()

    assert repr(trainer) == (
        "<Trainer of Linear: epoch 2, batch 6, max_duration 2ep, algorithms [EMA]>"
    )
    assert repr(memory) == "<InMemoryLogger: 6 records of loss/train, lr>"


def test_an_empty_one_is_shown_too():
    Checked(State(linear())._repr_html_())
