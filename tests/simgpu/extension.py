"""Load the extension: before PyTorch where it stands for CUDA, whose hooks are read once."""

import importlib.util
import os
import sys
from typing import Any

from tests.simgpu import build, operations

KIND = os.environ.get("SIMGPU", "cuda")
"""The type of the simulated devices: "cuda", or "sim", which PyTorch doesn't know."""

if KIND not in ("cuda", "sim"):
    raise ValueError(f"SIMGPU={KIND!r} must be 'cuda' or 'sim'")
if KIND == "cuda" and "torch" in sys.modules:
    raise RuntimeError(
        "tests.simgpu was imported after torch, which has looked for CUDA by then; import "
        "tests.simgpu.device first, or start pytest with -p tests.simgpu.plugin"
    )


def _load() -> Any:
    path = build.extension(KIND)
    spec = importlib.util.spec_from_file_location(build.module_name(KIND), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if KIND == "sim":
    import torch  # noqa: F401  its libraries, which the extension links
core = _load()
core.allow_scalars_of_the_cpu(operations.mixing())
core.use_kernels_of_the_cpu(operations.with_two_kernels())
