"""Draw docs/pictures/tensorboard_run.png: TensorBoard in a browser, after two runs on digits.

    python -m docs.pictures.tensorboard_run [chromium]

It starts TensorBoard on a free port and takes a screenshot with a headless Chromium.
"""

import sys
import tempfile
from pathlib import Path

from composable.loggers import TensorBoardLogger
from docs.pictures.digits_run import answer, serving, take_picture, train


def main(browser: str) -> None:
    """Train, start TensorBoard, and take the picture."""
    with tempfile.TemporaryDirectory() as folder:
        train(lambda name: TensorBoardLogger(Path(folder, "runs", name)))
        command = (sys.executable, "-m", "tensorboard.main", "--logdir", "runs")
        with serving(*command, folder=folder) as address:
            answer(f"{address}/data/runs", lambda runs: len(runs) == 2)
            take_picture(browser, f"{address}/#scalars", Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "chromium")
