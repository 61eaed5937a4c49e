"""Files that callbacks write."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing"]


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Write a file under a temporary path, and rename it to its target if no error is raised.

    Files that are written next to it, such as the weights of a large ONNX model, are renamed first.
    A reader finds the old file or the new one, never a part of it.

    Args:
        target: The file; its folder is created.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    name = target.name
    folder = Path(tempfile.mkdtemp(".partial", f".{name}.", target.parent))
    try:
        yield folder / name
        for file in sorted(folder.iterdir(), key=lambda file: file.name == name):
            with file.open("rb") as written:
                os.fsync(written.fileno())
            file.replace(target.parent / file.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
