"""Draw docs/pictures/mlflow_run.png: MLflow in a browser, after two runs on digits.

    python -m docs.pictures.mlflow_run [mlflow [chromium]]

It starts an MLflow server on a free port, logs to it, and takes a screenshot with a headless
Chromium. The command `mlflow server` is part of the package `mlflow`, not of `mlflow-skinny`, which
the logger needs.
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

from composable.loggers import MLFlowLogger
from docs.pictures.digits_run import answer, serving, take_picture, train


def main(server: str, browser: str) -> None:
    """Start a server, train, and take the picture."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(server, "server", folder=folder) as address,
    ):
        answer(f"{address}/health")
        train(lambda name: MLFlowLogger("digits", run_name=name, tracking_uri=address))
        page = f"{address}/#/experiments/1/runs?viewStateShareKey=&compareRunsMode=CHART"
        picture = Path(__file__).with_suffix(".png")
        take_picture(browser, page, picture, size="2000,1000")
        with Image.open(picture) as whole:  # without the pane of the assistant
            whole.crop((0, 0, 1480, 1000)).quantize(64).save(picture, optimize=True)


if __name__ == "__main__":
    server, browser = [*sys.argv[1:], *("mlflow", "chromium")[len(sys.argv) - 1 :]]
    main(server, browser)
