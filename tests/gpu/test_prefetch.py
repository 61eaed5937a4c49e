"""Batches are copied to a GPU beside the steps."""

import time

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from composable import Control, Event
from composable._support.tree import map_tensors
from composable.data.prefetch import CopyStream, Prefetcher
from tests.data.streams import Stateful
from tests.support.data import batches, noisy_loader, shuffling_loader, stream
from tests.support.models import linear, mlp, same, weights
from tests.support.observers import Asks, Trace
from tests.support.runs import make_trainer


class Noted(CopyStream):
    """Notes what is copied and waited for."""

    def __init__(self):
        super().__init__(torch.device("cuda"))
        self.log = []

    def copy(self, batch):
        copied = super().copy(batch)
        self.log.append(("copy", copied))
        return copied

    def wait(self, batch):
        self.log.append(("wait", batch))
        super().wait(batch)


def build(loader, *, ahead=True, model=None, **options):
    """Build a Trainer that reads ahead, unless it shall not."""
    model = mlp(dropout=0.2) if model is None else model
    trainer = make_trainer(model, loader, device="cuda", **options)
    if not ahead:
        trainer._run.data.copies = None
    return trainer


# --- the iterator ---


def test_a_batch_is_copied_once_and_waited_for_when_it_is_returned():
    copies = Noted()
    fetched = Prefetcher([torch.tensor(0), torch.tensor(1)], copies)
    fetched.fetch(), fetched.fetch()
    assert [what for what, _ in copies.log] == ["copy"]

    first = next(fetched)
    assert copies.log[1][0] == "wait"
    assert copies.log[1][1] is copies.log[0][1] is first
    assert not fetched.is_ahead
    assert [int(x) for x in fetched] == [1]
    assert list(fetched) == []


@pytest.mark.parametrize("pinned", [False, True])
def test_batches_are_equal_on_the_gpu(pinned):
    given = [(torch.randn(64, 1024), {"y": torch.arange(64) + i}) for i in range(20)]
    if pinned:
        given = [map_tensors(torch.Tensor.pin_memory, batch) for batch in given]
    fetched = Prefetcher(given, CopyStream(torch.device("cuda")))

    sums = []
    for x, rest in fetched:
        fetched.fetch()
        for _ in range(20):
            x = x @ torch.eye(1024, device="cuda")  # keeps the GPU busy while the next is copied
        sums.append((x.sum(), rest["y"].sum()))
        del x, rest
    for (ours, labels), (x, rest) in zip(sums, given, strict=True):
        torch.testing.assert_close(ours.cpu(), x.sum(), rtol=1e-4, atol=1e-2)
        assert labels.cpu() == rest["y"].sum()


def test_the_host_waits_for_no_copy():
    fetched = Prefetcher(
        [torch.randn(256, 1024) for _ in range(4)], CopyStream(torch.device("cuda"))
    )
    next(fetched)
    torch.cuda.set_sync_debug_mode("error")
    try:
        fetched.fetch()
        next(fetched)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(torch.version.cuda == "simulated", reason="a simulated GPU does not overlap")
@pytest.mark.slow
def test_a_copy_overlaps_with_a_step():
    host = [torch.randn(2**25).pin_memory() for _ in range(8)]
    weight = torch.randn(4096, 4096, device="cuda")

    def run(ahead):
        fetched = Prefetcher(host, CopyStream(torch.device("cuda")))
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in fetched:
            for _ in range(10):
                weight @ weight
            if ahead:
                fetched.fetch()
            torch.cuda.synchronize()
        return time.perf_counter() - began

    run(True), run(False)
    assert min(run(True) for _ in range(3)) < 0.95 * min(run(False) for _ in range(3))


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
    ours, expected = (
        weights(build(make(), ahead=one, **more).fit().model) for one in (True, False)
    )

    assert same(ours, expected)


def test_the_next_batch_is_copied_after_the_backward_pass_of_the_current_one():
    copies, order = Noted(), []

    def note(event, state, logger):
        order.extend((what, int(loaded[1])) for what, loaded in copies.log)
        copies.log.clear()
        if event in (Event.AFTER_BACKWARD, Event.AFTER_TRAIN_BATCH, Event.BATCH_END):
            order.append(event.value)

    trainer = build(batches([1, 2]), model=linear(), callbacks=note, max_duration="1ep")
    trainer._run.data.copies = copies
    trainer.fit()

    step = ["after_backward", ("copy", 2), "after_train_batch", "batch_end"]
    assert order == [
        ("copy", 1),
        ("wait", 1),
        *step,
        ("wait", 2),
        *[x for x in step if x != step[1]],
    ]


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
    def order(ahead):
        trace = Trace()
        callbacks = [Asks(Event.BATCH_END, 1, Control.END_EPOCH), trace]
        trainer = build(shuffling_loader(22), ahead=ahead, callbacks=callbacks)
        return weights(trainer.fit().model), trace.events

    ours, expected = order(True), order(False)
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
