"""The tests of this folder need a CUDA device; `make simgpu` runs them on two simulated ones."""

import pytest
import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["*.py"]


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    """Skip a file that was named, which pytest never ignores."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; `make simgpu` runs it on a simulated one")
