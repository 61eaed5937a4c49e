"""The gradients of shards, summed over ranks that are threads."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from composable import State
from composable.core.batch_spec import BatchSpec
from composable.core.key import Key
from composable.core.loss_mean import Declared, ExampleCounter
from composable.core.loss_weights import LossWeights
from composable.data.grouping import Examples, shards_of, split_into_shards
from composable.distributed import Shards
from composable.distributed.reduction import TreeSum, all_reduce, all_reduce_exactly
from composable.engines import buckets
from composable.engines.ddp import Replicated
from composable.engines.exact import Exact
from composable.engines.shares import LossShares, times
from composable.trainer.microbatches import Microbatches, each_shard, fit_memory, reduce
from tests.support.threads import run_ranks


def filled(model):
    """Set parameters to values without torch's generator, which the threads share."""
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

    def __init__(self, processes, shards=4, *, exact=False, auto=False, weight=None, passes=1):
        self.engine = (Exact if exact else Replicated)(shards=Shards(shards, processes))
        if auto:
            self.engine.overlaps = False
        counted = Declared(weight or (lambda batch: len(batch[1])))
        self.passes, self.engine.shares = passes, LossShares(LossWeights(counted), None)
        self.auto = auto
        self.compose(self.gradients)

    def compose(self, gradients):
        """Sum the gradients of all shards."""
        added = each_shard(gradients)
        if self.auto:
            added = fit_memory(added, Microbatches(auto=True))
        self.reduced = reduce(added, self.engine)

    def compute_loss(self, state):
        loss = state.loss_fn(state.forward(), state.batch)
        return state, None, loss, loss

    def gradients(self, state, sums, index=0, last=True, empty=False):
        """Compute the gradients of a shard, in one or several backward passes."""
        total = 0.0
        for number in range(self.passes):
            sums.begin_part(last and number == self.passes - 1)
            *_, loss, share = sums.shares.compute(
                self.compute_loss, state, state.batch, empty=empty
            )
            loss = times(loss, share) / self.passes
            loss.backward()
            total = total + loss.detach()
        return state.evolve_unchecked(loss=total)

    def __call__(self, state):
        """Return the loss and the gradients of a global batch."""
        sharded = shard_batch(state.batch, self.engine.shards)
        state = self.reduced(state.evolve(batch=sharded))
        return state, [parameter.grad for parameter in state.model.parameters()]


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
    return total, [parameter.grad for parameter in model.parameters()]


@pytest.fixture(params=[1, 2**20], ids=["many messages", "one message"])
def bucket_size(request, monkeypatch):
    """Send gradients from a number of bytes."""
    monkeypatch.setattr(buckets.buckets_of, "__defaults__", (request.param,))


def assert_equal_gradients(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("bucket_size")
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("count", [8, 5, 3])  # the last has fewer examples than shards
def test_gradients_are_those_of_the_global_batch(count, exact):
    loss, expected = gradients_of_shards(count)

    def work(processes):
        return Reduction(processes, exact=exact)(
            state_of(Branches(processes.rank), examples(count))
        )

    for state, found in run_ranks(work):
        assert float(state.loss) == pytest.approx(loss, rel=1e-5)
        assert_equal_gradients(found, expected)


@pytest.mark.usefixtures("bucket_size")
def test_gradients_of_several_backward_passes_are_summed():
    _, expected = gradients_of_shards(8)

    def work(processes):
        reduction = Reduction(processes, passes=2)
        return reduction(state_of(Branches(processes.rank), examples(8)))[1]

    for found in run_ranks(work):
        assert_equal_gradients(found, expected)


@pytest.mark.usefixtures("bucket_size")
def test_gradients_that_one_rank_changes_after_they_were_sent_are_sent_again():
    def work(processes):
        reduction = Reduction(processes, 2)
        gradients = reduction.gradients

        def changed(*args):
            state = gradients(*args)
            if processes.rank == 1:
                state.model[1].weight.grad.mul_(2.0)
            return state

        reduction.compose(changed)
        return reduction(state_of(two_layers(), examples(4)))[1]

    inputs, targets = examples(4)
    model, grads = two_layers(), []
    for own, factor in ((slice(0, 2), 1.0), (slice(2, 4), 2.0)):
        model.zero_grad()
        (cross_entropy(model(inputs[own]), targets[own]) / 2).backward()
        model[1].weight.grad.mul_(factor)
        grads.append([parameter.grad for parameter in model.parameters()])
    for found in run_ranks(work):
        assert_equal_gradients(found, [one + other for one, other in zip(*grads, strict=True)])


def two_layers():
    return filled(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))


@pytest.mark.usefixtures("bucket_size")
def test_messages_have_one_order_whatever_that_of_the_backward_pass():
    class Ordered(nn.Module):
        def __init__(self, rank):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2, bias=False)])
            self.order = [0, 1] if rank == 0 else [1, 0]
            filled(self)

        def forward(self, x):
            return sum(self.layers[i](x) for i in self.order)

    inputs, targets = examples(4)
    alone = Ordered(0)
    cross_entropy(alone(inputs), targets).backward()

    def work(processes):
        return Reduction(processes, 2)(state_of(Ordered(processes.rank), (inputs, targets)))[1]

    for found in run_ranks(work):
        assert_equal_gradients(found, [parameter.grad for parameter in alone.parameters()])


def test_buffers_are_the_mean_over_the_shards():
    inputs, _ = examples(8)
    means = [inputs[2 * shard : 2 * shard + 2].mean() for shard in range(4)]

    def work(processes):
        return Reduction(processes)(state_of(Branches(processes.rank), examples(8)))[0].model.seen

    for seen in run_ranks(work):
        torch.testing.assert_close(seen, sum(means) / 4)  # every shard began with 0


@pytest.mark.parametrize("weight", [torch.tensor, float])
def test_weights_are_shares_of_the_sum_over_all_processes(weight):
    terms = [0.5, 1.0, 2.25, 0.0]  # of each shard of two examples
    inputs, targets = examples(8)
    weights = torch.tensor(terms).repeat_interleave(2) / 3.75
    model = nn.Linear(3, 2)
    nn.init.ones_(model.weight)
    losses = cross_entropy(model(inputs), targets, reduction="none")
    expected = (losses * weights / 2).sum()

    def work(processes):
        own = nn.Linear(3, 2)
        own.load_state_dict(model.state_dict())
        order = {float(inputs[2 * i, 0]): term for i, term in enumerate(terms)}
        reduction = Reduction(processes, weight=lambda batch: weight(order[float(batch[0][0, 0])]))
        return reduction(state_of(own, (inputs, targets)))[0].loss

    for loss in run_ranks(work):
        torch.testing.assert_close(loss, expected.detach())


def test_examples_that_an_algorithm_omits_do_not_count():
    inputs, targets = examples(6)
    kept = [0, 1, 2, 4]  # the third shard has lost both of its last examples
    model = nn.Linear(3, 2)
    expected = cross_entropy(model(inputs[kept]), targets[kept])
    expected.backward()

    def work(processes):
        own = nn.Linear(3, 2)
        own.load_state_dict(model.state_dict())
        reduction = Reduction(processes, 2, weight=ExampleCounter(BatchSpec()))
        rows = [[0, 1, 2], [4]][processes.rank]
        sharded = shard_batch((inputs, targets), reduction.engine.shards)
        sharded = type(sharded)(
            ((inputs[rows], targets[rows]),),
            (None,),
            shards=sharded.shards,
            examples=Examples(3, 6),
        )
        state = reduction.reduced(state_of(own).evolve(batch=sharded))
        return state.loss, own.weight.grad

    for loss, grad in run_ranks(work):
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(grad, model.weight.grad)


# --- messages ---


def test_a_message_is_sent_before_earlier_layers_have_gradients(monkeypatch):
    monkeypatch.setattr(buckets.buckets_of, "__defaults__", (1,))
    happened = []
    send = buckets.OverlappedSum._send

    def recorded(self, *more):
        happened.append((self.processes.rank, "sent"))
        return send(self, *more)

    monkeypatch.setattr(buckets.OverlappedSum, "_send", recorded)

    def work(processes):
        model = two_layers()
        first = (processes.rank, "first layer")
        model[0].weight.register_post_accumulate_grad_hook(lambda _: happened.append(first))
        Reduction(processes)(state_of(model, examples(4)))

    run_ranks(work)
    for rank in range(2):
        own = [what for one, what in happened if one == rank]
        # Of two shards, the last one; of four parameters, those of the last layer.
        assert own[:4] == ["first layer", "sent", "sent", "sent"]
        assert own.count("sent") == 4


@pytest.mark.usefixtures("bucket_size")
def test_nothing_is_left_of_a_step_that_failed():
    def work(processes):
        model = Branches(processes.rank)
        reduction = Reduction(processes)

        shards = []

        def fail_in_last_shard(grad):
            shards.append(1)
            if len(shards) == 2:
                raise OSError("no space")

        model.left.weight.register_hook(fail_in_last_shard)
        with suppress(OSError):
            reduction(state_of(model, examples(8)))
        hooks = [parameter._post_accumulate_grad_hooks for parameter in model.parameters()]
        return [one for one in hooks if one]

    assert run_ranks(work) == [[]] * 2


@pytest.mark.usefixtures("bucket_size")
def test_a_rank_that_runs_out_of_memory_repeats_its_shards():
    _, expected = gradients_of_shards(8)
    shards = []

    def work(processes):
        model = Branches(processes.rank)

        def full(grad):
            shards.append(processes.rank)
            if shards.count(1) == 2 and processes.rank == 1:  # the last one of rank 1
                raise torch.OutOfMemoryError("no memory")

        model.left.weight.register_hook(full)
        return Reduction(processes, auto=True)(state_of(model, examples(8)))[1]

    for found in run_ranks(work):
        assert_equal_gradients(found, expected)
    assert shards.count(1) == 4


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


@pytest.mark.usefixtures("bucket_size")
@pytest.mark.parametrize("exact", [False, True])
def test_gradients_of_sparse_complex_and_low_precision_parameters(exact):
    words = torch.tensor([0, 1, 1, 3])
    alone = Kinds()
    mean_square(alone(words), None).backward()

    def work(processes):
        state = state_of(Kinds(), (words, words), mean_square)
        return Reduction(processes, 2, exact=exact)(state)

    for state, found in run_ranks(work):
        for grad, parameter in zip(found, alone.parameters(), strict=True):
            expected = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            tolerance = 1e-2 if grad.dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(grad, expected, rtol=tolerance, atol=1e-5)
        torch.testing.assert_close(state.loss, mean_square(alone(words), None).detach())


@pytest.mark.parametrize("exact", [False, True])
def test_gradients_of_a_model_in_bfloat16(exact):
    inputs, targets = examples(4)
    batch = inputs.bfloat16(), targets
    alone = nn.Linear(3, 2, dtype=torch.bfloat16)
    loss = cross_entropy(alone(batch[0]), targets)
    loss.backward()

    def work(processes):
        model = nn.Linear(3, 2, dtype=torch.bfloat16)
        model.load_state_dict(alone.state_dict())
        return Reduction(processes, 2, exact=exact)(state_of(model, batch))

    for state, (weight, bias) in run_ranks(work):
        assert state.loss.dtype == torch.bfloat16
        torch.testing.assert_close(state.loss, loss.detach(), rtol=2e-2, atol=1e-3)
        torch.testing.assert_close(weight, alone.weight.grad, rtol=5e-2, atol=1e-2)
        torch.testing.assert_close(bias, alone.bias.grad, rtol=5e-2, atol=1e-2)


@pytest.mark.parametrize("exact", [False, True])
def test_a_module_that_computes_the_loss_and_tensors_of_optimizers_are_trained(exact):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.register_buffer("last", torch.zeros(()))

        def forward(self, outputs, batch):
            self.last += outputs.detach().mean()
            return cross_entropy(outputs * self.scale, batch[1])

    def results(processes):
        model, loss, shift = filled(nn.Linear(3, 2)), Scaled(), torch.zeros(2, requires_grad=True)
        optimizers = (SGD([*model.parameters(), *loss.parameters(), shift], 0.1),)
        state = state_of(
            model,
            examples(4),
            lambda outputs, batch: loss(outputs + shift, batch),
            loss_module=loss,
            optimizers=optimizers,
        )
        Reduction(processes, 2, exact=exact)(state)
        return loss.scale.grad, shift.grad, loss.last

    (alone,) = run_ranks(results, 1)
    for one in run_ranks(results):
        for tensor, expected in zip(one, alone, strict=True):
            torch.testing.assert_close(tensor, expected)


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
    assert run_ranks(lambda one: float(all_reduce(torch.ones(1), one))) == [2.0, 2.0]


def test_the_tree_of_parts_that_are_no_power_of_two_adds_the_last_ones_first():
    total = TreeSum()
    for part in (1e8, 0.0, 0.0, 0.0, 0.0, 3.0, 3.0):
        total.add([torch.tensor(part)])
    # (((0 + 3) + 3) + 1e8); 1e8 + 3 is 1e8 in float32
    assert total.value == [torch.tensor(1e8) + 6.0]
