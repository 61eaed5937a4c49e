"""Copies of a model's structure, and modules that are replaced in the copy."""

import functools
import operator
import threading
from types import MethodType

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, linear
from torch.nn.utils import parametrizations
from torch.testing import assert_close

from composable._support.surgery import copy_on_write
from composable.functional import NoEffectWarning, replace_modules, with_tensors


class Doubled(nn.Module):
    """A wrapper to replace linears by."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 2 * self.inner(x)


def double(name, module):
    return Doubled(module) if isinstance(module, nn.Linear) else module


def keep(name, module):
    return module


def inputs():
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))


# Copies


def test_copy_shares_parameters_and_computes_the_same():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.BatchNorm1d(4), nn.Linear(4, 4), shared).eval()
    model[2].weight = shared.weight

    copy = copy_on_write(model)
    copy(inputs()).sum().backward()

    assert torch.equal(copy(inputs()), model(inputs()))
    assert all(map(operator.is_, copy.parameters(), model.parameters()))
    assert list(copy.state_dict()) == list(model.state_dict())
    assert copy[0] is copy[3]
    assert copy[2].weight is copy[0].weight
    assert model[0].weight.grad is not None


def test_changes_of_a_copy_do_not_reach_the_original():
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    copy = copy_on_write(model)

    copy.train()(inputs())  # moves the running statistics
    copy.eval()
    copy[0].register_forward_hook(lambda *_: None)
    copy[2] = nn.Identity()

    assert model.training
    assert not model[0]._forward_hooks
    assert isinstance(model[2], nn.Linear)
    assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_copy_shares_locks_and_tensors_that_are_not_leaves():
    model = nn.Linear(4, 4)
    model.lock = threading.Lock()
    model.loose = [model.weight * 2]  # not a leaf, which deepcopy refuses

    copy = copy_on_write(model)

    assert copy.lock is model.lock
    assert copy.loose[0] is model.loose[0]


@pytest.mark.parametrize(
    "build",
    [parametrizations.weight_norm, nn.utils.spectral_norm, torch.fx.symbolic_trace],
)
def test_copies_and_changes_parametrized_and_traced_modules(build):
    model = nn.Sequential(build(nn.Linear(4, 4))).eval()

    assert_close(copy_on_write(model)(inputs()), model(inputs()))
    new = replace_modules(
        model, lambda name, module: Doubled(module) if name == "0" else module
    ).model
    assert_close(new(inputs()), 2 * model(inputs()))


def test_replaces_modules_of_a_traced_model():
    model = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    new = replace_modules(model, double).model

    assert_close(new(inputs()), (2 * model.get_submodule("0")(inputs())).relu())


@pytest.mark.parametrize("part", ["model", "0", "1"])
def test_rejects_only_changes_of_what_is_compiled(part):
    compiled = torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="aot_eager")
    model = {
        "model": compiled,
        "0": nn.Sequential(compiled, nn.ReLU()),
        "1": nn.Sequential(nn.ReLU(), compiled),
    }[part]

    message = rf"{part} must not be compiled yet.* compile it afterwards"
    with pytest.raises(ValueError, match=message):
        replace_modules(model, double)
    assert replace_modules(model, keep).model is model
    beside = replace_modules(
        nn.Sequential(model, nn.Linear(4, 4)),
        lambda name, module: Doubled(module) if name == "1" else module,
    ).model
    assert isinstance(beside[1], Doubled)


# Other tensors


def test_new_tensors_are_used_by_the_new_model_only():
    model, other = net().eval(), net().eval()
    expected, tensors = model(inputs()), other.state_dict()

    new = with_tensors(model, tensors)

    assert torch.equal(new(inputs()), other(inputs()))
    assert torch.equal(model(inputs()), expected)
    assert new[0].weight.data_ptr() == tensors["0.weight"].data_ptr()
    assert isinstance(new[0].weight, nn.Parameter)
    new.train()(inputs())
    assert tensors["1.num_batches_tracked"] == 0  # buffers are cloned


def test_new_tensors_take_dtype_and_requires_grad_of_the_old():
    model = nn.Linear(4, 2).bfloat16()
    model.weight.requires_grad_(False)

    new = with_tensors(model, {"weight": torch.ones(2, 4), "bias": torch.ones(2)})
    assert with_tensors(model, {"bias": torch.ones(2)}).weight is model.weight

    assert new.weight.dtype == torch.bfloat16
    assert (new.weight.requires_grad, new.bias.requires_grad) == (False, True)


def test_tied_parameter_has_several_names():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight

    new = with_tensors(model, {"1.weight": torch.ones(4, 4)})

    assert new[0].weight is new[1].weight
    assert (new[0].weight == 1).all()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"wait": torch.ones(1)}, r"tensors has wait, but the model has no parameter"),
        ({"0.weight": torch.ones(1)}, r"tensors\['0.weight'\] must have shape \(4, 4\)"),
    ],
)
def test_rejects_unknown_names_and_other_shapes(tensors, message):
    with pytest.raises(ValueError, match=message):
        with_tensors(net(), tensors)


# Replacements


def test_replacing_does_not_modify_the_original():
    model = net().eval()
    before, expected = repr(model), model(inputs())

    result = replace_modules(model, double)
    new = result.model

    assert result.names == ("0", "2")
    assert result.without_effect == ()
    assert repr(model) == before
    assert torch.equal(model(inputs()), expected)
    assert_close(new(inputs()), 2 * new[2].inner(new[1](2 * model[0](inputs()))))
    assert replace_modules(model, keep).model is model


def test_children_are_replaced_before_their_parents():
    seen = []
    replace_modules(nn.Sequential(net()), lambda name, module: seen.append(name) or module)

    assert seen == ["0.0", "0.1", "0.2", "0", ""]
    assert isinstance(replace_modules(nn.Linear(4, 4), double).model, Doubled)


def test_plain_attributes_refer_to_the_replacements():
    model = net()
    model.first, model.others, model.pair = [model[0]], {"last": model[2]}, (model[0], 1)
    model.call, model.partial = model[0].forward, functools.partial(model[2].forward)
    object.__setattr__(model, "alias", model[0])

    new = replace_modules(model, double).model

    assert new.first[0] is new[0]
    assert new.others["last"] is new[2]
    assert new.pair == (new[0], 1)
    assert new.alias is new[0]
    assert new.call.__self__ is new[0]
    assert new.partial.func.__self__ is new[2]
    assert model.first[0] is model[0]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.MultiheadAttention(4, 2), "out_proj"),
        (nn.TransformerEncoderLayer(4, 2, 4), "linear1"),
    ],
)
def test_warns_of_a_parent_that_reads_weights(model, name):
    with pytest.warns(NoEffectWarning) as warned:
        result = replace_modules(model, double)

    assert any(f"{name} was replaced, but" in str(w.message) for w in warned)
    assert any(problem.startswith(f"{name} was replaced") for problem in result.without_effect)


def test_rejects_a_rule_that_forgets_to_return_the_module():
    with pytest.raises(TypeError, match=r"rule must return a module, .* for 0 it returned None"):
        replace_modules(nn.Sequential(nn.Linear(4, 4)), lambda name, module: None)


def test_warns_if_one_of_two_tied_parameters_is_replaced():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

    def fresh(name, module):
        return nn.Linear(4, 5) if isinstance(module, nn.Linear) else module

    with pytest.warns(NoEffectWarning, match=r"embed.weight was shared by 2 modules"):
        replace_modules(Language(), fresh)
    replace_modules(Language(), double)  # this one keeps the tie, and does not warn
    tied = nn.Sequential(nn.Linear(4, 5), nn.Linear(4, 5))
    tied[1].weight = tied[0].weight
    assert replace_modules(tied, fresh).names == ("0", "1")


def test_replaced_modules_are_logged(logged):
    kinds = {nn.Linear: Doubled, nn.BatchNorm1d: nn.Sequential}
    replace_modules(net(), lambda name, module: kinds.get(type(module), nn.Identity)(module))

    assert logged == [
        "replaced 4 modules: 1 Sequential by Identity, 2 Linear by Doubled, "
        "1 BatchNorm1d by Sequential"
    ]


# --- functions and hooks that close over modules ---


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


def plain(net, weights):
    """Compute what the model computes in evaluation mode with some weights."""
    x = linear(inputs(), weights["linear.weight"], weights["linear.bias"])
    names = ("running_mean", "running_var", "weight", "bias")
    return batch_norm(x, *(weights[f"norm.{name}"] for name in names), eps=net.norm.eps)


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


@forms
def test_replacements_are_called(connect):
    net = Net(connect).eval()

    def rule(_, m):
        return Doubled(m) if isinstance(m, nn.BatchNorm1d) else m

    new = replace_modules(net, rule).model

    assert torch.equal(new(inputs()), 2 * net(inputs()))
    assert torch.equal(net(inputs()), plain(net, net.state_dict()))


def test_surgery_next_door_follows_mode():
    net = Net(by_self)

    new = replace_modules(net, double).model

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
