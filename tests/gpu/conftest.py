"""The tests of this folder need a CUDA device; `make simgpu` runs them on two simulated ones."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["*.py"]
