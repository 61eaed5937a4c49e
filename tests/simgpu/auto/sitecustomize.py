"""With this folder in PYTHONPATH, every Python process that is started has the simulated GPUs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
import tests.simgpu.device  # noqa: F401
