"""Count what the processes of a run send: functions that those processes import."""

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import parallel_runs as runs


class Messages(TorchDispatchMode):
    """Counts collectives by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operation."""
        if func.namespace == "c10d":
            self.counts[func._opname.strip("_")] += 1
        return func(*args, **(kwargs or {}))


def fit_counting(**options: Any) -> dict[str, Any]:
    """Train like `fit`, and add the numbers of collectives."""
    with Messages() as messages:
        result = runs.fit(**options)
    return {**result, "messages": dict(messages.counts)}
