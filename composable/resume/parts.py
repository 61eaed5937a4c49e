"""The parts of a run: what they save, and the walk over them that checks and restores it.

A part declares what it saves by the return type of its `state_dict`, a `TypedDict`. From these
types follows what a checkpoint must have. The hashes of a checkpoint say that its bytes are those
that were written; they do not say that a run wrote them. So its structure is compared with the
declared one, then each part compares the values with its own, and only then anything is changed.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from typing import get_type_hints as hints_of

import attrs
from torch import Tensor

from composable.checkpoint.errors import DamagedCheckpointError, MismatchError
from composable.core.state import State
from composable.core.stateful import (
    ChecksState,
    Stateful,
    StructureError,
    check_type,
    declared_state,
)
from composable.distributed.processes import Processes

__all__ = ["ALL", "ENGINE", "Parts", "Saved"]

ALL = ""
ENGINE = "engine"
"""What a checkpoint has in addition if DeepSpeed computed the steps."""

_FAULTS = (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError)


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

    def check_structure(self, saved: Mapping[str, Any], path: str) -> None:
        """Check that the entries of a checkpoint are declared, and their types.

        Args:
            saved: What `capture` returned; tensors need no values, and entries may be missing.
            path: Where it was read, for errors.

        Raises:
            DamagedCheckpointError: An entry is unknown, or something in it is missing or has
                another type.
        """
        for name, value in saved.items():
            if name not in self.structure:
                raise DamagedCheckpointError(f"{path} is damaged: unknown entry {name[:80]!r}.")
            try:
                check_type(value, self.structure[name], f"{path}: state/{name}")
            except StructureError as error:
                raise DamagedCheckpointError(str(error)) from None

    def check(self, saved: Mapping[str, Any], path: str) -> None:
        """Check a whole checkpoint against the run that was built, without changing anything.

        Raises:
            MismatchError: It is that of another run, or an entry is missing.
            DamagedCheckpointError: A value is not what a run saves.
        """
        if missing := sorted(self.structure.keys() - {ENGINE} - saved.keys()):
            raise MismatchError(
                f"{path} has no {', '.join(missing)}, which save_ignore_keys excluded; pass the "
                "same names in load_ignore_keys= to leave them unchanged."
            )
        self.check_structure(saved, path)
        for _, part, state, where in self._pairs(saved, path):
            if isinstance(part, ChecksState):
                part.check_state_dict(state, where)

    def restore(self, saved: Mapping[str, Any], path: str, but: Collection[str] = ()) -> None:
        """Restore each part, after `check`.

        Args:
            saved: What `capture` returned.
            path: Where it was read, for errors.
            but: The names of parts that stay as they are.

        Raises:
            DamagedCheckpointError: A value is not what a run saves.
        """
        try:
            for name, part, state, _ in self._pairs(saved, path):
                if name in but:
                    continue
                part.load_state_dict(state)
        except _FAULTS as error:
            raise DamagedCheckpointError(
                f"{path} cannot be restored, because its state is not what a run saves: "
                f"{type(error).__name__}: {error}. The run may be partly restored: build it again."
            ) from error

    def _pairs(
        self, saved: Mapping[str, Any], path: str
    ) -> Iterator[tuple[str, Stateful, Any, str]]:
        for name, part in self.named.items():
            if name == ALL:
                yield name, part, saved, f"{path}: state"
            else:
                yield name, part, saved[name], f"{path}: state/{name}"


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
        copies = {name: one.to("cpu", copy=True) for name, one in self.tensors.items()}
        return attrs.evolve(self, tensors=copies)
