"""The gradients of shards, summed over processes."""

from contextlib import contextmanager, suppress
from functools import partial
from unittest import mock

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
)
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from composable import State
from composable.batches.spec import BatchSpec
from composable.core.key import Key
from composable.data.grouping import Examples, shards_of, split_into_shards
from composable.distributed import DDP, Shards
from composable.distributed.shards import TreeSum, all_reduce_exactly
from composable.distributed.starting import join_processes
from composable.engines.ddp import Replicated
from composable.engines.exact import Exact, kinds_of
from composable.engines.reducer import _Messages
from composable.engines.shares import LossShares, times
from composable.engines.sums import ShardSums
from composable.losses.mean import Declared, ExampleCounter
from composable.losses.weights import LossWeights
from composable.trainer.microbatches import Microbatches, each_part, fit_memory, reduce
from tests.support.processes import run
from tests.support.threads import run_ranks

MANY, ONE, EXACT = DDP(bucket_cap_mb=1e-6), DDP(), DDP(exact=True)
WAYS = {"many": MANY, "one": ONE, "exact": EXACT}
IN_MESSAGES = pytest.mark.parametrize("ddp", [MANY, ONE], ids=["many messages", "one message"])
IN_ANY_WAY = pytest.mark.parametrize("ddp", WAYS.values(), ids=WAYS)


def filled(model):
    """Set parameters to values that the processes have in common."""
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.arange(1, parameter.numel() + 1).sin().view(parameter.shape)
            parameter.copy_(values)
    return model


class Branches(nn.Module):
    """Layers that only some ranks use, each in an order of its own."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank
        self.left, self.right = nn.Linear(3, 4), nn.Linear(3, 4)
        self.sometimes, self.never = nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.last = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        filled(self)

    def forward(self, x):
        order = [self.left, self.right] if self.rank == 0 else [self.right, self.left]
        hidden = sum(layer(x).relu() for layer in order)
        if self.rank == 0:
            hidden = hidden + self.sometimes(hidden)
        self.seen += x.mean()
        self.count += len(x)
        return self.last(self.frozen(hidden))


def examples(count):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 3, generator=generator), torch.arange(count) % 2


def state_of(model, batch=None, loss_fn=None, **changes):
    optimizers = (SGD(model.parameters(), 0.1),)
    loss_fn = loss_fn or (lambda outputs, batch: cross_entropy(outputs, batch[1]))
    given = {"batch": batch, "loss_fn": loss_fn, "optimizers": optimizers, "key": Key(0)}
    return State(model, **{**given, **changes})


def shard_batch(batch, shards, **changes):
    split = split_into_shards(batch, BatchSpec(), shards)
    (sharded,) = shards_of([split], shards)
    return sharded


class Reduction:
    """A step of one rank, up to its gradients."""

    def __init__(self, ddp=ONE, shards=4, *, auto=False, weight=None, passes=1, observed=False):
        self.processes = join_processes()
        engine = Exact if ddp.exact else Replicated
        self.engine = engine(ddp, Shards(shards, self.processes))
        if auto:
            self.engine.overlaps = False
        if not ddp.exact:
            self.engine._observed = observed
        counted = Declared(weight or (lambda batch: len(batch[1]) / passes))
        self.passes, self.engine.shares = passes, LossShares(LossWeights(counted), None)
        self.auto = auto
        self.compose(self.gradients)

    def compose(self, gradients):
        """Sum the gradients of all shards."""
        added = each_part(gradients, Microbatches(), self.engine.equal_parts)
        if self.auto:
            added = fit_memory(added, Microbatches(auto=True))
        self.reduced = reduce(added, self.engine)

    def compute_loss(self, state):
        loss = state.loss_fn(state.forward(), state.batch)
        return state, None, loss, loss

    def gradients(self, state, sums, part):
        """Compute the gradients of a shard, in one or several backward passes."""
        total = 0.0
        for number in range(self.passes):
            sums.begin_part(part.last and number == self.passes - 1)
            *_, loss, share = sums.shares.compute(
                self.compute_loss, state, state.batch, empty=part.empty
            )
            loss = times(loss, share)
            sums.joined(loss, loss).backward()
            total = total + loss.detach()
        return state.evolve_unchecked(loss=total)

    def __call__(self, state):
        """Return the loss and the gradients of a global batch."""
        sharded = shard_batch(state.batch, self.engine.shards)
        state = self.reduced(state.evolve(batch=sharded))
        return state.loss, gradients_of(state.model)


def gradients_of(model):
    return [None if one.grad is None else one.grad.clone() for one in model.parameters()]


def branches():
    return Branches(join_processes().rank)


def gradients_of_shards(count, shards=4, size=2):
    """Return the loss and the gradients of a global batch, computed one shard after another."""
    inputs, targets = examples(count)
    model, total = Branches(0), 0.0
    for shard in range(shards):
        own = slice(count * shard // shards, count * (shard + 1) // shards)
        if own.start == own.stop:
            continue
        model.rank = shard * size // shards
        loss = cross_entropy(model(inputs[own]), targets[own], reduction="sum") / count
        loss.backward()
        total += loss.item()
    return total, gradients_of(model)


def assert_equal_gradients(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def assert_of_the_global_batch(results, count=8):
    loss, expected = gradients_of_shards(count)
    for found, gradients in results:
        assert float(found) == pytest.approx(loss, rel=1e-5)
        assert_equal_gradients(gradients, expected)


def of_branches(count, **options):
    return Reduction(**options)(state_of(branches(), examples(count)))


OPTIONS = {
    "hook": {"comm_hook": allreduce_hook},
    "hook in many messages": {"comm_hook": allreduce_hook, "bucket_cap_mb": 1e-6},
    "many messages": {"bucket_cap_mb": 1e-6},
    "one message": {},
}
PASSES = [{}, {"passes": 2}, {"observed": True}, {"auto": True}, {"passes": 3, "observed": True}]


CASES = [
    *(
        (count, {"ddp": ddp}) for ddp in WAYS.values() for count in (8, 5, 3)
    ),  # 3: fewer than shards
    *(
        (8, {"ddp": DDP(**OPTIONS[name]), **more})
        for name in OPTIONS
        for more in PASSES[: 5 if name in ("many messages", "one message") else 3]
    ),
]


@pytest.mark.parametrize(("count", "options"), CASES)
def test_gradients_are_those_of_the_global_batch_in_any_passes_and_messages(count, options):
    assert_of_the_global_batch(run(partial(of_branches, count, **options), 2), count)


def of_layers(ddp, options, steps):
    reduction, model = Reduction(ddp, 2, **options), two_layers()
    found = []
    for _ in range(steps):
        found.append(reduction(state_of(model, examples(4))))
        model.zero_grad()
    return found


@pytest.mark.parametrize("options", [{}, {"passes": 2}, {"observed": True}])
@pytest.mark.parametrize("ddp", [DDP(), DDP(comm_hook=bf16_compress_hook)])
def test_gradients_of_all_steps_are_the_same_with_options_of_torch(ddp, options):
    model, (inputs, targets) = two_layers(), examples(4)
    expected = cross_entropy(model(inputs), targets)
    expected.backward()
    tolerance = {"rtol": 1e-2, "atol": 1e-3} if ddp.comm_hook else {"rtol": 1e-5, "atol": 1e-6}
    for steps in run(of_layers, 2, ddp, options, 3):
        for loss, gradients in steps:
            torch.testing.assert_close(loss, expected.detach())  # not compressed
            for one, other in zip(gradients, gradients_of(model), strict=True):
                torch.testing.assert_close(one, other, **tolerance)


def changed_on_rank_1(ddp):
    reduction = Reduction(ddp, 2, observed=True)
    gradients = reduction.gradients

    def changed(*args):
        state = gradients(*args)
        if reduction.processes.rank == 1:
            state.model[1].weight.grad.mul_(2.0)
        return state

    reduction.compose(changed)
    return reduction(state_of(two_layers(), examples(4)))[1]


@IN_MESSAGES
def test_gradients_that_a_listener_may_change_are_sent_afterwards(ddp):
    inputs, targets = examples(4)
    model, grads = two_layers(), []
    for own, factor in ((slice(0, 2), 1.0), (slice(2, 4), 2.0)):
        model.zero_grad()
        (cross_entropy(model(inputs[own]), targets[own]) / 2).backward()
        model[1].weight.grad.mul_(factor)
        grads.append(gradients_of(model))
    for found in run(changed_on_rank_1, 2, ddp):
        assert_equal_gradients(found, [one + other for one, other in zip(*grads, strict=True)])


def two_layers():
    return filled(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))


class Ordered(nn.Module):
    """Layers that each rank uses in another order."""

    def __init__(self, rank):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2, bias=False)])
        self.order = [0, 1] if rank == 0 else [1, 0]
        filled(self)

    def forward(self, x):
        return sum(self.layers[i](x) for i in self.order)


def buffers_of_branches(ddp, count):
    model = branches()
    Reduction(ddp)(state_of(model, examples(count)))
    return model.seen, model.count


@IN_ANY_WAY
def test_buffers_are_the_mean_over_the_shards_and_counts_those_of_the_first(ddp):
    inputs, _ = examples(7)
    means = [one.mean() for one in inputs.split([1, 2, 2, 2])]
    for seen, count in run(buffers_of_branches, 2, ddp, 7):
        torch.testing.assert_close(seen, sum(means) / 4)  # every shard began with 0
        assert count == 1  # on a rank whose own shards have two examples too


def weighted(kind):
    terms = [0.5, 1.0, 2.25, 0.0]  # of each shard of two examples
    inputs, targets = examples(8)
    order = {float(inputs[2 * i, 0]): term for i, term in enumerate(terms)}
    reduction = Reduction(weight=lambda batch: kind(order[float(batch[0][0, 0])]))
    return reduction(state_of(filled(nn.Linear(3, 2)), (inputs, targets)))[0]


@pytest.mark.parametrize("kind", [torch.tensor, float])
def test_weights_are_shares_of_the_sum_over_all_processes(kind):
    inputs, targets = examples(8)
    weights = torch.tensor([0.5, 1.0, 2.25, 0.0]).repeat_interleave(2) / 3.75
    losses = cross_entropy(filled(nn.Linear(3, 2))(inputs), targets, reduction="none")
    expected = (losses * weights / 2).sum()
    for loss in run(weighted, 2, kind):
        torch.testing.assert_close(loss, expected.detach())


def omitting(on_cpu):
    inputs, targets = examples(6)
    model = filled(nn.Linear(3, 2))
    reduction = Reduction(shards=2, weight=ExampleCounter(BatchSpec()))
    rows = [[0, 1, 2], [4]][reduction.processes.rank]
    began = ShardSums.begin

    def beginning(sums, state):
        began(sums, state)
        sums.on_cpu = on_cpu

    sharded = shard_batch((inputs, targets), reduction.engine.shards)
    sharded = type(sharded)(
        ((inputs[rows], targets[rows]),),
        (None,),
        shards=sharded.shards,
        examples=Examples(3, 6),
    )
    with mock.patch.object(ShardSums, "begin", beginning):
        state = reduction.reduced(state_of(model).evolve(batch=sharded))
    return state.loss, model.weight.grad.clone()


@pytest.mark.parametrize("on_cpu", [True, False])
def test_examples_that_an_algorithm_omits_do_not_count(on_cpu):
    inputs, targets = examples(6)
    kept = [0, 1, 2, 4]  # the third shard has lost both of its last examples
    model = filled(nn.Linear(3, 2))
    expected = cross_entropy(model(inputs[kept]), targets[kept])
    expected.backward()
    for loss, grad in run(omitting, 2, on_cpu):
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(grad, model.weight.grad)


# --- messages ---


@contextmanager
def watching_messages(record):
    """Call a function with each bucket of gradients that is sent."""
    send = _Messages.send

    def recorded(messages, bucket):
        record(bucket)
        return send(messages, bucket)

    with mock.patch.object(_Messages, "send", recorded):
        yield


def order_of_messages(ddp):
    happened, model, reduction = [], two_layers(), Reduction(ddp)
    model[0].weight.register_post_accumulate_grad_hook(lambda _: happened.append("first layer"))
    with watching_messages(lambda bucket: happened.append(bucket.index())):
        reduction(state_of(model, examples(4)))
    return happened[-6:]  # in the second of two shards


def test_a_message_is_sent_before_earlier_layers_have_gradients():
    for happened in run(order_of_messages, 2, MANY):
        assert happened.index(0) < happened.index(1) < happened.index("first layer")
        assert [one for one in happened if one != "first layer"] == [0, 1, 2, 3, 4]


class Backwards(nn.Module):
    """Layers that are registered in another order than they are used."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(4, 2), nn.Linear(3, 4)
        filled(self)

    def forward(self, x):
        return self.last(self.first(x))


def parameters_of_messages(ddp, steps):
    model, found, reduction = Backwards(), [], Reduction(ddp, 2)

    def record(bucket):
        found[-1].append([tuple(one.shape) for one in bucket.parameters()])

    with watching_messages(record):
        for _ in range(steps):
            found.append([])
            reduction(state_of(model, examples(4)))
            model.zero_grad()
    return [one[-5:] for one in found]


def test_a_first_step_has_the_messages_of_later_ones():
    for first, second, third in run(parameters_of_messages, 2, MANY, 3):
        assert first == second == third
        assert first[:4] == [[(4,)], [(4, 3)], [(2,)], [(2, 4)]]


def failing_once():
    model, reduction, shards = branches(), Reduction(), []

    def fail_in_last_shard(grad):
        shards.append(1)
        if len(shards) == 2:
            raise OSError("no space")

    handle = model.left.weight.register_hook(fail_in_last_shard)
    with suppress(OSError):
        reduction(state_of(model, examples(8)))
    handle.remove()
    model.zero_grad()
    model.seen.zero_()
    return reduction(state_of(model, examples(8)))


def test_a_step_after_one_that_failed_on_all_ranks_is_that_of_a_new_run():
    assert_of_the_global_batch(run(failing_once, 2))


def without_memory():
    model, reduction, shards = branches(), Reduction(auto=True), []

    def full(grad):
        shards.append(1)
        if len(shards) == 2 and reduction.processes.rank == 1:  # the last one of rank 1
            raise torch.OutOfMemoryError("no memory")

    model.left.weight.register_hook(full)
    return *reduction(state_of(model, examples(8))), len(shards)


def test_a_rank_that_runs_out_of_memory_repeats_its_shards():
    found = run(without_memory, 2)
    assert [count for *_, count in found] == [2, 4]
    assert_of_the_global_batch([(loss, gradients) for loss, gradients, _ in found])


def changing(ddp):
    model, reduction, found = two_layers(), Reduction(ddp, 2), []
    for trained in (True, False, True):
        model[0].weight.requires_grad_(trained)
        found.append(reduction(state_of(model, examples(4)))[1])
        model.zero_grad()
    return found


@IN_MESSAGES
def test_parameters_may_be_frozen_and_trained_again(ddp):
    model, (inputs, targets) = two_layers(), examples(4)
    cross_entropy(model(inputs), targets).backward()
    weight, *others = gradients_of(model)
    for found in run(changing, 2, ddp):
        for gradients, first in zip(found, (weight, None, weight), strict=True):
            assert_equal_gradients(gradients, [first, *others])


# --- kinds of parameters ---


class Kinds(nn.Module):
    """A sparse embedding, a complex parameter and one of bfloat16, which is in the last message."""

    def __init__(self):
        super().__init__()
        self.low = nn.Parameter(torch.empty(3, dtype=torch.bfloat16))
        self.words = nn.Embedding(5, 3, sparse=True)
        self.phases = nn.Parameter(torch.empty(3, dtype=torch.complex64))
        filled(self)

    def forward(self, x):
        return (self.words(x) * self.phases.real + self.phases.imag) * self.low.float()


def mean_square(outputs, batch):
    return outputs.square().mean()


class Sometimes(nn.Module):
    """An embedding that only tokens above 1 use."""

    def __init__(self):
        super().__init__()
        self.words, self.score = nn.Embedding(5, 3, sparse=True), nn.Linear(1, 3)
        filled(self)

    def forward(self, x):
        scored = self.score(x.float().unsqueeze(-1))
        return scored + self.words(x) if x.max() > 1 else scored


class Scaled(nn.Module):
    """A loss with a parameter and a buffer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("last", torch.zeros(()))

    def forward(self, outputs, batch):
        self.last += outputs.detach().mean()
        return cross_entropy(outputs * self.scale, batch[1])


def with_loss_module(ddp):
    model, loss, shift = filled(nn.Linear(3, 2)), Scaled(), torch.zeros(2, requires_grad=True)
    optimizers = (SGD([*model.parameters(), *loss.parameters(), shift], 0.1),)
    state = state_of(
        model,
        examples(4),
        lambda outputs, batch: loss(outputs + shift, batch),
        loss_module=loss,
        optimizers=optimizers,
    )
    Reduction(ddp, 2)(state)
    return loss.scale.grad.clone(), shift.grad.clone(), loss.last


@IN_ANY_WAY
def test_a_module_that_computes_the_loss_and_tensors_of_optimizers_are_trained(ddp):
    (alone,) = run(with_loss_module, 1, ddp)
    for one in run(with_loss_module, 2, ddp):
        for tensor, expected in zip(one, alone, strict=True):
            torch.testing.assert_close(tensor, expected)


class Identity(torch.autograd.Function):
    """A function that has no gradient for one of its arguments."""

    @staticmethod
    def forward(ctx, x, ignored):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Odd(nn.Module):
    """A parameter with an undefined gradient, one that is not used, and a checkpoint."""

    def __init__(self):
        super().__init__()
        self.ignored, self.unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)
        filled(self)

    def forward(self, x):
        hidden = checkpoint(self.first, x.requires_grad_(), use_reentrant=True)
        return self.second(Identity.apply(hidden, self.ignored))


def cross(outputs, batch):
    return cross_entropy(outputs, batch[1])


KINDS = {
    "order of each rank": lambda rank: (Ordered(rank), *examples(4), cross),
    "sparse, complex, low precision": lambda rank: (Kinds(), *of_words(0, 1, 1, 3)),
    "sparse, on one rank": lambda rank: (Sometimes(), *of_words(0, 1, 2, 3)),
    "bfloat16": lambda rank: (
        filled(nn.Linear(3, 2, dtype=torch.bfloat16)),
        *(examples(4)[0].bfloat16(), examples(4)[1], cross),
    ),
    "undefined, or in a checkpoint": lambda rank: (Odd(), *examples(4), cross),
}


def of_words(*words):
    return torch.tensor(words), torch.tensor(words), mean_square


def of_kind(name, ddp):
    reduction, found = Reduction(ddp, 2), []
    model, inputs, targets, loss_fn = KINDS[name](reduction.processes.rank)
    for _ in range(2):
        loss, grads = reduction(state_of(model, (inputs, targets), loss_fn))
        sparse = [one is not None and one.is_sparse for one in grads]
        if isinstance(model, Kinds):
            assert any(sparse) is not ddp.exact  # gloo gathers the rows
        dense = [one.to_dense() if rows else one for one, rows in zip(grads, sparse, strict=True)]
        found.append((loss, dense))
        model.zero_grad()
    return found


@IN_ANY_WAY
@pytest.mark.parametrize("name", KINDS)
def test_gradients_of_every_kind_are_those_of_one_process(name, ddp):
    alone, inputs, targets, loss_fn = KINDS[name](0)
    outputs = torch.cat([alone(part) for part in inputs.split(2)])
    loss_fn(outputs, (inputs, targets)).backward()
    low = {"rtol": 5e-2, "atol": 1e-2} if name == "bfloat16" else {"rtol": 1e-2, "atol": 1e-5}
    of_loss = {"rtol": 2e-2, "atol": 1e-3} if name == "bfloat16" else {"rtol": 1e-5, "atol": 1e-5}

    for steps in run(of_kind, 2, name, ddp):
        for loss, gradients in steps:
            expected = loss_fn(outputs, (inputs, targets)).detach()
            torch.testing.assert_close(loss, expected, **of_loss)
            for one, other in zip(gradients, gradients_of(alone), strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    own = low if one.dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
                    torch.testing.assert_close(one, other.to_dense(), **own)


# --- sums ---


def test_the_tree_adds_neighbours_first():
    parts = [1e8, 1.0, -1e8, 1.0]  # in float32, from left to right: 1

    def work(processes):
        whole = torch.full((5,), parts[processes.rank])  # 5 is not a multiple of 4
        return all_reduce_exactly(whole, processes).tolist()

    assert run_ranks(work, 4) == [[0.0] * 5] * 4
    total = TreeSum()
    for part in parts:
        total.add([torch.tensor(part)])
    assert total.value == [torch.tensor(0.0)]
    assert run_ranks(lambda one: float(one.sum(torch.ones(1)))) == [2.0, 2.0]


def test_the_tree_of_parts_that_are_no_power_of_two_adds_the_last_ones_first():
    total = TreeSum()
    for part in (1e8, 0.0, 0.0, 0.0, 0.0, 3.0, 3.0):
        total.add([torch.tensor(part)])
    # (((0 + 3) + 3) + 1e8); 1e8 + 3 is 1e8 in float32
    assert total.value == [torch.tensor(1e8) + 6.0]


def test_kinds_have_the_last_parameters_first_and_one_dtype_each():
    tensors = [torch.ones(2), torch.ones(2), torch.ones(3).double(), torch.ones(1)]
    assert kinds_of(tensors) == [[3, 1, 0], [2]]
    assert kinds_of([]) == []
