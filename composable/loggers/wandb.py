"""Write to Weights & Biases."""

import html
import io
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import Module

from composable._support.checks import as_path, check_one_of, check_text
from composable._support.paths import open_to_write
from composable.checkpoint.safetensors import write_tensors
from composable.core.callback import AttachedRun
from composable.core.logger import Columns, Logger, Rows
from composable.core.state import State
from composable.loggers import _environment as environment
from composable.loggers._back_end import HostedRunLogger, LogTime, last_steps
from composable.loggers._histograms import Histogram
from composable.loggers._offline import wandb_steps

_WATCH_INTERVAL = 100
_WATCHED = {
    "false": (),
    "gradients": ("gradients",),
    "parameters": ("parameters",),
    "all": ("gradients", "parameters"),
}
_MODELS = {"false": "false", "true": "end", "1": "end", "0": "false"}


class WandBLogger(HostedRunLogger):
    """Writes everything that is logged to a run of Weights & Biases.

    Arguments that are None come from the environment variables of the package, such as
    `WANDB_PROJECT`, `WANDB_NAME`, `WANDB_ENTITY` and `WANDB_MODE`. Without credentials and without
    a mode, the run is offline, in the folder `wandb`, and `wandb sync` uploads it; the package
    never prompts.

    - `WANDB_DISABLED=true` turns the logger off.
    - `WANDB_WATCH` is "gradients", "parameters" or "all" for histograms of every parameter, each
      100 batches; "false" by default.
    - `WANDB_LOG_MODEL` is "end" to log the weights as an artifact after training, or "checkpoint"
      to log the folder of checkpoints; "false" by default.

    If `wandb.init` was called before, its run is used. Otherwise a run is begun, which stays open
    between calls, until `finish`, or until the logger or the process ends.

    A resumed run continues the run of the checkpoint: it has the same id, and the steps
    that the package already has are not written again.

    Args:
        project: The project. Default: "composable".
        name: The name of the run.
        entity: The user or the team.
        mode: "online", "offline" or "disabled".
        dir: The folder of local files.
        flush_interval: Number of records of metrics to buffer, at least 1.
        **init_kwargs: Further arguments of `wandb.init`, such as `group` and `tags`.

    Raises:
        ModuleNotFoundError: The package wandb is not installed.
        ValueError: An environment variable has a value that is not allowed.

    Example:
        >>> from composable.loggers import WandBLogger
        >>> logger = WandBLogger("digits", mode="offline")
    """

    package = "wandb"
    extra = "wandb"

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        *,
        entity: str | None = None,
        mode: str | None = None,
        dir: str | Path | None = None,
        flush_interval: int = 100,
        **init_kwargs: Any,
    ) -> None:
        super().__init__(flush_interval=flush_interval)
        for argument, value in {"project": project, "name": name, "entity": entity}.items():
            check_text(argument, value)
        if mode is not None:
            check_one_of("mode", mode, ("online", "offline", "disabled"))
        self.project = project or environment.text("WANDB_PROJECT") or "composable"
        self.mode = mode or environment.text("WANDB_MODE")
        self.dir = None if dir is None else as_path("dir", dir)
        self._init_kwargs = {"name": name, "entity": entity, **init_kwargs}
        self._watched = _WATCHED[_choice("WANDB_WATCH", "false", _WATCHED)]
        if self._watched:  # otherwise the loop has no hook to call
            self.after_train_batch = self._watch  # type: ignore[method-assign]
        model = _choice("WANDB_LOG_MODEL", "false", (*_MODELS, "end", "checkpoint"))
        self._log_model = _MODELS.get(model, model)
        self._is_disabled = self.mode == "disabled" or environment.flag("WANDB_DISABLED")
        self._view: AttachedRun | None = None
        self._id: str | None = None

    def attach(self, run: AttachedRun) -> None:
        """Receive the run, which determines the weights of the artifact."""
        self._view = run

    def _begin(self, saved: Any) -> bool:
        import wandb  # imported here: it takes half a second

        if saved is None and wandb.run is not None:  # the user's own
            self.run, self._id = wandb.run, wandb.run.id
            self._is_offline = wandb.run.offline
            return False
        mode = self.mode or ("online" if wandb.login(prompt=False) else "offline")
        self._id = saved or self._init_kwargs.get("id") or self._id or secrets.token_hex(4)
        options: dict[str, Any] = {
            "resume": "allow" if mode == "online" else None,
            "reinit": "create_new",
            # A process that is killed loses a second.
            "settings": wandb.Settings(x_transaction_log_flush_interval=1.0),
            **self._init_kwargs,
        }
        own: Any = {"id": self._id, "mode": mode, "dir": self.dir}
        self.run = wandb.init(project=self.project, **{**options, **own})
        self._is_offline = self.run.offline
        return True

    def _run_state(self) -> Any:
        return self._id

    def _steps(self) -> Mapping[str, int]:
        run = self.run
        if not self._is_offline:
            return last_steps(dict.fromkeys(run.summary.keys(), run.step - 1), self._written)
        paths = Path(run.dir).parents[1].glob(f"offline-run-*-{self._id}/*.wandb")
        # A row of this process may not be on disk yet.
        return last_steps(self._written, *map(wandb_steps, paths))

    # --- what it logs itself, if requested ---

    def _watch(self, state: State, logger: Logger) -> None:
        """Log histograms of parameters and gradients every 100 batches."""
        if state.timestamp.batch % _WATCH_INTERVAL == 0:
            named = dict(state.model.named_parameters())
            gradients = {n: p.grad for n, p in named.items() if p.grad is not None}
            found: dict[str, Mapping[str, Any]] = {"gradients": gradients, "parameters": named}
            for kind in self._watched:
                values = {f"{kind}/{n}": value for n, value in found[kind].items()}
                self.log_histograms(values, state.timestamp)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Log the model, if requested."""
        if self._log_model == "end":
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "model.safetensors")
                model = state.model if self._view is None else self._view.evaluated_model(state)
                self._attempt(lambda: _save_model(model, path))
                self._attempt(lambda: self._write_artifact(f"model-{self._id}", path, "model"))
        elif self._log_model == "checkpoint" and (saved := self._checkpoints) is not None:
            self._attempt(lambda: self._write_artifact(f"model-{self._id}", saved, "model"))

    # --- writing ---

    def _log(self, values: Mapping[str, Any], moment: LogTime) -> None:
        self.run.log(dict(values), step=moment.step)

    def _write_metrics(self, records: Sequence[tuple[LogTime, Mapping[str, Any]]]) -> None:
        for moment, values in records:
            self._log({n: v for n, v in values.items() if v is not None}, moment)

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        self.run.config.update(dict(values), allow_val_change=True)

    def _write_images(self, name: str, pictures: Sequence[bytes], moment: LogTime) -> None:
        import wandb
        from PIL import Image

        found = [wandb.Image(Image.open(io.BytesIO(picture))) for picture in pictures]
        self._log({name: found}, moment)

    def _write_histogram(self, name: str, histogram: Histogram, moment: LogTime) -> None:
        import wandb

        if histogram.counts:
            pair = (list(histogram.counts), list(histogram.edges))
            self._log({name: wandb.Histogram(np_histogram=pair)}, moment)

    def _write_text(self, name: str, text: str, moment: LogTime) -> None:
        import wandb

        self._log({name: wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False)}, moment)

    def _write_table(self, name: str, table: tuple[Columns, Rows], moment: LogTime) -> None:
        import wandb

        columns, rows = table
        self._log({name: wandb.Table(columns=columns, data=rows)}, moment)

    def _write_artifact(self, name: str, path: Path, kind: str = "file") -> None:
        import wandb

        artifact = wandb.Artifact(name, type=kind)
        if path.is_dir():
            artifact.add_dir(str(path))
        else:
            artifact.add_file(str(path))
        self.run.log_artifact(artifact)


def _choice(name: str, default: str, allowed: Any) -> str:
    value = (environment.text(name) or default).lower()
    check_one_of(f"the environment variable {name}", value, allowed)
    return value


def _save_model(model: Module, path: Path) -> None:
    tensors = {n: tensor for n, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    with open_to_write(path, "xb") as file:
        write_tensors(file.write, tensors)
