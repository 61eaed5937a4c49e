"""Draw docs/pictures/tensorboard_run.png: TensorBoard in a browser, after a run on digits.

    python docs/pictures/tensorboard_run.py [chromium]

It starts TensorBoard on a free port and takes a screenshot with a headless Chromium.
"""

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from composable import Trainer
from composable.loggers import TensorBoardLogger
from composable.metrics import accuracy

PICTURE = Path(__file__).with_suffix(".png")


def train(folder: Path) -> None:
    """Train a small model on digits, and log to a folder."""

    def observe(event, state, logger):
        if event.value == "epoch_end":
            logger.log_histograms({"weights": state.model[1].weight})
            logger.log_images({"samples": images[:2]})

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    batches = list(zip(images.split(64), labels.split(64), strict=True))
    for rate in (0.03, 0.1):
        torch.manual_seed(17)
        Trainer(
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
            train_dataloader=batches[:24],
            eval_dataloader=batches[24:],
            metrics={"accuracy": accuracy},
            loss_fn=torch.nn.functional.cross_entropy,
            optimizers=partial(torch.optim.SGD, lr=rate, momentum=0.9),
            max_duration="10ep",
            callbacks=observe,
            loggers=TensorBoardLogger(folder / f"rate {rate}"),
            progress_bar=False,
            seed=17,
        ).fit()


def main(browser: str) -> None:
    """Train, start TensorBoard, and take the picture."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        train(Path(folder, "runs"))
        server = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir", "runs", "--port", str(port)],
            cwd=folder,
        )
        try:
            page = f"http://127.0.0.1:{port}/#scalars"
            wait(f"http://127.0.0.1:{port}/data/runs")
            subprocess.run(
                [
                    *(browser, "--headless", "--no-sandbox", "--hide-scrollbars"),
                    *("--window-size=1400,900", "--virtual-time-budget=60000"),
                    *(f"--screenshot={PICTURE}", page),
                ],
                check=True,
                timeout=120,
            )
        finally:
            server.terminate()


def wait(page: str) -> None:
    """Wait until TensorBoard has read the runs."""
    for _ in range(120):
        with contextlib.suppress(OSError), urllib.request.urlopen(page) as answer:
            if len(json.load(answer)) == 2:
                return
        time.sleep(0.5)
    raise TimeoutError(page)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "chromium")
