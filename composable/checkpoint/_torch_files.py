"""Read the files of `torch.save` that have tensors and plain containers only."""

import re
import zipfile
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.serialization import safe_globals

from composable.checkpoint.errors import CheckpointError, DamagedCheckpointError


class StandIn:
    """Stands for an object that a file has and nothing reads; what the file says of it is lost."""

    def __init__(self, *args: Any) -> None: ...
    def __setstate__(self, state: Any) -> None: ...


_ARRAYS = ("_core.multiarray._reconstruct", "core.multiarray._reconstruct", "ndarray", "dtype")
_UNREAD: list[Any] = [timedelta, *((StandIn, f"numpy.{name}") for name in _ARRAYS)]


def load_plain(file: Any, path: Path, size: int, *, stand_ins: bool = False) -> Any:
    """Load what `torch.save` wrote, if it is tensors and plain containers.

    No code of the file is executed, but a forged one can take long, or all memory.

    Args:
        file: The open file.
        path: Its name for error messages.
        size: Its size in bytes.
        stand_ins: Read also wall-clock times, and a `StandIn` for each NumPy array, such as those
            in the states of random number generators.

    Raises:
        DamagedCheckpointError: It is damaged, or contains other objects.
    """
    try:
        if zipfile.is_zipfile(file):
            members = zipfile.ZipFile(file).infolist()
            packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
            if packed or sum(member.file_size for member in members) > size:
                raise DamagedCheckpointError(
                    f"{path} is compressed, which could expand to any size; save it with "
                    "torch.save."
                )
        file.seek(0)
        with safe_globals(_UNREAD) if stand_ins else nullcontext():
            return torch.load(file, map_location="cpu", weights_only=True)
    except (CheckpointError, OSError):
        raise
    except Exception as error:  # torch.load raises many types
        if named := re.search(r"GLOBAL ([\w.]+)", str(error)):
            name = named[1][:80]
            raise DamagedCheckpointError(
                f"{path} contains {name}, which is rejected: objects other than tensors and plain "
                "containers could execute code. Save it without; or, if you trust the file, call "
                f"torch.serialization.add_safe_globals([{name.rpartition('.')[2]}]) first."
            ) from error
        raise DamagedCheckpointError(
            f"{path} cannot be loaded: it is damaged, or contains objects other than tensors and "
            "plain containers, which are rejected because loading them could execute code."
        ) from error
