"""Law: an external loop measures its training as the Trainer does, or refuses by name."""

from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from composable.algorithms import LabelSmoothing, MixUp, SelectiveBackprop
from composable.integrations import adapt_loop
from composable.loggers import InMemoryLogger
from composable.metrics import OfAll, OfLoss
from property_tests.test_metrics_of_the_whole import (
    DOUBLE,
    TRAIN_METRICS,
    objects,
    of_examples,
    series,
    trainer_of,
)
from tests.support.data import batches
from tests.support.models import linear, mlp
from tests.support.own_run import KilledError
from tests.support.processes import connect, run
from tests.support.runs import sgd

SIZES = [4, 4, 3, 4, 1]
pytestmark = pytest.mark.filterwarnings("ignore:No positive samples")


def train(
    metrics: Any,
    algorithms: Any = (),
    parts: int = 1,
    *,
    found: Any = None,
    folder: Any = None,
    stop: int | None = None,
    skip: int | None = None,
) -> Any:
    """Train a loop, and return what it reads after every second step, and after each epoch."""
    found = {"train": {}, "train_epoch": {}} if found is None else found
    model = mlp(dtype=torch.float64)
    optimizer = sgd(model.parameters())
    options: dict[str, Any] = {"seed": 17, "max_duration": "2ep", "train_metrics": metrics}
    t = adapt_loop(algorithms, model, optimizer, loss_fn=cross_entropy, **options)
    if folder is not None:
        t.resume(folder)
    data = batches(SIZES, **DOUBLE)
    for _ in range(t.state.timestamp.epoch, 2):
        done = t.state.timestamp.batch_in_epoch * parts
        epoch = t.epoch(data, accumulate_batches=parts)
        for number, (inputs, _) in enumerate(epoch, done + 1):
            (t.loss(model(inputs)) / parts).backward()
            if number % parts and number < len(SIZES):
                continue
            if number != skip:
                optimizer.step()
            optimizer.zero_grad()
            batch = 1 + t.state.timestamp.batch
            if not batch % 2:
                found["train"][batch] = t.train_metrics()
            if folder is not None:
                t.save(folder)
            if batch == stop:
                raise KilledError
        found["train_epoch"][t.state.timestamp.batch] = t.train_metrics(epoch=True)
    return found


CASES = {
    "plain": ([], 1),
    "accumulation": ([], 2),
    "smoothed": ([LabelSmoothing(0.1)], 1),
    "mixed": ([MixUp(0.4)], 2),
    "mixed by example": ([MixUp(0.4, per_sample=True)], 1),
    "selected": ([SelectiveBackprop(0.0, 1.0, 0.5)], 1),
}


@pytest.mark.parametrize("name", CASES)
def test_loops_measure_what_the_trainer_does(name):
    algorithms, parts = CASES[name]
    metrics = TRAIN_METRICS | ({} if "mixed" in name else objects())
    log = InMemoryLogger()
    trainer_of(
        SIZES,
        algorithms=algorithms,
        accumulate_batches=parts,
        train_metrics=metrics,
        log_interval="2ba",
        loggers=[log],
        device="cpu",
    ).fit()
    found = train(metrics, algorithms, parts)
    for label, readings in found.items():
        for metric in metrics:
            expected = series(log, f"metrics/{label}/{metric}")
            assert {at: one[metric] for at, one in readings.items()} == pytest.approx(
                expected, rel=1e-12
            )


@pytest.mark.parametrize("parts", [1, 2])
def test_a_resumed_loop_reads_the_same_to_the_bit(parts, tmp_path):
    def run(**options: Any) -> Any:
        return train({**TRAIN_METRICS, **objects()}, parts=parts, **options)

    whole = run()
    for stop in range(1, 2 * -(-len(SIZES) // parts) + 1):
        found: Any = {"train": {}, "train_epoch": {}}
        with suppress(KilledError):
            run(found=found, folder=tmp_path / str(stop), stop=stop)
        assert run(found=found, folder=tmp_path / str(stop)) == whole


def test_loops_with_other_metrics_resume_and_begin_new_averages(tmp_path):
    other = {"entropy": of_examples}
    for i, (before, after) in enumerate([(other, None), (None, other), (TRAIN_METRICS, other)]):
        model = linear()
        optimizer = sgd(model.parameters())
        for metrics in (before, after):
            t = adapt_loop(
                [], model, optimizer, loss_fn=cross_entropy, seed=17, train_metrics=metrics
            )
            resumed = t.resume(tmp_path / str(i))
            assert t.state.metrics == {}
            if resumed and metrics:
                assert t.train_metrics() == t.train_metrics(epoch=True) == {}
            for number, (inputs, _) in enumerate(t.epoch(batches(12))):
                t.loss(model(inputs)).backward()
                optimizer.step()
                optimizer.zero_grad()
                if not number:
                    t.save(tmp_path / str(i))
                    break


def test_steps_that_a_loop_skips_do_not_count():
    count = {"count": lambda outputs, targets: targets.double() * 0 + len(targets)}
    with_all, without = train(count), train(count, skip=3)
    assert with_all["train_epoch"][5] == {"count": (16 + 16 + 9 + 16 + 1) / 16}
    assert without["train_epoch"][5] == {"count": (16 + 16 + 16 + 1) / 13}


def shared(sizes: list[list[int]], folder: str | None = None) -> Any:
    """Train on the processes of this group, each with batches of its sizes.

    With a folder, save after the first step, and continue from there.
    """
    connect()
    rank, seen = dist.get_rank(), []
    model = mlp(dtype=torch.float64)
    wrapped = DistributedDataParallel(model)
    optimizer = sgd(model.parameters())
    for _ in range(1 if folder is None else 2):
        metrics = {**TRAIN_METRICS, **objects()}
        t = adapt_loop([], model, optimizer, loss_fn=cross_entropy, seed=17, train_metrics=metrics)
        if folder is not None:
            t.resume(folder)
        for inputs, targets in t.epoch(batches(sizes[rank], **DOUBLE)):
            outputs = wrapped(inputs)
            t.loss(outputs).backward()
            seen.append([outputs.tolist(), targets.tolist()])
            optimizer.step()
            optimizer.zero_grad()
            if folder is not None and len(seen) == 1:
                t.save(folder)
                break
    return seen, t.train_metrics(), t.train_metrics(epoch=True)


@pytest.mark.parametrize("sizes", [[[4, 2], [4, 2]], [[4, 2], [2, 3]]], ids=["even", "uneven"])
def test_loops_on_processes_measure_the_batches_of_all(sizes, tmp_path):
    (seen, own, epoch), (others, *same) = run(shared, 2, sizes)
    assert own == epoch == same[0] == same[1]
    for *_, resumed, of_epoch in run(shared, 2, sizes, str(tmp_path)):
        assert resumed == of_epoch == pytest.approx(own, rel=1e-12)
    parts = [(torch.tensor(x, **DOUBLE), torch.tensor(y)) for x, y in (*seen, *others)]
    outputs, targets = map(torch.cat, zip(*parts, strict=True))
    entropy = cross_entropy(outputs, targets)
    right = (outputs.argmax(1) == targets).double().mean().item()
    expected = {"right": right, "entropy": entropy.item(), "perplexity": entropy.exp().item()}
    expected |= {name: one(outputs, targets).item() for name, one in objects().items()}
    assert own == pytest.approx(expected, rel=1e-12)


def test_what_a_loop_cannot_measure_is_refused_by_name():
    def adapter(metrics: Any) -> Any:
        model = linear()
        optimizer = sgd(model.parameters())
        t = adapt_loop([], model, optimizer, seed=1, loss_fn=cross_entropy, train_metrics=metrics)
        return t, model, optimizer

    with pytest.raises(TypeError, match=r"train_metrics\['all'\] is of OfAll"):
        adapter({"all": OfAll(of_examples)})
    with pytest.raises(ValueError, match=r"t\.train_metrics\(\) needs train_metrics="):
        adapter(None)[0].train_metrics()
    for metrics in (TRAIN_METRICS, {"perplexity": OfLoss(torch.exp)}):
        t, model, optimizer = adapter(metrics)
        for call in (t.state_dict, partial(t.start_at, 0), partial(t.load_state_dict, {})):
            with pytest.raises(RuntimeError, match=r"train_metrics=.* (saves|has) no averages"):
                call()
        for inputs, targets in t.epoch(batches(12)):
            cross_entropy(model(inputs), targets).backward()
            with pytest.raises(RuntimeError, match=r"train_metrics=.*t\.loss\(outputs\)"):
                optimizer.step()
            break
