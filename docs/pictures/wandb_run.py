"""Draw docs/pictures/wandb_run.png: two offline runs on digits in the viewer of Weights & Biases.

    python -m docs.pictures.wandb_run [chromium]

`wandb leet` shows the runs in a terminal, which is one of tmux. A headless Chromium draws it.
"""

import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from composable.loggers import WandBLogger
from docs.pictures.digits_run import take_picture, train

COLUMNS, LINES = 124, 26


def main(browser: str) -> None:
    """Train, start the viewer, and take the picture."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ |= {"HOME": folder, "WANDB_SILENT": "true"}
        loggers = []

        def logger(name: str) -> WandBLogger:
            loggers.append(WandBLogger("digits", name=name, mode="offline"))
            return loggers[-1]

        train(logger)
        for one in loggers:
            one.finish()
        drawing = Path(folder, "run.svg")
        drawing.write_text(draw(view("wandb leet wandb", folder)))
        take_picture(browser, drawing.as_uri(), Path(__file__).with_suffix(".png"), "1536,740")


def view(command: str, folder: str) -> str:
    """Show both runs in the viewer, and return the screen without the line of the folder."""
    tmux = ("tmux", "-S", f"{folder}/terminal")
    size = ("-x", str(COLUMNS), "-y", str(LINES))
    subprocess.run([*tmux, "new-session", "-d", *size, command], check=True)
    try:
        for key in ("", "Down", "Space", "]"):
            if key:
                subprocess.run([*tmux, "send-keys", key], check=True)
            time.sleep(8)
        shown = subprocess.run([*tmux, "capture-pane", "-e", "-p"], check=True, capture_output=True)
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    return "\n".join(shown.stdout.decode().splitlines()[: LINES - 1])


def draw(screen: str) -> str:
    """Return a drawing of a screen."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(screen))
    drawing = console.export_svg(title="wandb leet wandb")
    return drawing.replace("Fira Code", "DejaVu Sans Mono")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "chromium")
