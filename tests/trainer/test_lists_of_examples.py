"""Batches of lists, and lists of examples, train, evaluate, accumulate and resume as tensors do."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from composable import Event
from composable.algorithms import SelectiveBackprop
from composable.metrics import accuracy
from tests.support.models import CLASSES, seeded, weights
from tests.support.observers import Watch
from tests.support.outcomes import resumes_exactly
from tests.support.runs import make_trainer

COUNT = 10
DRAW = torch.Generator().manual_seed(0)
PICTURES = [torch.rand(3, 4 + i % 3, 5, generator=DRAW) for i in range(COUNT)]


def target(i):
    return {"label": torch.tensor(i % CLASSES), "boxes": torch.rand(1 + i % 4, 4, generator=DRAW)}


DATA = [(picture, target(i)) for i, picture in enumerate(PICTURES)]
NAMED = [{"image": image, "target": target} for image, target in DATA]


def columns(batch):
    return tuple(zip(*batch, strict=True))


LAYOUTS = {
    "lists": (DATA, {"collate_fn": columns}, {}),
    "pairs": (DATA, {"collate_fn": lambda batch: batch}, {"batch_layout": "examples"}),
    "names": (
        NAMED,
        {"collate_fn": lambda batch: batch},
        {"input_key": "image", "target_key": "target"},
    ),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


class OfPictures(nn.Module):
    """A classifier of a list of pictures of any size."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, CLASSES)

    def forward(self, pictures):
        assert isinstance(pictures, (list, tuple))
        return self.head(torch.stack([picture.mean((1, 2)) for picture in pictures]))


def classes(targets):
    return torch.stack([one["label"] for one in targets])


def loss_fn(outputs, targets):
    return cross_entropy(outputs, classes(targets))


def right(outputs, targets):
    return accuracy(outputs, classes(targets))


def trainer_of(layout, **options):
    data, loading, keys = LAYOUTS[layout]

    def loader(**more):
        return DataLoader(data, batch_size=4, **loading, **more)

    return make_trainer(
        seeded(OfPictures),
        loader(shuffle=True),
        loss_fn=loss_fn,
        eval_dataloader=loader(),
        metrics={"accuracy": right},
        **{**keys, **options},
    )


def trained(layout, **options):
    trainer = trainer_of(layout, **options)
    trainer.fit()
    return trainer.state


@pytest.fixture(scope="module")
def stacked():
    """Train a model of the means of the pictures, which are tensors."""
    data = [(one.mean((1, 2)), i % CLASSES) for i, one in enumerate(PICTURES)]
    model = seeded(OfPictures).head
    trainer = make_trainer(
        model,
        DataLoader(data, batch_size=4, shuffle=True),
        eval_dataloader=DataLoader(data, batch_size=4),
        metrics={"accuracy": accuracy},
    )
    trainer.fit()
    return trainer.state


@layouts
@pytest.mark.parametrize("split", [{}, {"microbatch_size": 1}, {"grad_accum": 3}])
def test_trains_and_evaluates_as_a_batch_of_tensors(layout, split, stacked):
    state = trained(layout, **split)

    found = {name.removeprefix("head."): one for name, one in weights(state.model).items()}
    torch.testing.assert_close(found, weights(stacked.model), rtol=1e-5, atol=1e-6)
    assert state.timestamp.sample == stacked.timestamp.sample == 2 * COUNT
    assert state.metrics["eval"] == pytest.approx(stacked.metrics["eval"], rel=1e-5)


SELECT = SelectiveBackprop(start=0.0, end=1.0, keep=0.5, interrupt=0)


@layouts
@pytest.mark.parametrize(
    ("options", "sizes"),
    [({"microbatch_size": 3}, [3, 1, 3, 1, 2]), ({"algorithms": [SELECT]}, [2, 2, 1])],
    ids=["microbatches", "selected"],
)
def test_forward_passes_take_whole_examples(layout, options, sizes):
    seen = Watch(Event.BEFORE_FORWARD, read=lambda state: state.batch_spec.count(state.batch))

    trained(layout, callbacks=[seen], max_duration="1ep", eval_interval=None, **options)

    assert seen.values == sizes


@layouts
def test_resumes_to_the_bit(layout, tmp_path):
    resumes_exactly(partial(trained, layout), tmp_path, 4)


@layouts
def test_losses_of_examples_average_to_the_loss(layout):
    data, loading, _ = LAYOUTS[layout]
    state = trainer_of(layout).state
    batch = next(iter(DataLoader(data, batch_size=5, **loading)))
    outputs = state.model(state.batch_spec.inputs(batch))

    losses = state.loss_fn.per_example(outputs, batch)

    assert losses.shape == (5,)
    torch.testing.assert_close(losses.mean(), state.loss_fn(outputs, batch))


@layouts
def test_predicts(layout):
    data, loading, _ = LAYOUTS[layout]

    outputs = trainer_of(layout).predict(DataLoader(data, batch_size=4, **loading))

    assert torch.cat(outputs).shape == (COUNT, CLASSES)
