"""The laws of copying a model's structure, and of replacing parts of the copy."""

import functools
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close

from composable.functional import NoEffectWarning, with_tensors
from composable.functional._surgery import copy_on_write, replace_modules


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
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))


# Copies


def test_a_copy_computes_the_same_with_the_same_parameters():
    model = net()
    copy = copy_on_write(model)

    assert torch.equal(copy.eval()(inputs()), model.eval()(inputs()))
    pairs = zip(copy.parameters(), model.parameters(), strict=True)
    assert all(a is b for a, b in pairs)
    assert list(copy.state_dict()) == list(model.state_dict())


def test_what_is_done_to_a_copy_does_not_reach_the_original():
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


def test_gradients_reach_the_shared_parameters():
    model = nn.Linear(4, 1)

    copy_on_write(model)(inputs()).sum().backward()

    assert model.weight.grad is not None


def test_modules_in_several_places_and_ties_stay():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Linear(4, 4), shared)
    model[1].weight = shared.weight

    copy = copy_on_write(model)

    assert copy[0] is copy[2]
    assert copy[1].weight is copy[0].weight


def test_locks_and_loose_tensors_are_shared():
    model = nn.Linear(4, 4)
    model.lock = threading.Lock()
    model.loose = [model.weight * 2]  # not a leaf, which deepcopy refuses

    copy = copy_on_write(model)

    assert copy.lock is model.lock
    assert copy.loose[0] is model.loose[0]


@pytest.mark.parametrize(
    "model",
    [
        parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.utils.spectral_norm(nn.Linear(4, 4)),
        torch.fx.symbolic_trace(net()),
    ],
)
def test_a_copy_of_an_unusual_model_works(model):
    model.eval()

    assert_close(copy_on_write(model)(inputs()), model(inputs()))


def test_parts_of_a_traced_model_are_replaced():
    model = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    new, _ = replace_modules(model, double)

    assert_close(new(inputs()), (2 * model.get_submodule("0")(inputs())).relu())


def compiled(module):
    return torch.compile(module, backend="aot_eager")


COMPILED = {
    "model": lambda: compiled(nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
    "0": lambda: nn.Sequential(compiled(nn.Linear(4, 4)), nn.ReLU()),
    "1": lambda: nn.Sequential(nn.ReLU(), compiled(nn.Sequential(nn.Linear(4, 4)))),
}


@pytest.mark.parametrize("part", COMPILED)
def test_what_was_compiled_is_refused(part):
    model = COMPILED[part]()

    with pytest.raises(
        ValueError, match=rf"{part} must not be compiled yet.* compile it afterwards"
    ):
        replace_modules(model, double)
    assert replace_modules(model, lambda _, module: module) == (model, 0)


@pytest.mark.compile
def test_beside_what_was_compiled_parts_are_replaced():
    model = nn.Sequential(compiled(nn.ReLU()), nn.Linear(4, 4))

    new, _ = replace_modules(model, double)

    assert_close(new(inputs()), 2 * model[1](inputs().relu()))


@pytest.mark.parametrize("part", ["", "0"])
def test_a_model_that_was_compiled_in_place_is_refused(part):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.get_submodule(part).compile(backend="aot_eager")

    with pytest.raises(ValueError, match=f"{part or 'model'} must not be compiled"):
        replace_modules(model, double)
    assert replace_modules(model, lambda _, module: module) == (model, 0)


def test_a_distributed_model_is_refused():
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    with pytest.raises(ValueError, match="model must not be wrapped in DistributedDataParallel"):
        copy_on_write(wrapped)


# Other tensors


def test_a_model_computes_with_given_tensors_and_the_original_with_its_own():
    model, other = net().eval(), net().eval()
    expected = model(inputs())

    new = with_tensors(model, other.state_dict())

    assert torch.equal(new(inputs()), other(inputs()))
    assert torch.equal(model(inputs()), expected)


def test_given_parameters_are_not_copied_and_given_buffers_are():
    model, tensors = net(), {name: t.clone() for name, t in net().state_dict().items()}

    new = with_tensors(model, tensors)
    new.train()(inputs())

    assert new[0].weight.data_ptr() == tensors["0.weight"].data_ptr()
    assert isinstance(new[0].weight, nn.Parameter)
    assert tensors["1.num_batches_tracked"] == 0


def test_what_is_not_named_stays_shared():
    model = net()
    new = with_tensors(model, {"0.bias": torch.zeros(4)})

    assert new[2].weight is model[2].weight
    assert new[0].bias is not model[0].bias


def test_a_long_average_is_read_in_the_dtype_of_the_model():
    model = nn.Linear(4, 2).bfloat16()
    average = {name: t.float() for name, t in model.state_dict().items()}

    assert with_tensors(model, average).weight.dtype == torch.bfloat16


def test_a_frozen_parameter_stays_frozen():
    model = nn.Linear(4, 2)
    model.weight.requires_grad_(False)

    new = with_tensors(model, {"weight": torch.ones(2, 4), "bias": torch.ones(2)})

    assert not new.weight.requires_grad
    assert new.bias.requires_grad


def test_either_name_of_a_tie_will_do():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight

    new = with_tensors(model, {"1.weight": torch.ones(4, 4)})

    assert new[0].weight is new[1].weight
    assert (new[0].weight == 1).all()


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"tensors has wait, but the model has no parameter"):
        with_tensors(net(), {"wait": torch.ones(1)})


def test_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"tensors\['weight'\] must have shape \(2, 4\)"):
        with_tensors(nn.Linear(4, 2), {"weight": torch.ones(1)})


# Replacements


def test_replacing_leaves_the_original_alone():
    model = net().eval()
    before, expected = repr(model), model(inputs())

    new, count = replace_modules(model, double)

    assert count == 2
    assert repr(model) == before
    assert torch.equal(model(inputs()), expected)
    assert_close(new(inputs()), 2 * new[2].inner(new[1](2 * model[0](inputs()))))


def test_replacing_nothing_gives_the_model_itself():
    model = net()

    assert replace_modules(model, keep) == (model, 0)


def test_the_model_itself_may_be_replaced():
    new, count = replace_modules(nn.Linear(4, 4), double)

    assert isinstance(new, Doubled)
    assert count == 1


def test_a_module_in_several_places_is_replaced_once_and_stays_shared():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)

    new, count = replace_modules(model, double)

    assert count == 1
    assert new[0] is new[2]


def test_children_are_replaced_before_their_parents():
    seen = []
    replace_modules(nn.Sequential(net()), lambda name, module: seen.append(name) or module)

    assert seen == ["0.0", "0.1", "0.2", "0", ""]


def test_replacements_are_followed_in_plain_attributes():
    model = net()
    model.first, model.others, model.pair = [model[0]], {"last": model[2]}, (model[0], 1)
    model.call, model.partial = model[0].forward, functools.partial(model[2].forward)
    object.__setattr__(model, "alias", model[0])

    new, _ = replace_modules(model, double)

    assert new.first[0] is new[0]
    assert new.others["last"] is new[2]
    assert new.pair == (new[0], 1)
    assert new.alias is new[0]
    assert new.call.__self__ is new[0]
    assert new.partial.func.__self__ is new[2]
    assert model.first[0] is model[0]


def test_a_function_that_holds_something_else_is_not_reported():
    model = net()
    norm = model[1]
    model.shortcut = lambda x: norm(x)

    replace_modules(model, double)  # warnings are errors here


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.MultiheadAttention(4, 2), "out_proj"),
        (nn.TransformerEncoderLayer(4, 2, 4), "linear1"),
    ],
)
def test_a_parent_that_reads_weights_is_reported(model, name):
    with pytest.warns(NoEffectWarning) as warned:
        replace_modules(model, double)

    assert any(f"{name} was replaced, but" in str(w.message) for w in warned)


def test_one_end_of_a_tie_is_reported():
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


def test_both_ends_of_a_tie_may_be_replaced():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight

    new, count = replace_modules(
        model, lambda name, module: nn.Linear(4, 4) if isinstance(module, nn.Linear) else module
    )  # warnings are errors here

    assert count == 2
    assert new[0].weight is not model[0].weight
