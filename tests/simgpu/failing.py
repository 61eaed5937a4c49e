"""A callback that lets a simulated device run out of memory."""

from typing import Any

from composable import Callback
from tests.simgpu import device


class Fails(Callback):
    """Lets the `at`-th allocation of a forward pass fail, in those of more than `most` examples.

    Of these passes, all do unless the number of one is given.
    """

    def __init__(self, at: int = 0, passes: int | None = None, most: int = 0) -> None:
        self.at, self.passes, self.most, self.seen = at, passes, most, 0

    def before_forward(self, state: Any, logger: Any) -> None:
        """Count the pass."""
        if len(state.inputs) > self.most:
            if self.passes in (None, self.seen):
                device.core.fail_in(0, self.at)
            self.seen += 1
