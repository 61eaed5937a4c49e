"""Checkpoints whose meaning was changed, with hashes that fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from composable.checkpoint import pack, read, unpack, write


def forge(checkpoint: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Change the state in a checkpoint in place, and write it again.

    Args:
        checkpoint: The checkpoint to replace.
        change: Changes the tree of the state, a nested dictionary.
    """
    contents = read(checkpoint)
    tree = unpack(contents.tensors, contents.data)
    on_device = tree.pop("on_device")
    change(tree["state"])
    tensors, data = pack(tree)
    data["on_device"] = [name for name in on_device if name in tensors]
    return write(checkpoint, tensors, data, overwrite=True, info=dict(contents.manifest.info))
