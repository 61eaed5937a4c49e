"""Lists of operations that the extension needs, from PyTorch's own list of all."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

# They too have a kernel of the CPU and another for every backend, but their entries don't name it.
ALSO = ["convolution", "convolution_backward"]
# src/operations.h has kernels for them.
OWN = {"empty.memory_format", "empty_strided", "copy_", "_copy_from", "_copy_from_and_resize"}
OWN.add("record_stream")
ANY = {"CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"}


def entries() -> Iterator[tuple[str, str]]:
    """Yield the name of each operation, with its overload, and its entry in the list."""
    package = importlib.util.find_spec("torchgen")
    assert package is not None, "torchgen is part of PyTorch"
    assert package.origin is not None
    path = Path(package.origin).parent / "packaged/ATen/native/native_functions.yaml"
    for entry in re.split(r"(?m)^- func: ", path.read_text(encoding="utf-8"))[1:]:
        plain = "\n".join(line.partition("#")[0] for line in entry.splitlines())
        yield plain.partition("(")[0].strip(), plain


def mixing() -> list[str]:
    """Return the operations that allow scalars of the CPU among tensors of a device."""
    return [f"aten::{name}" for name, entry in entries() if "device_check: NoCheck" in entry]


def with_two_kernels() -> list[str]:
    """Return the operations with a kernel of the CPU and another for every backend."""
    found = set(ALSO)
    for name, entry in entries():
        kernels = re.search(r"dispatch:\n((?:    .*\n?)+)", entry)
        lines = kernels[1].splitlines() if kernels else []
        keys = {key.strip() for line in lines for key in line.partition(":")[0].split(",")}
        # Of a structured operation, PyTorch generates both kernels.
        if ("CPU" in keys and keys & ANY) or "structured_delegate:" in entry:
            found.add(name)
    return sorted(found - OWN)
