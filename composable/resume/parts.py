"""The parts of a run: what they save, and the walk over them that restores it.

A part declares what it saves by the return type of its `state_dict`, a `TypedDict`. From these
types follows what a checkpoint must have. The hashes of a checkpoint say that its bytes are the
written ones, and its structure is compared with the declared one. Whether it belongs to this run,
each part finds when it loads, and the caller restores the old states if one fails.
"""

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from typing import get_type_hints as hints_of

import attrs
from torch import Tensor

from composable.checkpoint.errors import DamagedCheckpointError, MismatchError
from composable.core.state import State
from composable.core.stateful import Stateful, StructureError, check_type, declared_state
from composable.distributed.processes import Processes
from composable.resume.changes import entry

ALL = ""
ENGINE = "engine"
"""What a checkpoint has in addition if DeepSpeed computed the steps."""


@attrs.define(eq=False, slots=False)
class Parts:
    """The parts of a run, by their names in a checkpoint, in the order in which they are restored.

    The part that is named `ALL` is the run itself: its entries have the names of parts, and it is
    given the states of all of them.
    """

    named: Mapping[str, Stateful]

    @cached_property
    def structure(self) -> dict[str, Any]:
        """The declared type of each entry of a checkpoint."""
        found: dict[str, Any] = {ENGINE: Mapping[str, Any]}
        for name, part in self.named.items():
            declared = declared_state(type(part))
            found |= hints_of(declared, include_extras=True) if name == ALL else {name: declared}
        return found

    def capture(self) -> dict[str, Any]:
        """Return everything that resuming needs, as plain containers and tensors."""
        found: dict[str, Any] = {}
        for name, part in self.named.items():
            state = part.state_dict()
            found |= state if name == ALL else {name: state}
        return found

    def check(self, saved: Mapping[str, Any], path: str) -> None:
        """Check that a checkpoint has all entries, and that these have the declared types.

        Args:
            saved: What `capture` returned; tensors need no values.
            path: Where it was read, for errors.

        Raises:
            MismatchError: An entry is missing, or another kind of loop wrote it.
            DamagedCheckpointError: An entry is unknown, or something in it is missing or has
                another type.
        """
        if {"position", "progress"} & saved.keys() - self.structure.keys():
            raise MismatchError(
                f"{path} was written by another kind of loop. Checkpoints of t.save are resumed by "
                "t.resume(folder) of adapt_loop, and a Trainer's by its load_path; for the "
                "weights alone, pass load_weights_only=True."
            )
        if missing := sorted(self.structure.keys() - {ENGINE} - saved.keys()):
            raise MismatchError(
                f"{path} has no {', '.join(missing)}, which save_ignore_keys excluded; pass the "
                "same names in load_ignore_keys= to leave them unchanged."
            )
        for name, value in saved.items():
            if name not in self.structure:
                raise DamagedCheckpointError(f"{path} is damaged: unknown entry {name[:80]!r}.")
            try:
                check_type(value, self.structure[name], f"{path}: state/{name}")
            except StructureError as error:
                raise DamagedCheckpointError(str(error)) from None

    def restore(self, saved: Mapping[str, Any], path: str, but: Collection[str] = ()) -> None:
        """Restore each part, after `check`; if one fails, those before it are restored.

        Args:
            saved: What `capture` returned.
            path: Where it was read, for errors.
            but: The names of parts that stay as they are.

        Raises:
            MismatchError: It belongs to another run.
        """
        with entry(f"{path}: state"):
            for name, part in self.named.items():
                if name == ALL:
                    part.load_state_dict(saved)
                elif name not in but:
                    with entry(name):
                        part.load_state_dict(saved[name])


# --- the contents of a checkpoint ---


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
            run: The description of the run, as JSON.
            tree: What to save.
            complete: Whether training can resume from it.
            best: The metric, name and value of the best checkpoint so far.
        """
        now = state.timestamp
        from composable.checkpoint.tree import RUN, pack  # on use: it is slow to import

        tensors, data = pack({"state": tree}, RUN)
        data["run"] = {"$json": run}
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
        from composable.checkpoint.writer import write  # on use: it is slow to import

        processes = Processes.current()
        sharded = any(hasattr(tensor, "device_mesh") for tensor in self.tensors.values())
        if not (sharded or processes.is_main):  # the parts of the processes were excluded
            return path
        return write(
            path,
            self.tensors,
            self.data,
            overwrite=overwrite,
            info=self.info,
            processes=processes if sharded else None,
        )

    def copied(self) -> "Saved":
        """Return the same contents with copies of the tensors, which training does not change."""
        copies = {name: tensor.to("cpu", copy=True) for name, tensor in self.tensors.items()}
        return attrs.evolve(self, tensors=copies)
