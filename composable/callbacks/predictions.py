"""Log examples of evaluations with the outputs of the model."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from composable._support.checks import check_count, check_is_callable
from composable._support.printable import shorten
from composable._support.tree import map_tensors
from composable.batches.model_call import metric_outputs
from composable.callbacks._first_batch import UsesFirstBatch
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.stateful import Count
from composable.core.time import TimeLike, check_length, progress

_MOST = 16
"""How many values of a tensor are shown."""


def describe_example(inputs: Any, outputs: Any, targets: Any) -> dict[str, Any]:
    """Return the columns of an example: small tensors as lists, and larger ones by their shape.

    If the targets are classes, the output is the most likely class.

    Example:
        >>> from composable.callbacks.predictions import describe_example
        >>> describe_example(torch.zeros(3, 8, 8), torch.tensor([0.1, 2.0]), torch.tensor(1))
        {'input': 'float32 [3, 8, 8]', 'output': '1', 'target': '1'}
    """
    both = isinstance(outputs, Tensor) and isinstance(targets, Tensor)
    if both and outputs.is_floating_point() and not targets.is_floating_point():
        outputs = outputs.argmax(-1) if outputs.shape[:-1] == targets.shape else outputs
    return {"input": _text(inputs), "output": _text(outputs), "target": _text(targets)}


class Predictions(UsesFirstBatch):
    """Logs examples of evaluations with the outputs of the model, as the table `predictions/eval`.

    They are the first examples of the first batch of each evaluator, under its label. The outputs
    come from the evaluation itself, so they cost no further call of the model.

    Args:
        interval: The time after which the next evaluation is logged: "1ep", "500ba". Those by
            `Trainer.eval` always are.
        num_examples: Number of examples to log each time, at least 1.
        describe: Returns the columns of an example by name, as numbers and strings, given its
            input, output and target; the outputs are logits where the model has others too.
            Default: small tensors as lists, and larger ones by their shape; if the targets are
            classes, the output is the most likely class.

    Raises:
        ValueError: `interval` or `num_examples` has an invalid value.
        TypeError: An argument has the wrong type.

    Example:
        >>> from composable import Trainer
        >>> from composable.callbacks import Predictions
        >>> from composable.loggers import InMemoryLogger
        >>> memory = InMemoryLogger()
        >>> trainer = Trainer(
        ...     torch.nn.Identity(),
        ...     eval_dataloader=[(torch.eye(2), torch.tensor([0, 1]))],
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     callbacks=Predictions(num_examples=1),
        ...     loggers=memory,
        ...     progress_bar=False,
        ... )
        >>> _ = trainer.eval()
        >>> memory.tables[0][1]
        {'predictions/eval': [{'input': '[1.0, 0.0]', 'output': '0', 'target': '0'}]}
    """

    _saved_attributes: ClassVar = {"_passed": Count}

    def __init__(
        self,
        interval: TimeLike = "1ep",
        *,
        num_examples: int = 8,
        describe: Callable[[Any, Any, Any], Mapping[str, Any]] = describe_example,
    ) -> None:
        self.interval = check_length("interval", interval)
        check_count("num_examples", num_examples, 1)
        check_is_callable("describe", describe)
        self.num_examples, self.describe = num_examples, describe
        self._passed = 0
        """How many intervals had passed at the last evaluation that was logged."""

    def fit_start(self, state: State, logger: Logger) -> None:
        """Discard the evaluations of an earlier run."""
        self._passed = self._passed if state.timestamp.batch else 0

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """Decide whether these evaluations are logged."""
        done, length = progress(state, self.interval)
        passed = int(done // length)
        self._shown, self._passed = passed > self._passed, passed

    def eval_standalone_start(self, state: State, logger: Logger) -> None:
        """Log these evaluations."""
        self._shown = True

    def _keep(self, state: State) -> list[Mapping[str, Any]]:
        count = state.batch_spec.count(state.batch)
        targets = state.batch_spec.targets_or_none(state.batch)
        parts = state.inputs, metric_outputs(state.outputs), targets
        rows = range(min(count, self.num_examples))
        return [self.describe(*(_example(part, i, count) for part in parts)) for i in rows]

    def _log(self, label: str, kept: list[Mapping[str, Any]], logger: Logger) -> None:
        columns = list(kept[0])
        rows = [[row[name] for name in columns] for row in kept]
        logger.log_table(f"predictions/{label}", columns, rows)


def _example(part: Any, i: int, count: int) -> Any:
    """Return a part of an example, on the CPU."""
    if isinstance(part, list) and len(part) == count:
        part = part[i]
    return map_tensors(
        lambda one: (one[i] if one.ndim and len(one) == count else one).detach().cpu(), part
    )


def _text(part: Any) -> str:
    if isinstance(part, Mapping):
        return ", ".join(f"{name}: {_text(value)}" for name, value in part.items())
    if not isinstance(part, Tensor):
        return shorten(part)
    if part.numel() > _MOST:
        return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"
    shown = part.double().round(decimals=4) if part.is_floating_point() else part
    return str(shown.tolist())
