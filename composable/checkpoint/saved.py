"""The contents of a checkpoint of a run, from its state to its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from composable.core.state import State
from composable.distributed.processes import Processes

__all__ = ["Saved"]


@attrs.frozen(eq=False)
class Saved:
    """The contents of a checkpoint."""

    tensors: Mapping[str, Tensor]
    data: Any
    info: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        state: State,
        run: Mapping[str, Any],
        tree: Mapping[str, Any],
        *,
        complete: bool,
        best: Mapping[str, Any] | None = None,
    ) -> "Saved":
        """Pack the tree of a run at `state`.

        Args:
            state: The state of the run.
            run: The description of the run.
            tree: What to save.
            complete: Whether training can resume from it.
            best: The metric, name and value of the best checkpoint so far.
        """
        now = state.timestamp
        from composable.checkpoint.tree import RUN, pack  # on use: it is slow to import

        tensors, data = pack({"run": run, "timestamp": now, "state": tree}, RUN)
        data["on_device"] = sorted(n for n, one in tensors.items() if one.device.type != "cpu")
        return cls(
            tensors,
            data,
            {
                "run": run["id"],
                "batch": now.batch,
                "epoch": now.epoch,
                "complete": complete,
                **({} if best is None else {"best": best}),
            },
        )

    def write(self, path: Path, *, overwrite: bool) -> Path:
        """Write a checkpoint: all processes together if tensors are sharded, otherwise rank 0."""
        from composable.checkpoint import files  # on use: it is slow to import

        processes = Processes.current()
        sharded = any(hasattr(tensor, "device_mesh") for tensor in self.tensors.values())
        if not (sharded or processes.is_main):  # the parts of the processes were excluded
            return path
        return files.write(
            path,
            self.tensors,
            self.data,
            overwrite=overwrite,
            info=self.info,
            processes=processes if sharded else None,
        )

    def copied(self) -> "Saved":
        """Return the same contents with copies of the tensors, which training does not change."""
        copies = {name: one.to("cpu", copy=True) for name, one in self.tensors.items()}
        return attrs.evolve(self, tensors=copies)
