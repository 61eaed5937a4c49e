"""Draw the pictures of the page on design: python docs/pictures/design.py.

The layers are read from the import contract in pyproject.toml, which the checks enforce.
"""

import re
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

HERE = Path(__file__).parent
CONTRACT = HERE.parents[1] / "pyproject.toml"
COLORS = ("#dbe9f6", "#e3f1dd", "#fdebd3")
FILES = {
    "trainer/loop.py": COLORS[0],
    "trainer/step.py": COLORS[1],
    "plan/dispatch.py": COLORS[2],
}
WAY = [
    ("trainer/loop.py", "train_epoch", "fetch the next batch", "BEFORE_DATALOADER"),
    ("trainer/loop.py", "train_batch", "move it to the device, count it", "AFTER_DATALOADER"),
    ("trainer/step.py", "scheduling", "set learning rates by schedules", "*_SCHEDULER_STEP"),
    ("trainer/step.py", "build_step", "start the step", "BATCH_START"),
    ("trainer/step.py", "optimizer_step", "freeze parameters", "BEFORE_TRAIN_BATCH"),
    (None, "sum_gradients", "split, if there are microbatches or shards", None),
    ("trainer/step.py", "forward_backward", "seed, forward", "BEFORE_FORWARD, AFTER_FORWARD"),
    ("trainer/step.py", "forward_backward", "loss", "BEFORE_LOSS, AFTER_LOSS"),
    ("trainer/step.py", "forward_backward", "backward", "BEFORE_BACKWARD, AFTER_BACKWARD"),
    ("trainer/step.py", "optimizer_step", "check that the loss is finite", "AFTER_TRAIN_BATCH"),
    ("trainer/step.py", "build_step", "step the optimizers", "BEFORE/AFTER_OPTIMIZER_STEP"),
    ("trainer/step.py", "build_step", "free the gradients", "BEFORE/AFTER_ZERO_GRAD"),
    ("trainer/step.py", "scheduling", "step PyTorch's schedulers", "BEFORE/AFTER_SCHEDULER_STEP"),
    ("trainer/loop.py", "log", "log what is due", "BATCH_END, LOG"),
    (None, "Evaluation, Checkpoints", "evaluate, save what is due", "EVAL_*, BATCH_CHECKPOINT"),
]


def layers() -> list[list[str]]:
    """Read the layers of the package, from top to bottom."""
    contract = CONTRACT.read_text().split('containers = ["composable"]')[1]
    listed = re.search(r"layers = \[(.*?)\]", contract, re.DOTALL)
    assert listed is not None
    rows = re.findall(r'"([^"]+)"', listed.group(1))
    return [row.split(" | ") for row in rows if row == "_support" or not row.startswith("_")]


def box(ax, x, y, width, height, color, text, **font) -> None:
    shape = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.08",
        facecolor=color,
        edgecolor="#555555",
        linewidth=0.8,
    )
    ax.add_patch(shape)
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", **font)


def draw_layers() -> None:
    rows = layers()
    figure, ax = plt.subplots(figsize=(7, 0.46 * len(rows) + 0.3))
    for i, row in enumerate(rows):
        width = 10 / len(row)
        for j, name in enumerate(row):
            color = COLORS[0 if i < len(rows) / 3 else 1 if i < 2 * len(rows) / 3 else 2]
            box(ax, j * width + 0.06, -i, width - 0.12, 0.78, color, name, fontsize=10)
    arrow = FancyArrowPatch(
        (10.35, 0.7), (10.35, 1 - len(rows)), arrowstyle="-|>", mutation_scale=14, color="#555555"
    )
    ax.add_patch(arrow)
    ax.text(10.6, 0.85 - len(rows) / 2, "imports", rotation=270, va="center", fontsize=9)
    ax.set(xlim=(-0.1, 11.1), ylim=(0.8 - len(rows), 0.95))
    ax.axis("off")
    figure.savefig(HERE / "design_layers.svg", bbox_inches="tight", metadata={"Date": None})


def draw_way() -> None:
    figure, ax = plt.subplots(figsize=(8.4, 6.6))
    for i, (file, function, action, events) in enumerate(WAY):
        color = FILES.get(file, "white")  # white: a part that the loop or the step calls
        box(ax, 0, -i, 2.6, 0.72, color, function, fontsize=9, family="monospace")
        ax.text(2.8, 0.36 - i, action, va="center", fontsize=9.5)
        if events:
            box(ax, 6.5, -i, 3.7, 0.72, FILES["plan/dispatch.py"], events, fontsize=7.5)
        if i:
            ax.add_patch(
                FancyArrowPatch(
                    (1.3, 1 - i),
                    (1.3, 0.74 - i),
                    arrowstyle="-|>",
                    mutation_scale=9,
                    color="#555555",
                )
            )
    for k, (file, color) in enumerate(FILES.items()):
        box(ax, 3.5 * k, 1.35, 0.35, 0.4, color, "", fontsize=8)
        ax.text(3.5 * k + 0.5, 1.55, file, va="center", fontsize=9.5, family="monospace")
    ax.set(xlim=(-0.2, 10.5), ylim=(0.6 - len(WAY), 2.0))
    ax.axis("off")
    figure.savefig(HERE / "design_batch.svg", bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    plt.rcParams["svg.hashsalt"] = "composable"  # the same file from the same picture
    draw_layers()
    draw_way()
