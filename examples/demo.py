"""Does it pay? Train a byte-level GPT to the loss of tuned baselines, in a fraction of their time.

The data are the source files of Python's standard library. Two baselines, with the learned
positions of GPT-2 and with rotary positions, are trained by AdamW; recipes and single methods are
trained on their own schedules. All runs take turns, two at a time, each in a process with one
thread. A table and a plot compare the losses on test files and the times:

    python examples/demo.py                # about three minutes on two idle cores
    python examples/demo.py --seeds 5

The learning rates, batch sizes and durations were chosen on validation files, with another seed:
docs/evidence/language.md has what was tried.
"""

import argparse
import json
import math
import multiprocessing
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import torch
from tqdm import tqdm

try:
    import byte_gpt
except ModuleNotFoundError:  # imported as a part of `examples`, not run as a script
    from examples import byte_gpt

from composable import Callback
from composable.algorithms import Alibi, Rotary, SeqLengthWarmup
from composable.recipes import Recipe, small_gpt, small_gpt_rotary

try:
    import matplotlib as mpl
    from scipy import stats

    mpl.use("Agg")  # no window is needed, and a display may be missing
    import matplotlib.pyplot as plt
except ModuleNotFoundError as error:
    sys.exit(f'{error}. Install the demo dependencies: pip install ".[demo]".')

Curve: TypeAlias = list[tuple[float, float]]
"""Pairs of the seconds of training and the test loss."""
Curves: TypeAlias = dict[str, list[Curve]]
"""The curves of each arm, in the order of the seeds."""

LEARNED, ROTARY = "learned positions", "rotary positions"


@attrs.frozen
class Arm:
    """What is trained, and for how long."""

    name: str
    recipe: Callable[[], Recipe]
    settings: dict[str, Any]
    """The hyperparameters of `build`."""
    batches: int
    baseline: str | None = None
    """The arm whose loss is to be reached."""


ADAMW, ADAMW_ROTARY = {"lr": 1e-3, "batch_size": 2}, {"lr": 2e-3, "batch_size": 2}
SHORT = Alibi(byte_gpt.CONTEXT, train_sequence_length_scaling=0.25)
WARMUP = SeqLengthWarmup(duration=0.5, min_seq_length=32, max_seq_length=byte_gpt.CONTEXT)
ARMS = [
    Arm(LEARNED, Recipe, ADAMW, 500),
    Arm("small_gpt", small_gpt, {"batch_size": 16}, 36, LEARNED),
    Arm(ROTARY, lambda: Recipe([Rotary()]), ADAMW_ROTARY, 500),
    Arm("small_gpt, longer", small_gpt, {"batch_size": 16}, 75, ROTARY),
    Arm("small_gpt_rotary", small_gpt_rotary, {"batch_size": 8}, 120, ROTARY),
    Arm("rotary, length warm-up", lambda: Recipe([Rotary(), WARMUP]), ADAMW_ROTARY, 500, ROTARY),
    Arm("ALiBi on quarter lengths", lambda: Recipe([SHORT]), ADAMW_ROTARY, 500, ROTARY),
]


# --- training ---


class Recorder(Callback):
    """Records the test loss and the seconds of training; the clock stops during evaluations.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.points: Curve = []
        self.seconds, self.since = 0.0, 0.0

    def epoch_start(self, state: Any, logger: Any) -> None:
        """Start the clock, after the set-up."""
        self.since = self.clock()

    def eval_before_all(self, state: Any, logger: Any) -> None:
        """Stop the clock."""
        self.seconds += self.clock() - self.since

    def eval_after_all(self, state: Any, logger: Any) -> None:
        """Record a point, and start the clock again."""
        self.points.append((self.seconds, float(state.metrics["test"]["loss"])))
        self.since = self.clock()


def train(place: int, seed: int, share: float, clock: str) -> Curve:
    """Train the arm at a place of `ARMS`; return pairs of seconds and test loss."""
    arm = ARMS[place]
    recipe = arm.recipe()
    trainer = byte_gpt.build(
        recipe.algorithms,
        seed,
        optimizers=recipe.optimizers,
        schedulers=recipe.schedulers,
        max_duration=f"{max(2, round(share * arm.batches))}ba",
        **arm.settings,
    )
    recorder = Recorder(time.process_time if clock == "cpu" else time.perf_counter)
    trainer.add_callback(recorder)
    trainer.fit()
    return recorder.points


def start_worker() -> None:
    """Prepare a worker process: one thread, and Ctrl-C is left to the main process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    byte_gpt.texts()


def train_all(options: argparse.Namespace) -> Curves:
    """Train all arms with all seeds, in turns; return the curves by arm, in order of the seeds."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, context, start_worker) as pool:
        try:
            futures = {
                pool.submit(train, place, seed, options.share, options.clock): (
                    ARMS[place].name,
                    seed,
                )
                for seed in range(options.seeds)
                for place in range(len(ARMS))
            }
            done = as_completed(futures)
            found = {futures[one]: one.result() for one in tqdm(done, "runs", len(futures))}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    return {arm.name: [found[arm.name, seed] for seed in range(options.seeds)] for arm in ARMS}


# --- results ---


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean, and its 95 % confidence interval by Student's t distribution."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan, math.nan
    error = statistics.stdev(values) / math.sqrt(len(values))
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return mean, mean - reach, mean + reach


def summarize(curves: Curves) -> list[dict[str, Any]]:
    """Compute the rows of the table; an arm and its baseline are compared seed by seed."""
    rows = []
    for arm in ARMS:
        seconds, losses = ([curve[-1][i] for curve in curves[arm.name]] for i in range(2))
        row = {**attrs.asdict(arm), "recipe": None, "seconds": seconds, "losses": losses}
        if arm.baseline is not None:
            pairs = [*zip(curves[arm.baseline], curves[arm.name], strict=True)]
            logs = [math.log(other[-1][0] / own[-1][0]) for other, own in pairs]
            row["speedup"] = [math.exp(one) for one in interval(logs)]
            row["difference"] = interval([own[-1][1] - other[-1][1] for other, own in pairs])
        rows.append(row)
    return rows


def verdict(row: dict[str, Any]) -> str:
    """Return whether an arm has reached the loss of its baseline in less time."""
    _, low, high = row["speedup"]
    mean, _, worst = row["difference"]
    if worst <= 0 and low > 1:
        return "pays"
    if mean > 0:
        return "misses the loss"
    return "slower" if high < 1 else "no evidence"


def format_table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as text: each baseline, and below it the arms that it is compared with."""
    lines = [
        f"{'':26} {'batches':>7} {'seconds':>7} {'test loss':>13}  {'speed-up':^20}  difference"
    ]
    for row in rows:
        name = row["name"] if row["baseline"] is None else f"  {row['name']}"
        seconds, losses = row["seconds"], row["losses"]
        spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
        cells = f"{name:26} {row['batches']:7} {statistics.fmean(seconds):7.1f} "
        cells += f"{statistics.fmean(losses):.3f} ± {spread:.3f}"
        if row["baseline"] is not None:
            cells += "  {:5.2f}x {:>13}".format(row["speedup"][0], _range(row["speedup"], ".2f"))
            cells += "  {:+.3f} {}".format(row["difference"][0], _range(row["difference"], "+.3f"))
            cells += f": {verdict(row)}"
        lines.append(cells)
    return "\n".join([*lines, "In parentheses: 95 % confidence intervals over the seeds."])


def _range(values: Sequence[float], form: str) -> str:
    return f"({values[1]:{form}} to {values[2]:{form}})"


def draw(curves: Curves, clock: str, path: Path) -> None:
    """Plot the test loss against the time: means, and bands from the lowest to the highest seed."""
    figure, axis = plt.subplots(figsize=(8, 4.8), constrained_layout=True)
    for i, arm in enumerate(ARMS):
        points = torch.tensor(curves[arm.name])  # seeds, evaluations, (seconds, loss)
        seconds, losses = points.mean(0)[:, 0], points[..., 1]
        axis.plot(seconds, losses.mean(0), f"C{i}", marker=".", label=arm.name)
        low, high = losses.amin(0), losses.amax(0)
        axis.fill_between(seconds, low, high, color=f"C{i}", alpha=0.2, lw=0)
        if arm.baseline is None:
            axis.axhline(losses.mean(0)[-1].item(), color=f"C{i}", ls=":", lw=1)
    kind = "wall-clock" if clock == "wall" else "CPU"
    axis.set(xlabel=f"seconds of training ({kind})", ylabel="test loss, nats a byte")
    axis.set_xlim(left=0)
    axis.grid(alpha=0.3)
    axis.legend(title=f"{len(curves[LEARNED])} seeds each")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Train all arms and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--workers", type=int, default=2, help="number of runs at a time")
    parser.add_argument("--share", type=float, default=1.0, help="share of the batches to train")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--folder", type=Path, help="for results (default: runs/demo-<time>)")
    options = parser.parse_args()
    folder = options.folder or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    try:
        byte_gpt.texts()
    except FileNotFoundError as error:
        sys.exit(str(error))
    curves = train_all(options)
    rows = summarize(curves)
    table = format_table(rows)
    print(f"\n{table}\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps({"rows": rows, "curves": curves}, indent=1))
    (folder / "table.txt").write_text(table + "\n")
    draw(curves, options.clock, folder / "curves.png")
    print(f"The table, the curves and the plot were written to {folder}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted.")
