"""The table of docs/integrations.md, and what its cells are compared with."""

from functools import partial

import attrs
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from composable import Trainer
from composable.algorithms import SelectiveBackprop
from composable.integrations import adapt_loop
from composable.utils.reproducibility import seed_context
from tests.support.algorithms import six_algorithms
from tests.support.cases import all_cases
from tests.support.data import examples
from tests.support.integrations import PAGE, SIX
from tests.support.models import CLASSES, Attention, Hidden, Places, same, weights
from tests.support.runs import VISION, training_weights

WITHIN = "a window that begins within an epoch"
CASES = {case.algorithm.name: case.algorithm for case in all_cases() if case.algorithm}
SETS = {
    **{name: [case.external_example] for name, case in CASES.items()},
    SIX: six_algorithms(),
    WITHIN: [SelectiveBackprop(start=0.2, end=1.0, interrupt=0)],
}
ON_SEQUENCES = {name for name, case in CASES.items() if not case.acts_on(VISION)}
INDEXED = {name for name, case in CASES.items() if hasattr(case.example, "index_key")}
"""They need the index of each example."""
ASKS = r"requests a .*, which an external loop does not support"
OPTIONS = {name: case.external_options for name, case in CASES.items()}
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def table():
    """Return the cells of the table of algorithms, by loop and algorithm."""
    return cells("loops: written by tools/write_pages.py", "loops")


def cells(begin, end):
    """Return the cells of the table of the page between two marks, by loop and row."""
    text = PAGE.read_text().partition(f"<!-- {begin} -->")[2].partition(f"<!-- end of {end}")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return {
        (loop, row[0]): cell for row in rows for loop, cell in zip(head[1:], row[1:], strict=True)
    }


def works_in(loop):
    """Return the algorithms that work in a loop, according to the page."""
    return [name for (where, name), cell in table().items() if where == loop and cell == "yes"]


def refused_in(loop):
    """Return the algorithms that don't work in a loop, according to the page."""
    return [name for (where, name), cell in table().items() if where == loop and cell != "yes"]


# --- what an algorithm is tried on ---


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
        return image_net()
    with seed_context(0):
        return WordNet()


def dataset(name, count=10):
    """Images, or sequences of 16 tokens, and their classes."""
    inputs, targets = examples(count, images=True)
    if name in ON_SEQUENCES:
        inputs = inputs.flatten(1)[:, :16].clamp(-2, 2).mul(2).round().long() + 4
    return inputs, targets


def data(name=""):
    """Return the examples in batches, of which the last is short."""
    return list(zip(*(part.split(4) for part in dataset(name)), strict=True))


def loader(name="", **options):
    """Build a DataLoader of the same examples."""
    return DataLoader(TensorDataset(*dataset(name)), batch_size=4, **options)


def probe(name=""):
    """Return inputs for evaluation."""
    return dataset(name, 5)[0]


# --- runs ---


def start(algorithms, model, **options):
    """LoopAdapter of a run like `ours`."""
    defaults = {"loss_fn": cross_entropy, "max_duration": "2ep", "seed": 17}
    return adapt_loop(algorithms, model, **{**defaults, **options})


def begin(name, model=None, **options):
    """LoopAdapter of the run of a row."""
    options = {**OPTIONS.get(name, {}), **options}
    return start(set_of(name, options), net(name) if model is None else model, **options)


def set_of(name, options):
    """Return the algorithms of a row; one that needs indices takes the labels for them."""
    if name in INDEXED and options.get("target_key") == "labels":
        return [attrs.evolve(one, index_key="labels") for one in SETS[name]]
    return SETS[name]


def ours(
    name, batches=None, *, model=None, algorithms=None, optimizers=SGD, inputs=None, **options
):
    """Train with our Trainer, and return the weights and the outputs in evaluation."""
    defaults = {"loss_fn": cross_entropy, "max_duration": "2ep", "seed": 17, "device": "cpu"}
    trainer = Trainer(
        net(name) if model is None else model,
        train_dataloader=data(name) if batches is None else batches,
        optimizers=optimizers,
        algorithms=set_of(name, options) if algorithms is None else algorithms,
        progress_bar=False,
        **{**defaults, **OPTIONS.get(name, {}), **options},
    )
    trainer.fit()
    evaluated = trainer.predict([(probe(name), None) if inputs is None else inputs])
    return [*training_weights(trainer).values(), *evaluated]


def own_weights(t):
    """Return the weights that are trained; after a training, the model has the evaluated ones."""
    if not t.weights.installed:
        return weights(t.model)
    t.state = t.weights.remove(t.state)
    own = weights(t.model)
    t.state = t.weights.install(t.state)
    return own


def evaluated(t, inputs):
    """Return the weights of a model that are trained, and its outputs in evaluation."""
    own = own_weights(t).values()
    with t.evaluating() as model:
        return [*own, model(inputs)]


def acts(name, result, **options):
    """Return whether an algorithm changes the result, so that a comparison is meaningful."""
    plain = ours(name, algorithms=[], **options)
    return len(plain) != len(result) or not same(plain, result) or layouts(plain) != layouts(result)


def layouts(tensors):
    """Return the memory layouts of tensors."""
    return [tensor.stride() for tensor in tensors]
