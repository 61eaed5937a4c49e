"""Training speed-up methods for PyTorch: pure functions, laws of composition, and a thin loop."""

from composable._version import __version__ as __version__
from composable.core.algorithm import Algorithm, Stage
from composable.core.callback import Callback
from composable.core.combinators import (
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
from composable.core.control import Control
from composable.core.event import Event
from composable.core.global_callbacks import register_global_callback
from composable.core.key import Key
from composable.core.logger import Logger, LoggerDestination
from composable.core.mixtures import (
    AmbiguousOrderWarning,
    BadMixtureError,
    DoubtfulMixtureWarning,
)
from composable.core.observing import EffectError, ObserverError
from composable.core.plan import IdleAlgorithmWarning, Plan
from composable.core.state import FrozenStateError, State
from composable.core.time import Clock, Time, Timestamp, TimeUnit
from composable.core.window import Window
from composable.loop import UnmetRequestWarning
from composable.metrics import Evaluator
from composable.replaying import replay
from composable.trainer import Trainer

__all__ = [
    "Algorithm",
    "AmbiguousOrderWarning",
    "BadMixtureError",
    "Callback",
    "Clock",
    "Control",
    "DoubtfulMixtureWarning",
    "EffectError",
    "Evaluator",
    "Event",
    "FrozenStateError",
    "IdleAlgorithmWarning",
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
    "UnmetRequestWarning",
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
