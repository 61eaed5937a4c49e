"""Every function of the library on a simulated device: the CPU's bits, and the matrix's waits."""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from composable._support.tree import map_tensors, tensors_of
from composable.functional import cached_gradients
from composable.testing import functions
from composable.testing.properties import PROPERTIES, Subject, no_sync_on
from tests.simgpu import device
from tests.support.cases import all_function_cases
from tools.pages import SHOWN, recorded_answers

KIND = device.KIND
ROWS = [row for _, row in all_function_cases()]
DRAWING = [row for row in ROWS if "generator" in inspect.signature(row.function).parameters]

pytestmark = pytest.mark.filterwarnings("ignore")


def recorded(row):
    """Return what the matrix says about waits of a function."""
    return recorded_answers()[row.name][list(PROPERTIES).index("no_sync")]


@pytest.mark.skipif(KIND != "cuda", reason="the matrix is about CUDA")
@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_a_function_waits_on_a_device_where_the_matrix_says_so(row, monkeypatch):
    monkeypatch.setattr(functions, "PROPERTIES", {"no_sync": PROPERTIES["no_sync"]})
    answer = row.report().answers["no_sync"]

    assert SHOWN[answer.verdict] == recorded(row), answer


@pytest.mark.skipif(KIND != "cuda", reason="PyTorch's mode is for CUDA")
def test_the_second_call_is_watched_where_draws_stay_on_the_cpu():
    calls = []

    def reads(images, draw, model):
        calls.append((images.device.type, draw.device.type, device.core.forbids_waits()))
        return images.sum().item()

    given = torch.rand(2, 3), torch.ones(()), nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match="synchronizing"):
        no_sync_on(torch.device(KIND), Subject(reads, make=lambda size: given, inputs=None))
    assert calls == [(KIND, "cpu", False), (KIND, "cpu", True)]
    assert given[2].weight.is_cpu
    assert not device.core.forbids_waits()


def results(row, where, generator_on=None):
    """Call a function with arguments on a device; return the tensors of its result, and waits."""

    def moved(value):
        if isinstance(value, nn.Module):
            return copy.deepcopy(value).to(where)
        return map_tensors(lambda tensor: tensor.to(where), value)

    torch.manual_seed(5)
    given = {k: v if k == "draw" else moved(v) for k, v in row.valid().items()}
    if generator_on is not None:
        given["generator"] = torch.Generator(generator_on).manual_seed(3)
    torch.manual_seed(5)
    bound = inspect.signature(row.function).bind_partial()
    bound.arguments.update(
        {name: given[name] for name in bound.signature.parameters if name in given}
    )
    device.reset()
    with sdpa_kernel(SDPBackend.MATH):
        result = row.function(*bound.args, **bound.kwargs)
    waits = device.waits()
    if isinstance(result, nn.Module):
        result, waits = result.state_dict(), {}  # a surgery is called once, not in a step
    return [tensor.cpu() for tensor in tensors_of(result)], waits


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_a_function_gives_the_values_of_the_cpu(row):
    assert_close(results(row, KIND)[0], results(row, "cpu")[0], rtol=0, atol=0, equal_nan=True)


WAITING = {prefix + name for name in ("augmix", "randaugment") for prefix in ("", "draw_")}
"""The functions whose cards say that a generator on a GPU makes them wait."""


@pytest.mark.parametrize("generator_on", ["cpu", KIND])
@pytest.mark.parametrize("row", DRAWING, ids=repr)
def test_a_function_draws_from_a_generator_of_any_device(row, generator_on):
    found, waits = results(row, KIND, generator_on)
    assert_close(found, results(row, "cpu", "cpu")[0], rtol=0, atol=0, equal_nan=True)
    if generator_on == KIND and repr(row) not in WAITING:  # draws on the CPU are copied
        assert not waits or recorded(row) != "yes"


def test_cached_gradients_refuse_a_generator_that_the_host_would_wait_for():
    generator = torch.Generator(KIND)
    with pytest.raises(ValueError, match=f"generator must be on the CPU, not on {KIND}"):
        cached_gradients(nn.Linear(2, 2), [torch.ones(1, 2)], torch.sum, {}, generator=generator)
