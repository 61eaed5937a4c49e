"""Read and verify a checkpoint of a run, on all of its processes together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import torch
from torch import Tensor, nn

from composable._support.dtensors import sharded_like
from composable._support.tree import map_tensors
from composable.checkpoint.errors import CheckpointError, DamagedCheckpointError, MismatchError
from composable.core.key import Key
from composable.core.state import State
from composable.core.stateful import short
from composable.core.time import Timestamp
from composable.distributed.processes import ProcessError, Processes, attempt

if TYPE_CHECKING:
    from composable.checkpoint.files import Contents


Result = TypeVar("Result")


@attrs.frozen(eq=False)
class ResumePoint:
    """A checkpoint to resume from."""

    path: Path
    run: str
    """The id of the run that wrote it."""
    description: dict[str, Any]
    """The description of that run."""
    tree: dict[str, Any]
    """The state of the run: what `Parts.capture` returned."""
    reader: "Reader"
    contents: "Contents"
    restart: bool = False
    """Whether the same script is run again, rather than another one that resumes the run."""

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.tree["key"].seed  # type: ignore[no-any-return]

    @property
    def num_fits(self) -> int:
        """How often training was started."""
        return self._count("progress", "num_fits") or 0

    @property
    def num_shards(self) -> int | None:
        """The number of shards of a batch, if it is recorded."""
        return self._count("data", "shards")

    def _count(self, part: str, name: str) -> int | None:
        """Return a number that is needed to build the run, before the structure is checked."""
        entries = self.tree.get(part)
        value = entries.get(name) if isinstance(entries, dict) else None
        return value if isinstance(value, int) else None

    def load(self, state: State) -> "ResumePoint":
        """Return the point with the values of its tensors: of sharded ones, this process's part.

        Args:
            state: The state of the run that was built.
        """
        like = {id(tensor): parameter for tensor, parameter in _sharded_pairs(state, self.tree)}
        if not (like or self.reader.sharded):
            return self
        named = {n: like[id(one)] for n, one in self.contents.tensors.items() if id(one) in like}
        contents = self.reader.read_values(self.contents, named)
        # A tensor whose dimensions were saved in another order, as channels_last, was read whole.
        tree = shard_like(state, self.reader.unpack(contents)["state"])
        return attrs.evolve(self, tree=tree, contents=contents)


@attrs.frozen
class Reader:
    """How the processes of a run read a checkpoint.

    Args:
        device: Where tensors go that were not on the CPU.
        processes: The processes, which call the methods together.
        sharded: Whether each process needs only a part of the tensors. Their values are then read
            by `ResumePoint.load`, when the run is built and these parts are known.
    """

    device: torch.device
    processes: Processes = attrs.field(factory=Processes)
    sharded: bool = False

    def point(self, path: Path, ignored: Sequence[str] = ()) -> ResumePoint:
        """Read and verify a checkpoint; if `sharded`, without the values of its tensors.

        If `sharded`, each file is hashed by one of the processes; otherwise each of them hashes
        all that it reads.

        Args:
            path: The checkpoint.
            ignored: Patterns of entries that are not loaded, and may be missing.

        Raises:
            CheckpointError: It cannot be read, or is not one of a run.
        """
        point = self.agree(lambda: self._point(path, ignored))
        if len(set(self.processes.gather(point.contents.manifest.created))) > 1:
            raise _replaced(path)
        return point

    def _point(self, path: Path, ignored: Sequence[str]) -> ResumePoint:
        from composable.checkpoint import files  # on use: it is slow to import

        outlined = self.sharded
        contents = files.read_outline(path, self.processes) if outlined else files.read(path)
        data, info = contents.data, contents.manifest.info
        if not isinstance(data, dict) or not {"run", "on_device", "state"} <= data.keys():
            raise MismatchError(
                f"{path} was not written by a Trainer; load its weights with "
                "load_weights_only=True."
            )
        if not info.get("complete") and not ignored:
            raise MismatchError(
                f"{path} was saved with save_weights_only or save_ignore_keys, and cannot be used "
                "to resume; pass load_weights_only=True to start a new run from its weights, or "
                "name the missing entries in load_ignore_keys=."
            )
        tree = self.unpack(contents)
        _check_kinds(path, tree)
        run = str(info.get("run"))
        return ResumePoint(path, run, tree["run"], tree["state"], self, contents)

    def unpack(self, contents: "Contents") -> Any:
        """Return the tree of a checkpoint, with tensors from a device on the run's device.

        Tensors without values stay on the meta device, and sharded ones where the parameters are.
        """
        from composable.checkpoint.tree import unpack  # on use: it is slow to import

        path, tensors, named = contents.path, dict(contents.tensors), contents.data["on_device"]
        if not isinstance(named, list) or not {str(name) for name in named} <= tensors.keys():
            raise DamagedCheckpointError(f"{path} is damaged: on_device does not name its tensors.")
        for name in map(str, named):
            if not (tensors[name].is_meta or hasattr(tensors[name], "device_mesh")):
                tensors[name] = tensors[name].to(self.device)
        try:
            return unpack(tensors, contents.data)
        except DamagedCheckpointError as error:
            raise DamagedCheckpointError(f"{path}: {error}") from error

    def read_values(self, contents: "Contents", like: dict[str, Tensor]) -> "Contents":
        """Read the values of the tensors of a checkpoint that was verified, if that is missing.

        Args:
            contents: What was read of it.
            like: The sharded parameters like which the tensors of these names are read. All other
                tensors are read whole.

        Raises:
            DamagedCheckpointError: The checkpoint was replaced in the meantime.
        """
        from composable.checkpoint.files import read_shards  # on use: it is slow to import

        def read() -> "Contents":
            found = read_shards(contents.path, like, verify=False)
            if found.manifest != contents.manifest:
                raise _replaced(contents.path)
            return found

        return self.agree(read) if self.sharded else contents

    def agree(self, function: Callable[[], Result]) -> Result:
        """Call a function on every process; if it raises on any of them, raise on all.

        Raises:
            CheckpointError: The error of rank 0; or the checkpoint is damaged for another process.
            ProcessError: Another process failed with any other error.
        """
        if not self.processes.several:
            return function()
        value: Any
        value, failure, own = attempt(function)
        faults = self.processes.gather(own)
        rank = next((rank for rank, fault in enumerate(faults) if fault is not None), None)
        if rank is None:
            return value  # type: ignore[no-any-return]
        kind, message = faults[rank]
        known = {subclass.__name__: subclass for subclass in CheckpointError.__subclasses__()}
        # Where only rank 0 sees a checkpoint, an older one must not be used in its place.
        if kind in known and (rank == 0 or kind == DamagedCheckpointError.__name__):
            raise known[kind](message) from failure
        raise ProcessError(f"rank {rank} failed: {kind}: {message}") from failure


def _replaced(path: Path) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"{path} was replaced by another checkpoint while it was read.")


def _check_kinds(path: Path, tree: dict[str, Any]) -> None:
    """Check what is needed to build a run: a file may be intact, and written by other code."""
    state = tree["state"]
    if not isinstance(tree["run"], dict) or not isinstance(state, dict):
        raise DamagedCheckpointError(f"{path} is damaged: its state is {short(state)}.")
    for name, kind in {"timestamp": Timestamp, "key": Key}.items():
        if name not in state:
            raise DamagedCheckpointError(f"{path} is damaged: it has no {name}.")
        if not isinstance(state[name], kind):
            raise DamagedCheckpointError(
                f"{path}: state/{name} is {short(state[name])}, and must be a {kind.__name__}."
            )


# --- which tensors are sharded


def shard_like(state: State, saved: Mapping[str, Any]) -> Any:
    """Shard the whole tensors of a checkpoint whose parameters are sharded."""
    sharded = {id(one): sharded_like(one, like) for one, like in _sharded_pairs(state, saved)}
    return map_tensors(lambda one: sharded.get(id(one), one), saved) if sharded else saved


def _sharded_pairs(state: State, saved: Mapping[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """Return the tensors of a checkpoint that are sharded, each with its parameter.

    These are the weights of the model and the loss, averages of them, and the values that
    an optimizer has for each element of a parameter.

    Args:
        state: The state of the run that was built, with its parameters sharded.
        saved: The state in the checkpoint, whatever it is; its tensors need no values.
    """
    parameters, of_loss = _sharded(state.model), _sharded(state.loss_module)
    if not (parameters or of_loss):
        return []
    pairs = _pairs(saved, parameters, of_loss)
    return [(tensor, parameter) for tensor, parameter in pairs if tensor.shape == parameter.shape]


def _sharded(module: nn.Module | None) -> dict[str, Tensor]:
    named = () if module is None else module.named_parameters()
    return {name: parameter for name, parameter in named if hasattr(parameter, "device_mesh")}


def _pairs(
    saved: Mapping[str, Any], parameters: Mapping[str, Tensor], of_loss: Mapping[str, Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tensors with the parameters to which they belong, of any shape."""
    weights = saved.get("weights")
    best = weights.get("best") if isinstance(weights, Mapping) else None
    for part in (saved, saved.get("raw"), best):
        if isinstance(part, Mapping):
            yield from _named(part.get("model"), parameters)
            yield from _named(part.get("loss_fn"), of_loss)
    yield from _named(saved.get("memory"), parameters)
    yield from _named(saved.get("averages"), parameters)
    trained = {**{f"loss_fn.{name}": tensor for name, tensor in of_loss.items()}, **parameters}
    optimizers = saved.get("optimizers")
    for optimizer in optimizers if isinstance(optimizers, list) else ():
        for one in _numbered(optimizer):
            yield from _named(one, trained)


def _named(
    node: Any, parameters: Mapping[str, Tensor], name: str = ""
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the tensors of a tree that are under the name of a parameter."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _named(value, parameters, str(key))
    elif isinstance(node, Tensor) and name in parameters:
        yield node, parameters[name]


def _numbered(optimizer: Any) -> Iterator[dict[str, Any]]:
    """Yield the values that an optimizer has of each parameter, by its name."""
    with suppress(KeyError, TypeError, AttributeError, ValueError):  # a later check says more
        for names, group in zip(optimizer["parameters"], optimizer["param_groups"], strict=True):
            for name, number in zip(names, group["params"], strict=True):
                for value in optimizer["state"].get(number, {}).values():
                    yield {name: value}
