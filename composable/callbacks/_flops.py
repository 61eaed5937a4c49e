"""Floating-point operations: how many a batch takes, and how many a GPU can do in a second."""

import copy
import re

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from composable._support.tree import map_tensors, tensors_of
from composable.core.state import State
from composable.data.grouping import batches_of

# Dense peaks from the manufacturers' data sheets, in 1e12 operations per second:
# words of the device's name, then float16, bfloat16, TF32 and float32; None if not supported.
_PEAKS = (
    ({"B200"}, 2250.0, 2250.0, 1125.0, 75.0),
    ({"H200"}, 989.4, 989.4, 494.7, 66.9),
    ({"GH200"}, 989.4, 989.4, 494.7, 66.9),
    ({"H100", "PCIe"}, 756.0, 756.0, 378.0, 51.2),
    ({"H100", "NVL"}, 835.5, 835.5, 417.5, 60.0),
    ({"H100"}, 989.4, 989.4, 494.7, 66.9),
    ({"A100"}, 312.0, 312.0, 156.0, 19.5),
    ({"A30"}, 165.0, 165.0, 82.0, 10.3),
    ({"A40"}, 149.7, 149.7, 74.8, 37.4),
    ({"A10"}, 125.0, 125.0, 62.5, 31.2),
    ({"A6000"}, 154.8, 154.8, 77.4, 38.7),
    ({"L40S"}, 362.0, 362.0, 183.0, 91.6),
    ({"L40"}, 181.0, 181.0, 90.5, 90.5),
    ({"L4"}, 121.0, 121.0, 60.0, 30.3),
    ({"T4"}, 65.0, None, None, 8.1),
    ({"V100", "PCIE"}, 112.0, None, None, 14.0),
    ({"V100"}, 125.0, None, None, 15.7),
    ({"RTX", "4090"}, 165.2, 165.2, 82.6, 82.6),
    ({"RTX", "3090"}, 71.0, 71.0, 35.6, 35.6),
    ({"MI300X"}, 1307.4, 1307.4, 653.7, 163.4),
)
_KINDS = ("float16", "bfloat16", "tf32", "float32")


def count_flops(state: State) -> int:
    """Count the floating-point operations of the forward and backward pass of a batch.

    A copy of the model is called with a copy of the batch, both of fake tensors, which have shapes
    but no values: nothing is computed, no random number is drawn, and the model is not changed.
    The loss itself, the optimizer and everything element-wise are not counted.

    Args:
        state: A state with a model and a batch.

    Returns:
        The number of operations; a multiplication and an addition are two.

    Example:
        >>> from composable import State
        >>> from composable.callbacks._flops import count_flops
        >>> state = State(torch.nn.Linear(3, 5), batch=(torch.ones(2, 3), torch.ones(2, 5)))
        >>> count_flops(state) == 2 * (2 * 3 * 5) * 2  # the output, and the gradient of the weight
        True
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.enable_grad():
        with FakeCopyMode(mode):
            model = copy.deepcopy(state.model)
        _remove_hooks(model)
        counter = FlopCounterMode(display=False)
        for batch in batches_of(state.batch):
            fake = map_tensors(mode.from_tensor, state.precision.cast(batch))
            with counter, state.precision.autocast(state.device):
                outputs = state.evolve_unchecked(model=model, batch=fake).forward()
                sums = [tensor.sum() for tensor in tensors_of(outputs) if tensor.requires_grad]
                if sums:
                    torch.stack(sums).sum().backward()  # type: ignore[no-untyped-call]
    return counter.get_total_flops()


def _remove_hooks(model: nn.Module) -> None:
    """Remove the hooks of a copy that would show fake tensors to the code of the user."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._backward_hooks, module._backward_pre_hooks):
            hooks.clear()


def peak_flops(state: State) -> float | None:
    """Return how many operations the device of a run can do in a second, or None if unknown.

    Args:
        state: The state of the run, with its device and precision.
    """
    if state.device.type != "cuda":
        return None
    precision = state.precision
    floating = (one.dtype for one in state.model.parameters() if one.is_floating_point())
    dtype = precision.autocast_dtype or precision.weight_dtype or next(floating, None)
    kind = str(dtype).removeprefix("torch.")
    if dtype is torch.float32 and (precision.name == "tf32" or _uses_tf32()):
        kind = "tf32"
    return peak_of(torch.cuda.get_device_name(state.device), kind)


def peak_of(device: str, kind: str) -> float | None:
    """Return how many operations of a kind a device can do in a second, or None if unknown.

    Args:
        device: The name of the device, as `torch.cuda.get_device_name` returns it.
        kind: "float16", "bfloat16", "tf32" or "float32".

    Example:
        >>> from composable.callbacks._flops import peak_of
        >>> peak_of("NVIDIA A100-SXM4-80GB", "bfloat16")
        312000000000000.0
    """
    if kind not in _KINDS:
        return None
    words = set(re.split(r"[^A-Za-z0-9]+", device))
    for name, *peaks in _PEAKS:
        if name <= words:
            peak = peaks[_KINDS.index(kind)]
            return None if peak is None else peak * 1e12
    return None


def _uses_tf32() -> bool:
    matmul = torch.backends.cuda.matmul
    own = getattr(matmul, "fp32_precision", None)  # from PyTorch 2.9 on
    return bool(matmul.allow_tf32) if own is None else own == "tf32"
