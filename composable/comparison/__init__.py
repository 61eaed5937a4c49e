"""Compare methods on a model and data: which of them shorten training?"""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.comparison.compare import compare as compare
    from composable.comparison.records import Study as Study
    from composable.comparison.records import Trial as Trial
    from composable.comparison.records import TrialResult as TrialResult
    from composable.comparison.result import Comparison as Comparison
    from composable.comparison.trial import yield_reports as yield_reports
    from composable.comparison.verdict import Verdict as Verdict
else:
    export_lazily(__name__)
