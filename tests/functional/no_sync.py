"""A mode in which an operation that makes the host wait for the device is an error."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# What has to know values, not only shapes: on a GPU each of them waits for all work queued.
WAITING = {
    "_local_scalar_dense",  # item(), float(), bool(), if
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
    "_unique2",
}


class NoSync(TorchDispatchMode):
    """Refuse operations that wait. The operations are the same on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING:
            raise AssertionError(f"{name} would make the host wait for the device")
        result = func(*args, **(kwargs or {}))
        if name in ("index", "index_put") and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        ):
            raise AssertionError("indexing by a mask would make the host wait for the device")
        return result
