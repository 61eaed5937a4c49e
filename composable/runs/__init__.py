"""Records of runs: written while training, compared and replayed afterwards."""

from composable.runs.recorder import RunRecorder

__all__ = ["RunRecorder"]
