"""Training speed-up methods for PyTorch: pure functions, laws of composition, and a thin loop."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily
from composable._version import __version__ as __version__

if TYPE_CHECKING:
    from composable import algorithms as algorithms
    from composable import callbacks as callbacks
    from composable import checkpoint as checkpoint
    from composable import comparison as comparison
    from composable import data as data
    from composable import functional as functional
    from composable import integrations as integrations
    from composable import loggers as loggers
    from composable import metrics as metrics
    from composable import models as models
    from composable import optim as optim
    from composable import recipes as recipes
    from composable import report as report
    from composable import resume as resume
    from composable import runs as runs
    from composable import testing as testing
    from composable import utils as utils
    from composable.batches.precision import Precision as Precision
    from composable.comparison.compare import compare as compare
    from composable.core.algorithm import Algorithm as Algorithm
    from composable.core.algorithm import Stage as Stage
    from composable.core.callback import Callback as Callback
    from composable.core.control import Control as Control
    from composable.core.destination import LoggerDestination as LoggerDestination
    from composable.core.event import Event as Event
    from composable.core.key import Key as Key
    from composable.core.logger import Logger as Logger
    from composable.core.state import FrozenStateError as FrozenStateError
    from composable.core.state import State as State
    from composable.core.time import Clock as Clock
    from composable.core.time import Time as Time
    from composable.core.time import Timestamp as Timestamp
    from composable.core.time import TimeUnit as TimeUnit
    from composable.core.update import Update as Update
    from composable.core.window import Window as Window
    from composable.engines.compiled import CompilationWarning as CompilationWarning
    from composable.losses.part_weights import SplitLossError as SplitLossError
    from composable.metrics import Evaluator as Evaluator
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
    from composable.replay import replay as replay
    from composable.trainer.run import UnsupportedRequestWarning as UnsupportedRequestWarning
    from composable.trainer.trainer import Trainer as Trainer
else:
    export_lazily(__name__)
