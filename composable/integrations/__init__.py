"""The algorithms in other training loops: your own, Fabric, Accelerate, Lightning, Hugging Face.

`lightning` and `huggingface` need the library that each is named after.
"""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.integrations._refusals import (
        UnsupportedRequestError as UnsupportedRequestError,
    )
    from composable.integrations.external_loop import adapt_loop as adapt_loop
    from composable.integrations.loop_adapter import LoopAdapter as LoopAdapter
else:
    export_lazily(__name__)
