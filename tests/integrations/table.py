"""The table of docs/integrations.md, and what an algorithm of its rows is trained on."""

from functools import partial

import torch
from torch import nn

from composable.algorithms import SWA, SelectiveBackprop
from composable.utils.reproducibility import seed_context
from tests.support.algorithms import six_algorithms
from tests.support.cases import all_cases
from tests.support.data import examples
from tests.support.integrations import PAGE, SIX
from tests.support.models import CLASSES, Attention, Hidden, Places
from tests.support.runs import VISION

WITHIN = "a window that begins within an epoch"
EARLY = "averages that are complete when training ends"
CASES = {case.algorithm.name: case.algorithm for case in all_cases() if case.algorithm}
SETS = {
    **{name: [case.external_example] for name, case in CASES.items()},
    SIX: six_algorithms(),
    WITHIN: [SelectiveBackprop(start=0.2, end=1.0, interrupt=0)],
    EARLY: [SWA(swa_start="1ba", swa_end="1dur", update_interval="1ba")],
}
ON_SEQUENCES = {name for name, case in CASES.items() if not case.acts_on(VISION)}
INDEXED = {name for name, case in CASES.items() if hasattr(case.example, "index_key")}
"""They need the index of each example."""
OPTIONS = {name: case.external_options for name, case in CASES.items()}
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def cells(begin="loops: written by tools/write_pages.py", end="loops"):
    """Return the cells of a table of the page, between two marks, by loop and row."""
    text = PAGE.read_text().partition(f"<!-- {begin} -->")[2].partition(f"<!-- end of {end}")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return {
        (loop, row[0]): cell for row in rows for loop, cell in zip(head[1:], row[1:], strict=True)
    }


def works_in(loop):
    """Return the algorithms that work in a loop, according to the page."""
    return [name for (where, name), cell in cells().items() if where == loop and cell == "yes"]


def refused_in(loop):
    """Return the algorithms that don't work in a loop, according to the page."""
    return [name for (where, name), cell in cells().items() if where == loop and cell != "yes"]


def image_net():
    """Build a model for images of any size, with each kind of layer that an algorithm replaces."""
    with seed_context(0):
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.GroupNorm(2, 4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.LayerNorm(4),
            nn.Dropout(0.25),
            nn.Linear(4, CLASSES),
        )


def dense_net():
    """Build a model without random numbers, batch statistics and slow convolutions."""
    with seed_context(0):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(128, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, CLASSES)
        )


class WordNet(nn.Module):
    """A transformer with two feed-forward blocks; its head takes the mean over the words."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(9, 4), Places(16, 4)
        self.attention, self.hidden1, self.hidden2 = Attention(4), Hidden(4), Hidden(4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 9)

    def forward(self, ids):
        x = self.places(self.words(ids))
        x = x + self.attention(x)
        x = x + self.hidden1(x)
        return self.head(self.norm(x + self.hidden2(x)).mean(1))


def net(name):
    """Build the model on which an algorithm is tested."""
    if name not in ON_SEQUENCES:
        model = image_net()
        if name == "SnapshotDistillation":  # DDP evaluates a teacher with statistics of rank 0
            model[1] = nn.Identity()
        return model
    with seed_context(0):
        return WordNet()


def dataset(name, count):
    """Images, or sequences of 16 tokens, and their classes."""
    inputs, targets = examples(count, images=True)
    if name in ON_SEQUENCES:
        inputs = inputs.flatten(1)[:, :16].clamp(-2, 2).mul(2).round().long() + 4
    return inputs, targets
