"""Law: a function never waits for a copy, and never reads one that has not arrived."""

import inspect

import pytest
from torch import Tensor
from torch.overrides import TorchFunctionMode

from composable.testing.properties import no_copies
from composable.utils.reproducibility import preserve_rng
from tests.support.function_cases import all_function_cases

ROWS = [row for _, row in all_function_cases()]
DRAWING = [row for row in ROWS if "generator" in inspect.signature(row.function).parameters]


class NoEarlyReads(TorchFunctionMode):
    """Raises at copies that would not have arrived on the CPU, were the tensor on a GPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is Tensor.to and result.device.type == "cpu" and (kwargs or {}).get("non_blocking"):
            raise AssertionError("a copy to the CPU must have arrived before it is read")
        return result


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "no_sync" not in row.expected_failures], ids=repr
)
def test_with_tensors_on_a_device_no_function_copies_from_the_host_and_waits(row):
    with preserve_rng():
        no_copies(row.subject().inner())


@pytest.mark.parametrize("row", DRAWING, ids=repr)
def test_a_draw_of_a_generator_on_a_device_has_arrived_before_the_cpu_reads_it(row):
    with preserve_rng(), NoEarlyReads():
        row.subject().call(row.subject().arguments())
