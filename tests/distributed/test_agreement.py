"""What the processes of a run agree on, with ranks that are threads."""

import time
from unittest import mock

import pytest
import torch
from torch import nn

from composable import Callback, Event, Logger, Plan, State
from composable._support.tree import map_tensors
from composable.callbacks import EarlyStopper
from composable.core.control import Control
from composable.data.grouping import ShardedBatch
from composable.data.prefetch import Prefetcher
from composable.distributed import ProcessError, Processes, Shards
from composable.engines.engine import Setup
from composable.engines.parallel import Parallel, joined_events
from composable.engines.partitioned import Partitioned
from composable.metrics import Averages
from composable.plan.dispatch import Dispatcher
from tests.support.threads import run_ranks

DESCRIPTION = {
    "id": "a",
    "seed": 1,
    "max_duration": "2ep",
    "epoch_length": 3,
    "algorithms": {"MixUp": {"alpha": 0.2}},
    "optimizers": ["SGD"],
    "schedulers": [],
    "hyperparameters": {"lr": 0.1},
    "modules": {"0": "Linear"},
    "loss_fn": "cross_entropy",
    "options": {"precision": "fp32"},
    "torch": "2.13.0",
}


def engine_of(processes, kind=Parallel):
    return kind(shards=Shards(processes.size, processes))


def batches_of(engine, sizes):
    for size in sizes:
        yield ShardedBatch((f"{size} examples",), (None,), shards=engine.shards), size, 10 * size


def loaded(engine, steps):
    return engine.loaded(engine.announced(steps))


def read(engine, sizes):
    return loaded(engine, batches_of(engine, sizes))


def on_engines(work, count=2):
    """Call `work(engine, rank)` on several ranks, and return the results."""
    return run_ranks(lambda processes: work(engine_of(processes), processes.rank), count)


# --- batches ---


def test_processes_go_on_until_none_has_a_batch():
    sizes = [4, 3, 2], [6, 5]
    first, second = on_engines(lambda engine, rank: list(read(engine, sizes[rank])))
    for one in first, second:
        assert [(samples, tokens) for _, samples, tokens in one] == [(10, 100), (8, 80), (2, 20)]
    assert [batch.examples.own for batch, *_ in first] == [4, 3, 2]
    assert [batch.examples.own for batch, *_ in second] == [6, 5, 0]
    assert {batch.examples.all for batch, *_ in second} == {10, 8, 2}
    # A process repeats its last batch, with the weight 0.
    batches = [("6 examples",), ("5 examples",), ("5 examples",)]
    assert [batch.batches for batch, *_ in second] == batches
    assert [batch.empty for batch, *_ in second] == [(False,), (False,), (True,)]


def test_a_process_without_any_batch_is_an_error():
    with pytest.raises(ProcessError, match="rank 1 has no batch in this epoch"):
        on_engines(lambda engine, rank: list(read(engine, [[1, 1], []][rank])))


def test_the_time_of_a_batch_is_that_of_rank_0():
    def work(engine, rank):
        engine._announced = time.perf_counter() - [1e6, 2e6][rank]
        list(read(engine, [1]))  # the end of the data is an exchange too
        engine._announced = time.perf_counter() - [1e6, 2e6][rank]
        next(read(engine, [1]))
        first = engine.seconds
        engine._announced = time.perf_counter() - 1e6
        engine.begin({}, dispatcher_of())
        next(read(engine, [1]))
        return first, engine.seconds

    first, second = on_engines(work)
    assert first == second
    assert 1e6 <= first[0] < 2e6
    assert first[1] < 1e6  # the clock starts with the run


def test_the_exchange_of_a_batch_begins_when_it_is_fetched():
    def work(engine, rank):
        batches = Prefetcher(engine.announced(batches_of(engine, [4, 3])), Copied())
        found = []
        for _, samples, _ in engine.loaded(batches):
            batches.fetch()  # as after the gradients of a step
            found.append((samples, len(exchanges[rank])))
        return found

    exchanges = [[], []]
    exchange = Parallel._announce

    def counted(engine, *args):
        exchanges[engine.processes.rank].append(args)
        return exchange(engine, *args)

    with mock.patch.object(Parallel, "_announce", counted):
        found = on_engines(work)
    assert found == [[(8, 2), (6, 3)]] * 2


class Copied:
    def copy(self, batch):
        return map_tensors(torch.clone, batch)

    def wait(self, batch):
        pass


def test_a_signal_of_one_rank_is_received_by_all():
    def work(engine, rank):
        engine.signals.arrived = [None, 15][rank]
        next(read(engine, [1]))
        return engine.signals.received

    assert on_engines(work) == [15, 15]


@pytest.mark.parametrize("signalled", [True, False])
def test_a_loader_that_a_signal_has_ended_on_one_rank_ends_all(signalled):
    def work(engine, rank):
        def ended():
            yield from batches_of(engine, [1])
            if rank:
                engine.signals.arrived = 15 if signalled else None
                raise RuntimeError("a worker was killed")
            yield from batches_of(engine, [1])

        batches = loaded(engine, ended())
        next(batches)
        if not (signalled or rank):
            return "waits for the others, which the launcher ends"
        with pytest.raises((RuntimeError, ProcessError)) as caught:
            next(batches)
        return str(caught.value)

    first, second = on_engines(work)
    assert second == "a worker was killed"
    if signalled:
        assert first == "a signal has ended the loader of another process"


# --- the run ---


@pytest.mark.parametrize("name", DESCRIPTION)
def test_a_difference_between_descriptions_is_an_error(name):
    def work(engine, rank):
        different = {name: "different"} if rank == 2 else {}
        with pytest.raises(ProcessError) as caught:
            engine.begin({**DESCRIPTION, **different}, dispatcher_of())
        return str(caught.value)

    for message in on_engines(work, 3):
        assert message.startswith(f"{name}")
        assert "), and different on rank 2 (" in message


def test_what_may_differ_between_processes():
    def work(engine, rank):
        device = {"device": f"cuda:{rank}", "callbacks": {"own": rank}}
        engine.begin({**DESCRIPTION, **device}, dispatcher_of())

    on_engines(work)


def place(engine, state):
    engine.place(state, Setup(given=state.model, algorithms=()))


def model_and_loss(rank):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model[0].weight = nn.Parameter(torch.empty(3, 2).t())  # not contiguous
    loss = nn.BatchNorm1d(2)
    state = State(model, loss_module=loss)
    with torch.no_grad():
        for number, tensor in enumerate(tensors_of(state)):
            tensor.fill_(10 * rank + number)
    return state


def tensors_of(state):
    modules = state.model, state.loss_module
    return [one for module in modules for one in (*module.parameters(), *module.buffers())]


def test_all_processes_begin_with_the_weights_and_buffers_of_rank_0():
    def work(engine, rank):
        place(engine, state := model_and_loss(rank))
        return [float(tensor.detach().double().mean()) for tensor in tensors_of(state)]

    first, second = on_engines(work)
    assert first == second == [float(number) for number in range(len(first))]


def test_models_of_different_shapes_are_an_error():
    def work(engine, rank):
        with pytest.raises(ProcessError, match=r"on rank 0 \(.*\), and .* on rank 1 \("):
            place(engine, State(nn.Linear(2, 2 + rank)))

    on_engines(work)


# --- requests and flags ---


def dispatcher_of(*callbacks):
    return Dispatcher(Plan.compile(callbacks=callbacks), Logger())


def test_requests_are_those_of_all():
    def work(engine, rank):
        dispatcher = dispatcher_of()
        dispatcher.request([Control.EVALUATE, Control.STOP | Control.SAVE][rank])
        engine.joined_events = joined_events({Event.BATCH_END})
        engine.join_requests(Event.BATCH_END, dispatcher)
        return dispatcher.requests

    assert on_engines(work) == [Control.EVALUATE | Control.STOP | Control.SAVE] * 2


class AtBackward(Callback):
    def after_backward(self, state, logger):
        pass


class AtSave(Callback):
    def after_save(self, state, logger):
        pass


class AtSchedule(Callback):
    def after_scheduler_step(self, state, logger):
        pass


def own_function(event, state, logger):
    return None


ENDS = {Event.BATCH_END, Event.EPOCH_END, Event.ITERATION_END}
LATER = {Event.LOG, Event.AFTER_SAVE, Event.BATCH_CHECKPOINT, Event.EPOCH_CHECKPOINT}


@pytest.mark.parametrize(
    ("callback", "joined"),
    [
        (AtBackward(), ENDS),
        (AtSave(), LATER),
        (AtSchedule(), ENDS | LATER),
        (own_function, ENDS | LATER),
    ],
)
def test_requests_are_joined_where_callbacks_of_the_user_may_have_some(callback, joined):
    def work(engine, rank):
        # As a logger, which only rank 0 has.
        own = dispatcher_of() if rank else dispatcher_of(callback)
        engine.begin({}, own)
        assert Event.FIT_START in engine.joined_events
        return (ENDS | LATER) & engine.joined_events

    assert on_engines(work) == [joined, joined]


def test_requests_of_composable_are_the_same_on_all_processes():
    def work(engine, rank):
        engine.begin({}, dispatcher_of(EarlyStopper("loss", patience="1ep")))
        return engine.joined_events

    assert on_engines(work) == [frozenset()] * 2


def test_flags_and_counts_of_a_divided_model_are_those_of_all():
    def work(processes):
        rank = processes.rank
        divided, whole = engine_of(processes, Partitioned), engine_of(processes)
        return (
            divided.equal_parts(2 + rank),
            whole.equal_parts(2 + rank),
            float(divided.any_process(torch.tensor(float(rank)))),
            float(whole.any_process(torch.tensor(float(rank)))),
            divided.agree_on_calls(rank == 0),
            divided.agree_on_calls(False),
            whole.agree_on_calls(rank == 0),
        )

    first, second = run_ranks(work)
    assert first == (3, 2, 1.0, 0.0, True, False, True)
    assert second == (3, 3, 1.0, 1.0, True, False, False)


def test_one_process_exchanges_with_itself():
    def work(engine, rank):
        engine.join_requests(Event.BATCH_END, dispatcher_of())
        place(engine, State(nn.Linear(2, 2)))
        ((batch, samples, tokens),) = read(engine, [3])
        assert (batch.examples.own, samples, tokens) == (3, 3, 30)
        return engine.evaluating(Averages({}, torch.device("cpu")))

    assert on_engines(work, 1) == [Processes()]
