"""Read the files of `torch.save` that have tensors and plain containers only."""

import zipfile
from pathlib import Path
from typing import Any

import torch

from composable.checkpoint.errors import CheckpointError, DamagedCheckpointError


def load_plain(file: Any, path: Path, size: int) -> Any:
    """Load what `torch.save` wrote, if it is tensors and plain containers.

    No code of the file is executed, but a forged one can take long, or all memory.

    Args:
        file: The open file.
        path: Its name for error messages.
        size: Its size in bytes.

    Raises:
        DamagedCheckpointError: It is damaged, or contains other objects.
    """
    try:
        if zipfile.is_zipfile(file):
            members = zipfile.ZipFile(file).infolist()
            packed = any(one.compress_type != zipfile.ZIP_STORED for one in members)
            if packed or sum(one.file_size for one in members) > size:
                raise DamagedCheckpointError(
                    f"{path} is compressed, which could expand to any size; save it with "
                    "torch.save."
                )
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)
    except (CheckpointError, OSError):
        raise
    except Exception as error:  # torch.load raises many types
        raise DamagedCheckpointError(
            f"{path} cannot be loaded: it is damaged, or contains objects other than tensors and "
            "plain containers, which are rejected because loading them could execute code."
        ) from error
