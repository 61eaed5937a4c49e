"""The plan of a run: which algorithms and callbacks run at which event, and in what order."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.plan.combinators import always as always
    from composable.plan.combinators import anneal as anneal
    from composable.plan.combinators import chain as chain
    from composable.plan.combinators import choose as choose
    from composable.plan.combinators import during as during
    from composable.plan.combinators import every as every
    from composable.plan.combinators import identity as identity
    from composable.plan.combinators import never as never
    from composable.plan.combinators import when as when
    from composable.plan.compatibility import AmbiguousOrderWarning as AmbiguousOrderWarning
    from composable.plan.compatibility import Caveat as Caveat
    from composable.plan.compatibility import CompatibilityWarning as CompatibilityWarning
    from composable.plan.compatibility import (
        IncompatibleAlgorithmsError as IncompatibleAlgorithmsError,
    )
    from composable.plan.effects import EffectError as EffectError
    from composable.plan.effects import ObserverError as ObserverError
    from composable.plan.global_callbacks import (
        register_global_callback as register_global_callback,
    )
    from composable.plan.plan import IdleAlgorithmWarning as IdleAlgorithmWarning
    from composable.plan.plan import Plan as Plan
    from composable.plan.timeline import Timeline as Timeline
else:
    export_lazily(__name__)
