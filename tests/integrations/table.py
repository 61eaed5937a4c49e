"""The table of docs/integrations.md, and what its cells are compared with."""

from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from composable import Trainer
from composable.algorithms import SelectiveBackprop
from composable.loop import transforms
from tests.runs import batches, conv_net, examples, same, six_algorithms, weights

PAGE = Path(__file__).parents[2] / "docs/integrations.md"
ALL = "all six together"
WITHIN = "a window that begins within an epoch"
SETS = {
    **{type(one).__name__: [one] for one in six_algorithms()},
    ALL: six_algorithms(),
    WITHIN: [SelectiveBackprop(start=0.2, end=1.0, interrupt=0)],
}
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
INPUTS = examples(5, images=True)[0]


def table():
    """The cells of the table, by loop and algorithm."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return {
        (loop, row[0]): cell for row in rows for loop, cell in zip(head[1:], row[1:], strict=True)
    }


def works_in(loop):
    """The algorithms of which the page says that they work in a loop."""
    return [name for (where, name), cell in table().items() if where == loop and cell == "yes"]


def refused_in(loop):
    """The algorithms of which the page says that they don't."""
    return [name for (where, name), cell in table().items() if where == loop and cell != "yes"]


def data():
    """Images in batches, the last of them short."""
    return batches(images=True)


def images(**options):
    """The same images in a DataLoader."""
    return DataLoader(TensorDataset(*examples(images=True)), batch_size=4, **options)


def start(algorithms, model, **options):
    """Transforms of a run like `ours`."""
    defaults = {"loss_fn": cross_entropy, "max_duration": "2ep", "seed": 17}
    return transforms(algorithms, model, **{**defaults, **options})


def ours(name, loader=None, *, model=conv_net, optimizers=SGD, probe=((INPUTS, None),), **options):
    """The weights, and what is evaluated, after training with our Trainer."""
    defaults = {"loss_fn": cross_entropy, "max_duration": "2ep", "seed": 17, "device": "cpu"}
    trainer = Trainer(
        model(),
        train_dataloader=data() if loader is None else loader,
        optimizers=optimizers,
        algorithms=SETS.get(name, []),
        progress_bar=False,
        **{**defaults, **options},
    )
    trainer.fit()
    return [*weights(trainer.state.model), *trainer.predict(list(probe))]


def evaluated(t, inputs=INPUTS):
    """The weights of a model, and what it makes of inputs with those that are evaluated."""
    own = weights(t.model)
    with t.evaluating() as model:
        return [*own, model(inputs)]


def acts(name, result, **options):
    """Whether an algorithm made a difference, so that comparing with it means something."""
    plain = ours("none", **options)
    return len(plain) != len(result) or not same(plain, result)
