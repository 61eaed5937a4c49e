"""Runs on digits for the pictures of loggers, and a browser that takes the pictures."""

import contextlib
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits

from composable import Trainer
from composable.metrics import accuracy

__all__ = ["answer", "serving", "take_picture", "train"]


def train(logger: Callable[[str], Any]) -> None:
    """Train a small model on digits with two learning rates, each with a logger of its own."""

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
            loggers=logger(f"rate {rate}"),
            progress_bar=False,
            seed=17,
        ).fit()


@contextlib.contextmanager
def serving(*command: str, folder: str) -> Iterator[str]:
    """Run a server on a free port of this machine, and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([*command, "--port", str(port)], cwd=folder)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def answer(page: str, ready: Callable[[Any], bool] = bool, seconds: int = 60) -> Any:
    """Return the JSON of a page as soon as it is ready."""
    for _ in range(2 * seconds):
        with contextlib.suppress(OSError), urllib.request.urlopen(page) as read:
            text = read.read()
            found = json.loads(text) if text[:1] in b"{[" else text
            if ready(found):
                return found
        time.sleep(0.5)
    raise TimeoutError(page)


def take_picture(browser: str, page: str, path: Path, size: str = "1400,900") -> None:
    """Save a screenshot of a page by a headless Chromium."""
    subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--hide-scrollbars"),
            *(f"--window-size={size}", "--virtual-time-budget=60000"),
            *(f"--screenshot={path}", page),
        ],
        check=True,
        timeout=180,
    )
