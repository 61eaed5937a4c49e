"""A seal for the checkpoints of Hugging Face's Trainer, which writes their files in place."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from composable._support.checks import as_path, check_count
from composable._support.extras import needs
from composable.checkpoint.atomic import discard, remove_tree, writable
from composable.checkpoint.errors import DamagedCheckpointError, UnwritableCheckpointError
from composable.checkpoint.files import rename_damaged
from composable.checkpoint.sealing import SEAL, seal, verify_seal
from composable.distributed.processes import Processes
from composable.resume.select import first_valid

with needs("composable.integrations.huggingface", "huggingface"):
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


_NAME = re.compile(r"checkpoint-([0-9]+)")
_REFUSED = {
    "save_total_limit": "would delete a checkpoint before the new one is sealed: pass keep=",
    "save_only_model": "writes checkpoints from which no training can resume: drop it",
    "enable_jit_checkpoint": "writes checkpoints without calling callbacks: drop it",
    "save_on_each_node": "writes folders that are not sealed: use a folder that nodes share",
}
"""Arguments of the trainer that are not supported, and why."""


class SafeCheckpointCallback(TrainerCallback):
    """Seals the checkpoints of a Hugging Face Trainer, with or without algorithms.

    After each save, the files are written to disk and hashed, and the seal, a file `sealed.json`,
    is written last. `latest_checkpoint` returns only sealed ones. Let it be the last of the
    callbacks, so that it seals what others write; `LoopAdapterMixin` moves it there.

    Args:
        keep: The number of checkpoints to keep, besides the best one; all if None. Older ones are
            deleted after the new one is sealed.

    Example:
        >>> from composable.integrations.huggingface import SafeCheckpointCallback
        >>> callback = SafeCheckpointCallback(keep=2)  # transformers.Trainer(callbacks=[callback])
    """

    def __init__(self, keep: int | None = None) -> None:
        if keep is not None:
            check_count("keep", keep, 1)
        self.keep = keep

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Reject arguments that contradict the seal, and the folder of another training.

        Raises:
            ValueError: There is one, or the folder has a checkpoint of a later step.
        """
        for name, why in _REFUSED.items():
            if value := getattr(args, name, None):
                raise ValueError(f"{name}={value!r} {why}.")
        last = max(_sealed(Path(str(args.output_dir))), default=None, key=_step)
        if last is not None and _step(last) > state.global_step:
            raise ValueError(
                f"training begins at step {state.global_step}, and {last} is of a later step: pass "
                "resume_from_checkpoint=latest_checkpoint(output_dir), or another output_dir."
            )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Seal the checkpoint when all processes have written it, and delete old ones."""
        root, processes = Path(str(args.output_dir)), Processes.current()
        processes.barrier()
        processes.on_main(lambda: self._seal(root, state))

    def _seal(self, root: Path, state: TrainerState) -> None:
        seal(root / f"checkpoint-{state.global_step}")
        best = Path(state.best_model_checkpoint or "").name
        others = [path for path in _sealed(root) if path.name != best]
        for old in others[: -self.keep] if self.keep else ():
            with writable(old):
                discard(old, remove_tree)
        for left in root.glob(".checkpoint-*.partial"):  # of a deletion that was killed
            remove_tree(left)


def latest_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """Return the latest checkpoint with a seal that `SafeCheckpointCallback` wrote, or None.

    Pass it to `trainer.train(resume_from_checkpoint=...)`: the same script then starts a training,
    and continues it after a kill. All bytes of the checkpoint are verified. A damaged one is
    renamed to `checkpoint-8.damaged-1`; one without a seal stays, and is overwritten by the next
    save of its step.

    Args:
        output_dir: The folder of the `TrainingArguments`; it may be missing or empty.

    Warns:
        BrokenCheckpointWarning: A checkpoint is damaged, or has no seal.

    Example:
        >>> import tempfile
        >>> from composable.integrations.huggingface import latest_checkpoint
        >>> print(latest_checkpoint(tempfile.mkdtemp()))
        None
    """
    paths = _checkpoints(as_path("output_dir", output_dir))[::-1]
    found: str | None = Processes.current().on_main(lambda: first_valid(paths, _verified))
    return found


def _verified(path: Path) -> str:
    try:
        verify_seal(path)
    except DamagedCheckpointError:
        with suppress(UnwritableCheckpointError):  # renamed by another process
            rename_damaged(path)
        raise
    return str(path)


def _checkpoints(root: Path) -> list[Path]:
    """Return the checkpoints in the order of their steps."""
    paths = root.iterdir() if root.is_dir() else ()
    return sorted((one for one in paths if _NAME.fullmatch(one.name) and one.is_dir()), key=_step)


def _sealed(root: Path) -> list[Path]:
    return [path for path in _checkpoints(root) if (path / SEAL).exists()]


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])
