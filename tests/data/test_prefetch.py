"""Batches are fetched and copied ahead of their steps, and none is lost."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from composable import Control, Event
from composable._support.tree import map_tensors
from composable.data.prefetch import Prefetcher, on_device
from tests.data.streams import Stateful
from tests.support.data import batches, noisy_loader, shuffling_loader, stream
from tests.support.models import linear, mlp, same, weights
from tests.support.observers import Asks, Trace
from tests.support.runs import make_trainer


class Copies:
    """Copies batches on the CPU, and records when."""

    def __init__(self):
        self.log = []

    def copy(self, batch):
        copied = map_tensors(torch.clone, batch)
        self.log.append(("copy", copied))
        return copied

    def wait(self, batch):
        self.log.append(("wait", batch))


def build(loader, copies=None, model=None, **options):
    """Build a Trainer that reads ahead, as on a GPU."""
    trainer = make_trainer(mlp(dropout=0.2) if model is None else model, loader, **options)
    trainer._run.data.copies = copies or Copies()
    return trainer


# --- the iterator ---


def test_a_batch_is_copied_once_and_waited_for_when_it_is_returned():
    copies = Copies()
    fetched = Prefetcher([torch.tensor(0), torch.tensor(1)], copies)
    fetched.fetch(), fetched.fetch()
    assert [what for what, _ in copies.log] == ["copy"]

    first = next(fetched)
    assert copies.log[1][0] == "wait"
    assert copies.log[1][1] is copies.log[0][1] is first
    assert not fetched.is_ahead
    assert [int(x) for x in fetched] == [1]
    assert list(fetched) == []


def test_an_error_is_raised_where_its_batch_would_be():
    def failing():
        yield 1
        raise LookupError("example 7 is missing")

    fetched = Prefetcher(failing(), Copies())
    assert next(fetched) == 1
    fetched.fetch()
    with pytest.raises(LookupError, match="example 7"):
        next(fetched)
    assert list(fetched) == []


def test_an_interrupt_is_raised_at_once():
    def interrupted():
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        Prefetcher(interrupted(), Copies()).fetch()


def test_other_devices_get_each_batch_when_it_is_due():
    batch = {"x": torch.ones(2), "name": "a"}

    (moved,) = on_device(iter([batch]), torch.device("meta"))
    assert (moved["x"].device.type, moved["name"]) == ("meta", "a")
    (same,) = on_device(iter([batch]), torch.device("cpu"))
    assert same is batch


# --- in the Trainer ---

LOADERS = {
    "list": lambda: batches(22),
    "shuffled": lambda: shuffling_loader(22),
    "noisy": lambda: noisy_loader(22),
    "unknown length": lambda: stream(22),
}


@pytest.mark.parametrize("more", [{}, {"accumulate_batches": 2}, {"grad_accum": 2}])
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_the_weights_are_those_without_reading_ahead(make, more):
    expected = weights(make_trainer(mlp(dropout=0.2), make(), **more).fit().model)

    assert same(weights(build(make(), **more).fit().model), expected)


def test_the_next_batch_is_copied_after_the_backward_pass_of_the_current_one():
    copies, order = Copies(), []

    def note(event, state, logger):
        order.extend((what, int(loaded[1])) for what, loaded in copies.log)
        copies.log.clear()
        if event in (Event.AFTER_BACKWARD, Event.AFTER_TRAIN_BATCH, Event.BATCH_END):
            order.append(event.value)

    build(batches([1, 2]), copies, callbacks=note, max_duration="1ep").fit()

    step = ["after_backward", ("copy", 2), "after_train_batch", "batch_end"]
    assert order == [
        ("copy", 1),
        ("wait", 1),
        *step,
        ("wait", 2),
        *[x for x in step if x != step[1]],
    ]


def test_nothing_is_read_ahead_on_the_cpu():
    data = make_trainer()._run.data

    assert data.copies is None
    assert not isinstance(data.batches(make_trainer().state), Prefetcher)


class Labelled(Stateful):
    def example(self, number):
        number, drawn = super().example(number)
        return torch.full((4,), number / 100) + drawn, torch.tensor(number % 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_saved_states_are_those_of_the_batches_that_were_trained_on(workers, tmp_path):
    def loader():
        return DataLoader(Labelled(), 2, num_workers=workers)

    options = {"check_effects": False}
    expected = weights(build(loader(), model=linear(), **options).fit().model)
    build(loader(), model=linear(), save_folder=tmp_path, save_interval="1ba", **options).fit()
    for batch in (3, 7, 11):
        (point,) = tmp_path.glob(f"*-ba{batch}")
        resumed = build(loader(), model=linear(), load_path=point, **options).fit()
        assert same(weights(resumed.model), expected)


@pytest.mark.filterwarnings("ignore::composable.data.ReplayedBatchesWarning")
@pytest.mark.parametrize("make", [*LOADERS.values(), lambda: DataLoader(Labelled(), 2)])
@pytest.mark.parametrize("request_at", [Control.STOP, "duration"])
def test_a_stop_within_an_epoch_loses_no_batch(make, request_at):
    expected = build(make(), model=linear(), check_effects=False).fit(duration="9ba").model

    stops = [] if request_at == "duration" else [Asks(Event.BATCH_END, 3, Control.STOP)]
    twice = build(make(), model=linear(), callbacks=stops, check_effects=False)
    twice.fit(duration="4ba" if request_at == "duration" else "9ba")
    assert twice.state.timestamp.batch == 4
    assert twice._run.data._prefetcher is None  # its batch is freed
    assert same(weights(twice.fit(duration="5ba").model), weights(expected))


def test_an_epoch_that_is_ended_early_drops_its_rest():
    def order(copies):
        trace = Trace()
        ends = Asks(Event.BATCH_END, 1, Control.END_EPOCH)
        trainer = make_trainer(linear(), shuffling_loader(22), callbacks=[ends, trace])
        trainer._run.data.copies = copies
        return weights(trainer.fit().model), trace.events

    ours, expected = order(Copies()), order(None)
    assert same(ours[0], expected[0])
    assert ours[1] == expected[1]


def test_an_error_of_the_loader_comes_after_the_batches_before_it():
    class Failing(IterableDataset):
        def __iter__(self):
            for i in range(12):
                if i == 9:
                    raise LookupError("example 9 is missing")
                yield torch.full((4,), float(i)), torch.tensor(i % 3)

    trainer = build(DataLoader(Failing(), 2), check_effects=False)
    with pytest.raises(LookupError, match="example 9"):
        trainer.fit()
    assert trainer.state.timestamp.batch == 4
