"""Logger destinations, one per file."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.core.destination import LoggerDestination as LoggerDestination
    from composable.core.logger import Logger as Logger
    from composable.core.logger import UnsupportedLogWarning as UnsupportedLogWarning
    from composable.loggers._back_end import LoggerFailureWarning as LoggerFailureWarning
    from composable.loggers.azureml import AzureMLLogger as AzureMLLogger
    from composable.loggers.comet import CometLogger as CometLogger
    from composable.loggers.console import ConsoleLogger as ConsoleLogger
    from composable.loggers.csv import CSVLogger as CSVLogger
    from composable.loggers.in_memory import InMemoryLogger as InMemoryLogger
    from composable.loggers.json_lines import JSONLinesLogger as JSONLinesLogger
    from composable.loggers.mlflow import MLFlowLogger as MLFlowLogger
    from composable.loggers.progress_bar import ProgressBarLogger as ProgressBarLogger
    from composable.loggers.tensorboard import TensorBoardLogger as TensorBoardLogger
    from composable.loggers.trackio import TrackioLogger as TrackioLogger
    from composable.loggers.wandb import WandBLogger as WandBLogger
else:
    export_lazily(__name__)
