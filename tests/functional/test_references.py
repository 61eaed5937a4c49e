"""Functions and hooks that close over modules: in a copy they refer to the copy's modules."""

import functools
from types import MethodType

import pytest
import torch
from torch import nn

from composable._support.surgery import copy_on_write
from composable.algorithms import EMA
from composable.functional import replace_modules, with_tensors
from tests.support.data import batches
from tests.support.runs import make_trainer


class Net(nn.Module):
    """A batch norm and a dropout that only a function calls."""

    def __init__(self, connect):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.9)
        connect(self)

    def forward(self, x):
        return self.f(self.linear(x))


def by_self(net):
    net.f = lambda x: net.drop(net.norm(x))


def by_modules(net):
    norm, drop = net.norm, net.drop
    net.f = lambda x: drop(norm(x))


def by_default(net):
    net.f = lambda x, norm=net.norm, *, drop=net.drop: drop(norm(x))


def by_container(net):
    parts = {"all": [net.norm, (net.drop, None)]}
    parts["self"] = parts
    net.f = lambda x: parts["all"][1][0](parts["all"][0](x))


def by_function(net):
    def inner(x):
        return net.norm(x)

    net.f = lambda x: net.drop(inner(x))


def by_recursion(net):
    def run(x, depth=1):
        return run(net.norm(x), depth - 1) if depth else net.drop(x)

    net.f = run


def by_bound_method(net):
    norm = net.norm.forward
    net.f = lambda x: net.drop(norm(x))


def by_method(net):
    norm = net.norm
    net.f = MethodType(lambda self, x: self.drop(norm(x)), net)


def by_partial(net):
    net.f = functools.partial(lambda drop, x: drop(net.norm(x)), net.drop)


def by_decorator(net):
    net.f = torch.enable_grad()(lambda x: net.drop(net.norm(x)))


def by_list(net):
    fs = net.fs = [lambda x: net.norm(x), lambda x: net.drop(x)]
    net.f = lambda x: fs[1](fs[0](x))


def by_hook(net):
    net.f = nn.Identity()
    norm, drop = net.norm, net.drop
    net.linear.register_forward_hook(lambda module, args, output: drop(norm(output)))


FORMS = [
    by_self,
    by_modules,
    by_default,
    by_container,
    by_function,
    by_recursion,
    by_bound_method,
    by_method,
    by_partial,
    by_decorator,
    by_list,
    by_hook,
]
forms = pytest.mark.parametrize("connect", FORMS)


def inputs():
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def plain(net, weights):
    """Compute what the model computes in evaluation mode with some weights."""
    tensors = dict(weights)
    x = torch.nn.functional.linear(inputs(), tensors["linear.weight"], tensors["linear.bias"])
    return torch.nn.functional.batch_norm(
        x,
        tensors["norm.running_mean"],
        tensors["norm.running_var"],
        tensors["norm.weight"],
        tensors["norm.bias"],
        eps=net.norm.eps,
    )


@forms
def test_copy_has_its_own_statistics_and_mode(connect):
    net = Net(connect)
    before = {name: value.clone() for name, value in net.state_dict().items()}

    copy = copy_on_write(net)
    copy.train()(inputs())
    assert torch.equal(copy.norm.num_batches_tracked, torch.tensor(1))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())

    assert torch.equal(copy.eval()(inputs()), plain(copy, copy.state_dict()))
    assert net.training
    net(inputs())
    assert copy.norm.num_batches_tracked == 1


@forms
def test_given_tensors_are_used(connect):
    net, other = Net(connect).eval(), Net(by_self).eval()
    tensors = {name: value + 1 for name, value in other.state_dict().items()}
    expected = net(inputs())

    assert torch.equal(with_tensors(net, tensors)(inputs()), plain(net, tensors))
    assert torch.equal(net(inputs()), expected)


class Negated(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return -self.inner(x)


@forms
def test_replacements_are_called(connect):
    net = Net(connect).eval()

    def rule(_, m):
        return Negated(m) if isinstance(m, nn.BatchNorm1d) else m

    new = replace_modules(net, rule).model

    assert torch.equal(new(inputs()), -net(inputs()))
    assert torch.equal(net(inputs()), plain(net, net.state_dict()))


def test_surgery_next_door_follows_mode():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    net = Net(by_self)

    def rule(_, m):
        return Doubled(4, 3) if isinstance(m, nn.Linear) else m

    new = replace_modules(net, rule).model

    assert torch.equal(new.eval()(inputs()), new(inputs()))
    assert net.drop.training


def test_other_state_of_functions_is_shared():
    net, seen = nn.Linear(4, 3), []
    calls = 0

    def hook(module, args, output):
        nonlocal calls
        calls += 1
        seen.append(net is module)

    net.register_forward_hook(hook)
    copy = copy_on_write(net)
    copy(inputs())
    net(inputs())

    assert seen == [True, True]
    assert calls == 2


def test_functions_without_references_stay_the_same():
    net, outside = nn.Linear(4, 3), nn.Linear(1, 1)
    net.f, net.g = (lambda x: outside(x)), torch.relu

    copy = copy_on_write(net)

    assert copy.f is net.f
    assert copy.g is net.g


def test_copied_function_keeps_its_description():
    net = nn.Linear(4, 3)

    def describe(x: int, *, scale: int = 2) -> int:
        """Describe."""
        return net.in_features * x * scale

    describe.tag = "kept"
    net.f = describe
    copy = copy_on_write(net)

    assert copy.f is not describe
    assert (copy.f.__name__, copy.f.__doc__, copy.f.tag) == ("describe", "Describe.", "kept")
    assert (copy.f.__annotations__, copy.f.__qualname__) == (
        describe.__annotations__,
        describe.__qualname__,
    )
    assert copy.f(3) == 24


def test_attribute_that_contains_itself():
    net = nn.Linear(4, 3)
    net.table = [1]
    net.table.append(net.table)

    copy = copy_on_write(net)

    assert copy.table[1] is copy.table
    assert copy.table is not net.table


def test_evaluation_with_averages_keeps_running_statistics():
    def train(**changes):
        net = Net(by_modules)
        net.load_state_dict({name: torch.ones_like(t) for name, t in net.state_dict().items()})
        make_trainer(net, algorithms=[EMA(half_life="2ba")], **changes).fit()
        return net.state_dict()

    with_evaluation, without = train(eval_dataloader=batches(12)), train()
    assert all(torch.equal(value, without[name]) for name, value in with_evaluation.items())
