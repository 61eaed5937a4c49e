"""Write the outputs of a prediction to a folder, or to a URL."""

import io
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from composable._support import strict_json
from composable._support.checks import as_path, is_url
from composable._support.dtensors import local_part
from composable._support.object_stores import ObjectStore
from composable._support.paths import write_atomically
from composable._support.tree import children_of
from composable.checkpoint.safetensors import DTYPE_NAMES, write_tensors
from composable.core.state import State
from composable.data.digest import digest_of
from composable.data.sharding import is_local
from composable.distributed import Processes
from composable.resume.modules import module_tensors

_RECORD = "predictions.json"


@attrs.frozen(eq=False)
class OutputFolder:
    """A folder, or its URL, with a file for each batch of a prediction, and a record of the model.

    A file is written at once: it is whole, or missing.
    """

    place: Path | ObjectStore
    start: int = 0
    """The number of the first batch to predict: all processes have a batch of each round."""

    @classmethod
    def at(cls, to: Any, loader: Any, state: State, processes: Processes) -> "OutputFolder":
        """Continue a folder with the outputs of the same model, or begin an empty one.

        Raises:
            PathError: `to` is not a path, and not a URL that can be used.
            FileExistsError: The folder has other files, or outputs of other weights.
        """
        place = ObjectStore("to", to) if is_url(to) else as_path("to", to)
        tensors = {name: local_part(tensor) for name, tensor in module_tensors(state.model).items()}
        record = {
            "weights": digest_of(tensors),
            "processes": processes.size if is_local(loader, processes.size) else 1,
        }
        whole = processes.on_main(lambda: cls(place)._begin(record))
        return cls(place, whole // processes.size * processes.size)

    def write(self, own: list[tuple[int, Any]], _: Any) -> list[Any]:
        """Write the output of a batch."""
        for number, output in own:
            file = io.BytesIO()
            write_tensors(file.write, dict(_tensors(output, "")))
            self._put(_part(number), file.getvalue())
        return []

    def _begin(self, record: dict[str, Any]) -> int:
        """Write the record, or compare it; return the number of the first missing part."""
        if isinstance(self.place, Path):
            self.place.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in self.place.iterdir()}
        else:
            names = set(self.place.sizes())
        content = strict_json.dump(record)
        foreign = sorted(names) if _RECORD not in names else []
        if foreign or not self._create(_RECORD, content):
            what = f"the file {foreign[0]!r}" if foreign else "outputs of other weights"
            raise FileExistsError(
                f"to={str(self.place)!r} has {what}; pass a new or an empty folder. To continue a "
                "prediction, build the same model, and load the same weights."
            )
        return next(i for i in count() if _part(i) not in names)

    def _create(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists, and return whether it has this content now."""
        if not isinstance(self.place, Path):
            return self.place.create(name, content)
        path = self.place / name
        return (path if path.exists() else write_atomically(path, content)).read_bytes() == content

    def _put(self, name: str, content: bytes) -> None:
        if isinstance(self.place, Path):
            write_atomically(self.place / name, content)
        else:
            self.place.write(name, content)


def _tensors(output: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of an output, whose names are joined by dots."""
    children = children_of(output)
    if children is not None:
        for key, child in children.items():
            yield from _tensors(child, f"{name}.{key}" if name else str(key))
    elif isinstance(output, (Tensor, int, float)):
        tensor = torch.as_tensor(output)
        if tensor.dtype not in DTYPE_NAMES:
            raise TypeError(f"the output {name} is of {tensor.dtype}, {_INSTEAD}.")
        yield name or "outputs", tensor
    elif not (output is None or type(output).__module__ == _CACHES):
        raise TypeError(f"the output {name} is a {type(output).__name__}, {_INSTEAD}.")


_CACHES = "transformers.cache_utils"  # what a model keeps for the next token is not written
_INSTEAD = "which a file of safetensors has not; use predict_each, and write it yourself"


def _part(number: int) -> str:
    return f"part-{number:08d}.safetensors"
