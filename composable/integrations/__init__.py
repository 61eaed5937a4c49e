"""The algorithms in other training loops: your own, Fabric, Accelerate, Lightning, Hugging Face.

`lightning` and `huggingface` need the library that each is named after.
"""

from composable.integrations.external_loop import (
    LoopAdapter,
    UnsupportedRequestError,
    adapt_loop,
)

__all__ = ["LoopAdapter", "UnsupportedRequestError", "adapt_loop"]
