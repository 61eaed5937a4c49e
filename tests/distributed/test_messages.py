"""How often the processes of a run exchange gradients."""

from functools import partial

import pytest
import torch

from composable.algorithms import SelectiveBackprop
from composable.distributed import DDP, FSDP2
from tests.support import parallel_messages, parallel_runs
from tests.support.processes import by_options, run

SHARDED = {
    "kind": "list",
    "model": parallel_runs.plain_net,
    "optimizers": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "eval_dataloader": None,
    "metrics": {},
    "count": 32,
    "max_duration": "1ep",
    "grad_accum": 2,
}
STEPS, MICROBATCHES = 2, 4
fit = partial(by_options, parallel_messages.fit_counting)


def _scattered(size, **strategy):
    first = run(fit, size, {**SHARDED, "parallel": FSDP2(shards=2 * size, **strategy)})[0]
    return first["losses"], first["messages"]["reduce_scatter_base"], first["messages"]


def test_sharded_gradients_are_reduced_once_a_step():
    losses, once, _ = _scattered(2)
    others, each, _ = _scattered(2, reduce_each_microbatch=True)
    assert once > 0
    assert each == MICROBATCHES * once
    assert once % STEPS == 0
    assert others == pytest.approx(losses, rel=1e-5)


def built(model):
    return partial(parallel_messages.build, model)


COPIED = {**SHARDED, "grad_accum": None, "parallel": DDP(shards=4)}


def each_step(key, few, many):
    """Return what each step adds to counts."""
    steps = len(many["losses"]) - len(few["losses"])
    added = {name: count - few[key].get(name, 0) for name, count in many[key].items()}
    return {name: count / steps for name, count in added.items() if count}


def test_step_of_copies_has_one_message():
    few, many = (run(fit, 2, {**COPIED, "count": count})[0] for count in (32, 64))
    assert each_step("messages", few, many) == {"allreduce": 1}
    parameters = [one.numel() for one in parallel_runs.plain_net().parameters()]
    report = 3 + len(parameters)  # loss, weight, omitted examples, and which gradients there are
    announced = 2 * 8 * 4  # for each process eight numbers, in four parts that any dtype can sum
    assert (many["bytes"] - few["bytes"]) / 2 == 4 * (sum(parameters) + report + announced)


fit_in_buckets = partial(by_options, parallel_messages.fit_in_buckets)


CHANGED = {
    "unused": {},
    "microbatches": {"grad_accum": 2},
    "changed": {"algorithms": [parallel_messages.double_gradients]},
    "replaced": {
        "algorithms": [parallel_messages.replace_gradients],
        "parallel": DDP(shards=2),
    },
    "reordered": {"model": built(parallel_messages.Reordered)},
}


@pytest.mark.parametrize("name", CHANGED)
def test_gradients_sent_during_the_backward_pass_are_those_sent_at_its_end(name):
    options = {**COPIED, "model": built(parallel_messages.Sometimes), **CHANGED[name]}
    whole = run(fit_in_buckets, 2, 1024, options)
    parts = run(fit_in_buckets, 2, 1e-6, options)
    assert parts[0]["messages"]["allreduce"] > whole[0]["messages"]["allreduce"]
    assert {one["weights"] for one in parts} == {whole[0]["weights"]}
    assert parts[0]["losses"] == whole[0]["losses"]


def test_layer_that_one_shard_of_a_process_uses_is_trained():
    options = {**COPIED, "model": built(parallel_messages.EveryOther)}
    (alone,) = run(fit, 1, {**options, "parallel": DDP(shards=4, exact=True)})
    exact = run(fit, 2, {**options, "parallel": DDP(shards=4, exact=True)})[0]
    fast = run(fit, 2, options)[0]
    assert (exact["losses"], exact["weights"]) == (alone["losses"], alone["weights"])
    assert fast["losses"] == pytest.approx(exact["losses"], rel=1e-5)


def test_loss_is_the_mean_over_the_examples_that_an_algorithm_keeps():
    pruned = {**COPIED, "algorithms": [SelectiveBackprop(start=0.0, end=1.0)], "count": 33}
    (alone,) = run(fit, 1, pruned)
    several = run(fit, 2, pruned)[0]
    assert several["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    (counted,) = run(fit, 1, {**pruned, "loss_mean_over": len_of_targets})
    assert counted["losses"] == pytest.approx(alone["losses"], rel=1e-5)


def len_of_targets(batch):
    return len(batch[1])


fit_and_read_buffers = partial(by_options, parallel_messages.fit_and_read_buffers)


WRITING = {**COPIED, "model": built(parallel_messages.Written), "count": 96}


@pytest.mark.parametrize("parallel", [DDP(shards=4), DDP(shards=4, exact=True)])
def test_buffers_of_any_kind_are_the_same_on_all_processes(parallel):
    options = {**WRITING, "parallel": parallel}
    (alone,) = run(fit_and_read_buffers, 1, options)
    first, second = (one["buffers"] for one in run(fit_and_read_buffers, 2, options))
    assert first == second
    late = first.pop("late"), alone["buffers"].pop("late")  # not exchanged in its first step
    assert all(map(any, late))
    assert first.pop("spectrum") == pytest.approx(alone["buffers"].pop("spectrum"), rel=1e-5)
    assert first == alone["buffers"]
    assert any(first["codes"])
    assert max(first["counts"]) > 2**33


def test_large_buffers_that_stay_as_they_are_are_not_sent():
    many, few = (run(fit_and_read_buffers, 2, {**WRITING, "count": n})[0] for n in (128, 96))
    added = (many["bytes"] - few["bytes"]) / (len(many["losses"]) - len(few["losses"]))
    # The histogram in two parts, codes and late; neither the table nor the mask.
    assert 4 * 20_000 < added < 4 * 22_000


fit_and_watch_messages = partial(by_options, parallel_messages.fit_and_watch_messages)


@pytest.mark.compile
def test_messages_of_a_compiled_model_are_sent_as_early_as_those_of_an_eager_one():
    options = {**COPIED, "model": built(parallel_messages.Wide), "parallel": DDP()}
    eager, compiled = (
        run(fit_and_watch_messages, 2, {**options, "compile": one})[0]
        for one in (False, {"backend": "aot_eager"})
    )
    assert compiled["ready"] == eager["ready"]
    assert compiled["losses"] == pytest.approx(eager["losses"], rel=1e-5)
    assert min(eager["ready"][-2:]) < max(eager["ready"])
