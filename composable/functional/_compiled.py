"""Selects and calls the compiled operations on images.

They are an option: they need Numba (`pip install "composable[fast]"`) and serve plain uint8 tensors
of 1 or 3 channels on the CPU. The operations on tensors are the reference and serve all others.
Results are equal to the bit, so a run may train with the one and resume with the other.

`COMPOSABLE_COMPILED=0` in the environment turns them off.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from composable._support.spatial import laid_out_like
from composable._support.warn import warn_user

SWITCH = "COMPOSABLE_COMPILED"

# With these instructions PyTorch fuses multiplications and additions, and so do the loops.
_FUSED = ("AVX2", "AVX512")
# Values that keep a thread busy for so long that starting it doesn't matter.
_WORTH_A_THREAD = 2**20


def serves(images: Tensor, *draw: Tensor) -> bool:
    """Check whether the compiled operations serve these images.

    Never within `torch.compile`, `vmap` or a mode such as `FlopCounterMode`: those have to see
    each operation on a tensor.
    """
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return not (
        torch.compiler.is_compiling()
        or type(images) is not Tensor
        or images.dtype != torch.uint8
        or images.device.type != "cpu"
        or images.shape[1] not in (1, 3)
        or not images.numel()
        or any(part.device.type != "cpu" for part in draw)
        or any(wrapped(part) for part in (images, *draw))
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or not _switched_on()
        or _kernels() is None
    )


def compiled_augment(
    images: UInt8[Tensor, "batch channels height width"],
    operations: Int[Tensor, "steps batch"],
    strengths: Float[Tensor, "steps batch"],
) -> UInt8[Tensor, "batch channels height width"]:
    """Apply one operation after the other to each image; -1 skips the operation."""
    return _run("augment", images, operations, strengths)


def compiled_augment_and_mix(
    images: UInt8[Tensor, "batch channels height width"],
    operations: Int[Tensor, "steps chains batch"],
    strengths: Float[Tensor, "steps chains batch"],
    shares: Float[Tensor, "chains batch"],
) -> UInt8[Tensor, "batch channels height width"]:
    """Mix each image with chains of operations on it; the image has the rest of the shares."""
    shares = shares.float()
    return _run("augment_and_mix", images, operations, strengths, shares, 1 - shares.sum(0))


def _switched_on() -> bool:
    value = os.environ.get(SWITCH, "1")
    if value not in ("0", "1"):
        raise ValueError(
            f"The environment variable {SWITCH} is {value!r}, but must be 0, to augment images by "
            "operations on tensors only, or 1, for compiled loops where they are installed."
        )
    return value == "1"


@cache
def _kernels() -> ModuleType | None:
    """Import the compiled operations; None where Numba or the processor doesn't serve."""
    if torch.backends.cpu.get_cpu_capability() not in _FUSED:
        return None
    try:
        from numba import config

        if config.DISABLE_JIT:
            return None
        from .images import _kernels as kernels
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        warn_user(
            f"Numba is installed but can't be imported ({error}), so images are augmented by "
            f"operations on tensors, which are slower. Set {SWITCH}=0 to do so without a warning.",
        )
        return None
    return kernels


def _run(
    name: str, images: Tensor, operations: Tensor, strengths: Tensor, *weights: Tensor
) -> Tensor:
    """Call a compiled loop over the images, on as many threads as PyTorch may use."""
    kernels: Any = _kernels()
    source, strengths = images.contiguous(), strengths.float()
    angles = strengths.deg2rad()
    # As numbers for rotations, by PyTorch's own functions: another cosine is another rounding.
    turns = torch.stack([angles.cos(), angles.sin()])
    results = torch.empty(source.shape, dtype=torch.uint8)
    chains = kernels.Chains(*map(_array, (operations.long(), strengths, turns)))
    arrays = [_array(part) for part in (*weights, results)]

    def run(start: int, stop: int) -> None:
        work = _workspace(kernels, source.shape[1:], mixed=bool(weights))
        getattr(kernels, name)(source.numpy(), chains, *arrays, start, stop, work)

    in_threads(run, len(source), source.numel() * operations[..., 0].numel())
    return laid_out_like(results, images)


def _array(tensor: Tensor) -> Any:
    return tensor.contiguous().numpy()


def _workspace(kernels: Any, shape: torch.Size, *, mixed: bool) -> Any:
    """Allocate the memory that a thread works in."""
    channels, height, width = shape
    memory = (
        torch.empty(2, *shape, dtype=torch.uint8),
        torch.empty(channels, (height + 1) * width, dtype=torch.int32),
        torch.empty(4, width, dtype=torch.int32),
        torch.empty(4, width),
        torch.empty(5, 256, dtype=torch.int32),
        torch.empty(shape.numel() if mixed else 0),
    )
    return kernels.Workspace(*(part.numpy() for part in memory))


def in_threads(run: Callable[[int, int], None], count: int, work: int) -> None:
    """Call `run(start, stop)` for parts of a range, together all of it; threads change nothing."""
    threads = min(torch.get_num_threads(), count, max(work // _WORTH_A_THREAD, 1))
    if threads == 1:
        run(0, count)
        return
    ends = [count * part // threads for part in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, ends[:-1], ends[1:]))
