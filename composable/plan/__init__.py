"""The plan of a run: which algorithms and callbacks run at which event, and in what order."""

from composable.plan.combinators import (
    always,
    anneal,
    chain,
    choose,
    during,
    every,
    identity,
    never,
    when,
)
from composable.plan.compatibility import (
    AmbiguousOrderWarning,
    Caveat,
    CompatibilityWarning,
    IncompatibleAlgorithmsError,
)
from composable.plan.effects import EffectError, ObserverError
from composable.plan.global_callbacks import register_global_callback
from composable.plan.plan import IdleAlgorithmWarning, Plan
from composable.plan.timeline import Timeline

__all__ = [
    "AmbiguousOrderWarning",
    "Caveat",
    "CompatibilityWarning",
    "EffectError",
    "IdleAlgorithmWarning",
    "IncompatibleAlgorithmsError",
    "ObserverError",
    "Plan",
    "Timeline",
    "always",
    "anneal",
    "chain",
    "choose",
    "during",
    "every",
    "identity",
    "never",
    "register_global_callback",
    "when",
]
