"""Records of runs: written while training, compared and replayed afterwards."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.runs.recorder import RunRecorder as RunRecorder
else:
    export_lazily(__name__)
