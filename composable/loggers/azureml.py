"""Write to Azure Machine Learning."""

from typing import Any

from composable.loggers import _environment as environment
from composable.loggers.mlflow import MLFlowLogger


class AzureMLLogger(MLFlowLogger):
    """Writes to a workspace of Azure Machine Learning, through MLflow.

    In a job of Azure, which sets `MLFLOW_TRACKING_URI` and `MLFLOW_RUN_ID`, it needs no argument
    and writes to the run of the job. Elsewhere, pass the address of the workspace, which
    `workspace.mlflow_tracking_uri` of the Azure SDK is. It takes the arguments of `MLFlowLogger`.

    Raises:
        ModuleNotFoundError: The package azureml-mlflow is not installed.
        ValueError: No tracking address is given.
    """

    package = "azureml.mlflow"
    extra = "azureml"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.tracking_uri is None and environment.text("MLFLOW_TRACKING_URI") is None:
            raise ValueError(
                "AzureMLLogger needs the address of the workspace; pass tracking_uri= or set the "
                "environment variable MLFLOW_TRACKING_URI."
            )

    def _make_client(self) -> Any:
        import azureml.mlflow  # noqa: F401  # registers the stores of the scheme azureml://

        return super()._make_client()
