"""Training speed-up methods for PyTorch: pure functions, laws of composition, and a thin loop."""

from composable._version import __version__ as __version__
from composable.core.algorithm import Algorithm, Stage
from composable.core.callback import Callback
from composable.core.control import Control
from composable.core.destination import LoggerDestination
from composable.core.event import Event
from composable.core.key import Key
from composable.core.logger import Logger
from composable.core.state import FrozenStateError, State
from composable.core.time import Clock, Time, Timestamp, TimeUnit
from composable.core.window import Window
from composable.metrics import Evaluator
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
    CompatibilityWarning,
    IncompatibleAlgorithmsError,
)
from composable.plan.effects import EffectError, ObserverError
from composable.plan.global_callbacks import register_global_callback
from composable.plan.plan import IdleAlgorithmWarning, Plan
from composable.replay import replay
from composable.trainer.run import UnsupportedRequestWarning
from composable.trainer.trainer import Trainer

__all__ = [
    "Algorithm",
    "AmbiguousOrderWarning",
    "Callback",
    "Clock",
    "CompatibilityWarning",
    "Control",
    "EffectError",
    "Evaluator",
    "Event",
    "FrozenStateError",
    "IdleAlgorithmWarning",
    "IncompatibleAlgorithmsError",
    "Key",
    "Logger",
    "LoggerDestination",
    "ObserverError",
    "Plan",
    "Stage",
    "State",
    "Time",
    "TimeUnit",
    "Timestamp",
    "Trainer",
    "UnsupportedRequestWarning",
    "Window",
    "always",
    "anneal",
    "chain",
    "choose",
    "during",
    "every",
    "identity",
    "never",
    "register_global_callback",
    "replay",
    "when",
]
