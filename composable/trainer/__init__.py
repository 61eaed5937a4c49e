"""The Trainer: a loop that fires events, runs the composed step, and carries out requests."""

import sys

from composable._moved import OldPaths

sys.meta_path.append(OldPaths)
