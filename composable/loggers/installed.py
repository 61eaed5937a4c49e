"""The loggers of all back ends that are installed."""

from composable.core.destination import LoggerDestination
from composable.loggers import _environment as environment
from composable.loggers._back_end import is_installed
from composable.loggers.azureml import AzureMLLogger
from composable.loggers.comet import CometLogger
from composable.loggers.mlflow import MLFlowLogger
from composable.loggers.tensorboard import TensorBoardLogger
from composable.loggers.trackio import TrackioLogger
from composable.loggers.wandb import WandBLogger


def installed_loggers() -> list[LoggerDestination]:
    """Return one logger for each back end whose package is installed.

    The order is TensorBoard, Weights & Biases, Trackio, Comet, and MLflow, or Azure Machine
    Learning in its place where `MLFLOW_TRACKING_URI` is an address of it.
    """
    in_azure = (environment.text("MLFLOW_TRACKING_URI") or "").startswith("azureml:")
    kinds = (
        TensorBoardLogger,
        WandBLogger,
        TrackioLogger,
        CometLogger,
        AzureMLLogger if in_azure and is_installed(AzureMLLogger.package) else MLFlowLogger,
    )
    return [kind() for kind in kinds if is_installed(kind.package)]
