"""Evaluators and metrics.

A metric is a function `(outputs, targets)` that returns one value per example, or their mean as a
single value. It is averaged over the examples, so an incomplete last batch has a smaller weight.
A single value that is no such mean, as of F1, is refused: in the first evaluation, each is compared
with the mean of the values of two halves of the batch. Objects with `update`, `compute` and
`reset`, as in torchmetrics, are supported too, `OfLoss`, a function of the mean loss,
and `OfAll`, a function of all outputs and targets of an evaluation.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import attrs
import torch
from attrs.validators import is_callable, optional
from torch import Tensor, nn

from composable._support.checks import check_count, check_flag, check_range, check_tensor
from composable._support.targets import IGNORE_INDEX
from composable._support.tree import map_tensors, tensors_of
from composable.batches.batch import split_batch
from composable.batches.precision import widest_float
from composable.core.event import Event
from composable.core.intervals import is_due
from composable.core.logger import check_real
from composable.core.state import State
from composable.distributed.processes import Processes

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped


def accuracy(
    outputs: "Float[Tensor, ' *logits']",
    targets: "Shaped[Tensor, ' batch *rest']",
    *,
    ignore_index: int = IGNORE_INDEX,
) -> "Float[Tensor, ' labeled']":
    """Compute the fraction of correct predictions for each example that has a label.

    Args:
        outputs: Logits or probabilities of the classes, `[batch, classes, ...]`, or
            `[batch, ..., classes]` if only that fits the targets. With one logit for each target,
            `[batch]`, `[batch, 1]` or `[batch, 1, ...]`, a positive logit predicts class 1, and any
            other class 0.
        targets: Class indices `[batch, ...]`. For one logit, also of the shape of the outputs, and
            of any dtype.
        ignore_index: Class index of positions without a label, which are not counted.

    Raises:
        ValueError: The shapes of outputs and targets don't belong together.

    Example:
        >>> from composable.metrics import accuracy
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]))
        tensor([1., 0.])
        >>> accuracy(torch.tensor([[2.0], [-1.0]]), torch.tensor([1, 0]))  # one logit
        tensor([1., 1.])
    """
    check_tensor("outputs", outputs)
    check_tensor("targets", targets)
    check_count("ignore_index", ignore_index, -(2**63))
    right = _predictions(outputs, targets) == targets
    labeled = targets != ignore_index
    right, labeled = (
        (tensor if tensor.ndim > 1 else tensor[:, None]).flatten(1) for tensor in (right, labeled)
    )
    counts = labeled.sum(1)
    fractions = (right & labeled).float().sum(1) / counts
    return fractions[counts > 0]


def token_accuracy(
    outputs: "Float[Tensor, ' *logits']",
    targets: "Shaped[Tensor, ' batch *rest']",
    *,
    shift: bool = False,
    ignore_index: int = IGNORE_INDEX,
) -> "Float[Tensor, ' labeled']":
    """Compute whether the prediction is correct for each position that has a label.

    It is averaged over the positions, while `accuracy` is averaged over the examples: long ones
    count no more than short ones.

    Args:
        outputs: Logits, as for `accuracy`.
        targets: Class indices `[batch, ...]`.
        shift: Compare the logits of a position with the label of the next one, as the causal
            language models of Transformers do. The shapes are then `[batch, positions, classes]`
            and `[batch, positions]`.
        ignore_index: Class index of positions without a label, which are not counted.

    Raises:
        ValueError: The shapes of outputs and targets don't belong together.

    Example:
        >>> from composable.metrics import token_accuracy
        >>> logits = torch.tensor([[[2.0, 1.0], [0.0, 1.0], [0.0, 1.0]]])
        >>> token_accuracy(logits, torch.tensor([[0, 0, -100]]))
        tensor([1., 0.])
        >>> token_accuracy(logits, torch.tensor([[0, 0, 1]]), shift=True)
        tensor([1., 1.])
    """
    check_tensor("outputs", outputs)
    check_tensor("targets", targets)
    check_count("ignore_index", ignore_index, -(2**63))
    check_flag("shift", shift)
    if shift:
        if outputs.shape[:-1] != targets.shape or targets.ndim != 2:
            raise ValueError(
                f"outputs of shape {tuple(outputs.shape)} must be logits [batch, positions, "
                f"classes] for shift=True and targets of shape {tuple(targets.shape)}."
            )
        predicted, targets = outputs[:, :-1].argmax(-1), targets[:, 1:]
    else:
        predicted = _predictions(outputs, targets)
    return (predicted == targets)[targets != ignore_index].float()


@attrs.frozen
class OfLoss:
    """A metric that is a function of the mean loss of an evaluation.

    The mean is over all data, so `perplexity = OfLoss(torch.exp)` is the perplexity of all tokens,
    and not a mean of perplexities. It is exact if the loss is a mean over what `loss_mean_over`
    counts.

    Args:
        function: A function of the mean loss, a tensor of float64, that returns one.

    Example:
        >>> import math
        >>> from composable.metrics import OfLoss
        >>> bits = OfLoss(lambda loss: loss / math.log(2))
        >>> bits(torch.tensor(math.log(8.0)))
        tensor(3.)
    """

    function: Callable[[Tensor], Tensor] = attrs.field()

    @function.validator
    def _check_function(self, _: object, function: object) -> None:
        if not callable(function):
            raise TypeError(f"function={function!r} must be a function of the mean loss.")

    def __call__(self, loss: Tensor) -> Tensor:
        """Return the value for a mean loss."""
        check_tensor("loss", loss)
        return self.function(loss)


perplexity = OfLoss(torch.exp)
"""The exponential of the mean loss, for a loss over tokens."""


def _valid(check: Callable[..., None], *low: float) -> Any:
    """Make an attrs validator of a check of a name and a value."""
    return lambda _, attribute, value: check(attribute.name, value, *low)


class EvalPrediction(NamedTuple):
    """What a function `compute_metrics` of Hugging Face's Trainer gets."""

    predictions: Any
    label_ids: Any


@attrs.frozen(eq=False)
class OfAll:
    """A metric that is a function of all outputs and targets of an evaluation.

    They are kept on the CPU, and the function is called once at the end.

    Args:
        function: A function of the outputs and the targets, joined over the batches, that returns a
            number, or several by name. Of several processes, each calls it.
        max_bytes: How many bytes of outputs and targets may be kept.
        padding: What outputs and targets are padded with where the batches differ in other
            dimensions than the first. Default: that is an error.

    Example:
        >>> from composable.metrics import OfAll
        >>> root = OfAll(lambda outputs, targets: (outputs - targets).square().mean().sqrt())
        >>> root(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 1.0]))
        tensor(2.8284)
    """

    function: Callable[[Any, Any], Any] = attrs.field(validator=is_callable())
    max_bytes: int = attrs.field(default=2**30, validator=_valid(check_count, 1))
    padding: float | None = attrs.field(
        default=None, kw_only=True, validator=optional(_valid(check_range, -math.inf))
    )
    returns_several: ClassVar[bool] = True
    """Whether the results may have other names than the metric."""

    @classmethod
    def compute_metrics(
        cls, function: Callable[[Any], Mapping[str, Any]], max_bytes: int = 2**30
    ) -> "OfAll":
        """Take a function `compute_metrics` of Hugging Face's Trainer, unchanged.

        It gets `predictions` and `label_ids` as NumPy arrays, in which shorter batches are padded
        with -100.

        Example:
            >>> from composable.metrics import OfAll
            >>> def compute_metrics(prediction):
            ...     logits, labels = prediction
            ...     return {"accuracy": (logits.argmax(-1) == labels).mean()}
            >>> metric = OfAll.compute_metrics(compute_metrics)
            >>> print(metric(torch.tensor([[0.1, 0.9]]), torch.tensor([1]))["accuracy"])
            1.0
        """
        checked = cls(function, max_bytes, padding=IGNORE_INDEX)  # type: ignore[arg-type]
        return attrs.evolve(checked, function=partial(_of_arrays, function))

    def __call__(self, outputs: Any, targets: Any) -> Any:
        """Return the value for outputs and targets."""
        return self.function(outputs, targets)


def _of_arrays(function: Callable[[Any], Any], outputs: Any, targets: Any) -> Any:
    outputs = tuple(outputs.values()) if isinstance(outputs, Mapping) else outputs
    return function(EvalPrediction(*map_tensors(_array, (outputs, targets))))


def _array(tensor: Tensor) -> Any:
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _predictions(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the predicted classes, in the shape of the targets."""
    shape = outputs.shape
    if shape == targets.shape:
        return outputs > 0
    if targets.ndim and targets.shape == (*shape[:1], *shape[2:]):
        return outputs.argmax(1) if shape[1] > 1 else outputs.squeeze(1) > 0
    if targets.ndim and targets.shape == shape[:-1]:
        return outputs.argmax(-1) if shape[-1] > 1 else outputs.squeeze(-1) > 0
    if targets.shape == (*shape, 1):
        return outputs[..., None] > 0
    raise ValueError(
        f"outputs of shape {tuple(shape)} must be logits [batch, classes, ...] for targets of "
        f"shape {tuple(targets.shape)}; pass class indices [batch, ...], or one logit for each "
        "target."
    )


@attrs.frozen(eq=False)
class Evaluator:
    """A dataloader for evaluation, with a label.

    Args:
        label: The prefix of its results: `metrics/<label>/<metric>`.
        dataloader: The batches.
        metrics: The metrics by name. Default: the Trainer's.
        batches: The number of batches after which an evaluation ends, at most the loader's length.
            Default: `eval_batches` of the Trainer.
        eval_interval: When to evaluate. Default: the Trainer's interval.

    Example:
        >>> from composable import Evaluator
        >>> Evaluator("test", dataloader=[(torch.zeros(1), torch.zeros(1))]).label
        'test'
    """

    label: str = attrs.field()
    dataloader: Iterable[Any]
    metrics: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)
    batches: int | None = attrs.field(
        default=None, kw_only=True, validator=optional(_valid(check_count, 1))
    )
    eval_interval: Any = attrs.field(default=None, kw_only=True)

    @label.validator
    def _check_label(self, _: object, label: object) -> None:
        if not isinstance(label, str) or not label:
            raise TypeError(
                f"label={label!r} must be a non-empty str, as in Evaluator('test', dataloader)."
            )

    def is_due(
        self, before: State, state: State, event: Event, iteration_length: int | None
    ) -> bool:
        """Return whether `eval_interval` has passed between two states.

        Args:
            before: The state before the batch or the end of the epoch.
            state: The state after it.
            event: `BATCH_END` or `EPOCH_END`.
            iteration_length: Number of epochs in an iteration.
        """
        return is_due(self.eval_interval, before, state, event, iteration_length)


class Averages:
    """Means over the examples of an evaluation, kept on the device.

    Args:
        metrics: The metrics by name.
        device: The device of the metrics that are modules.
        batches: The number of batches of the evaluation, if known.
    """

    def __init__(
        self, metrics: Mapping[str, Any], device: Any = None, batches: int | None = None
    ) -> None:
        self._functions: dict[str, Callable[[Any, Any], Tensor]] = {}
        self._objects: dict[str, Any] = {}
        self._of_loss: dict[str, OfLoss] = {}
        self._of_all: dict[str, OfAll] = {}
        for name, metric in metrics.items():
            if isinstance(metric, OfLoss):
                self._of_loss[name] = metric
            elif isinstance(metric, OfAll):
                self._of_all[name] = metric
            elif hasattr(metric, "update") and hasattr(metric, "compute"):
                metric.reset()
                if device is not None and isinstance(metric, nn.Module):
                    metric.to(device)
                self._objects[name] = metric
            else:
                self._functions[name] = metric
        self.processes = Processes()
        """The processes that share the evaluation; each adds some of the batches."""
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor | float] = {}
        self._terms: dict[str, list[Tensor]] = {}
        self.batches = batches
        """The number of batches, if known."""
        self.trusted = False
        """Whether single values are known to be means over examples."""
        self.undecided = set(self._functions)
        """The functions whose values no batch has confirmed."""
        self._kept: list[tuple[int, Any]] = []
        """The number, outputs, targets and examples of each batch, on the CPU, for `OfAll`."""
        self._bytes = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics that need targets."""
        return (*self._functions, *self._objects, *self._of_all)

    def update(self, outputs: Any, targets: Any, count: int, number: int = 0) -> None:
        """Add the outputs of a batch of `count` examples.

        Raises:
            ValueError: A function returned another single value than a mean over the examples, or
                outputs take more memory than `OfAll` may.
        """
        for metric in self._objects.values():
            metric.update(outputs, targets)
        trusted = self.trusted or (self.batches == 1 and not self.processes.several)
        for name, function in self._functions.items():
            returned = called(name, function, (outputs, targets))
            value = value_of(name, returned)
            self.add(name, value, count)
            if value.numel() == count > 1 and name not in self.undecided:
                continue  # one value for each example
            if not trusted and confirm_mean(name, function, returned, (outputs, targets), count):
                self.undecided.discard(name)
        if self._of_all:
            self._keep(number, outputs, targets, count)

    def _keep(self, number: int, *batch: Any) -> None:
        self._kept.append((number, map_tensors(lambda one: one.detach().cpu(), batch)))
        self._bytes += sum(tensor.nbytes for tensor in tensors_of(batch))
        size = self._bytes * (self.batches or 1 if len(self._kept) == 1 else 1)
        for name, metric in self._of_all.items():
            if size > metric.max_bytes:
                raise ValueError(
                    f"metrics[{name!r}] is an OfAll with max_bytes={metric.max_bytes}, and the "
                    f"evaluation takes {size / 2**30:.3g} GiB; raise it, or pass a function that "
                    "returns one value for each example, or an object with update and compute."
                )

    def add(
        self,
        name: str,
        value: Tensor | float,
        weight: Tensor | float | None,
        factor: Tensor | float | None = None,
    ) -> None:
        """Add one value for each example, or a mean with its weight; without a weight, a sum.

        What a mean is multiplied by to be a sum is its weight, or a factor that is given.
        """
        factor = weight if factor is None else factor
        value = check_real(name, torch.as_tensor(value)).detach()
        value = value.to(widest_float(value.device))
        if isinstance(factor, Tensor):  # the mean of no examples is NaN with weight 0
            value = torch.where(factor == 0, 0.0, value)
        elif factor == 0:
            value = torch.zeros_like(value)
        total: Any = value.sum() if value.ndim or factor is None else value * factor
        seen: Any = float(value.numel()) if value.ndim else weight
        seen = _SUM if weight is None else seen
        if self.processes.several:
            seen = torch.as_tensor(seen, dtype=total.dtype, device=total.device)
            self._terms.setdefault(name, []).append(torch.stack([total, seen]))
            return
        self._sums[name] = self._sums.get(name, 0.0) + total
        self._counts[name] = self._counts.get(name, 0.0) + seen

    def add_terms(self, name: str, terms: Sequence[tuple[Tensor, Any, Any]]) -> None:
        """Add the terms of one value: each a mean with its factor and weight, or a sum."""
        for i, (value, factor, weight) in enumerate(terms):
            self.add(f"{name}{_TERM}{i}" if i else name, value, weight, factor)

    def _join(self, processes: Processes) -> None:
        """Add the batches of all processes, in the order in which one process would."""
        own = {name: torch.stack(terms).tolist() for name, terms in self._terms.items()}
        for name, columns in _by_name(processes.gather(own)):
            for sums in zip_longest(*columns):
                for total, seen in filter(None, sums):
                    value = torch.tensor(total, dtype=torch.float64)
                    self._sums[name] = self._sums.get(name, 0.0) + value
                    self._counts[name] = self._counts.get(name, 0.0) + seen

    @property
    def needs_all(self) -> bool:
        """Whether any metric is an object that does not join the other processes' itself."""
        return not all(map(joins_itself, self._objects.values()))

    @property
    def has_objects(self) -> bool:
        """Whether any metric needs a batch on each process."""
        return bool(self._objects or self._of_all)

    def compute(self) -> dict[str, Any]:
        """Return the means, on the device.

        Raises:
            ValueError: A metric is a function of the loss, and there is none.
        """
        if self.processes.several:
            self._join(self.processes)
        results: dict[str, Any] = {
            name: total if _is_sum(self._counts[name]) else total / self._counts[name]
            for name, total in self._sums.items()
        }
        for name in [name for name in results if _TERM in name]:
            results[name.partition(_TERM)[0]] += results.pop(name)
        for name, metric in self._of_loss.items():
            if "loss" not in results:
                raise ValueError(
                    f"metrics[{name!r}] is a function of the loss, and this evaluation computes "
                    "none; pass loss_fn to the Trainer."
                )
            results[name] = metric(results["loss"])
        for name, metric in self._objects.items():
            with nullcontext() if self.processes.several else computed_alone(metric):
                value = metric.compute()
            add_results(results, name, value)
        if self._of_all:
            from composable.distributed.outputs import gather_outputs  # on use

            batches = gather_outputs(self._kept, self._kept[0][1], self.processes)
            *parts, counts = zip(*batches, strict=True)
            for name, of_all in self._of_all.items():
                joined = [_joined(name, part, counts, of_all.padding) for part in parts]
                add_results(results, name, of_all(*joined))
        return results


def add_results(results: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, Mapping):  # of a collection
        results |= {f"{name}/{part}": one for part, one in value.items()}
    else:
        results[name] = value


def _joined(name: str, parts: Sequence[Any], counts: Sequence[int], padding: float | None) -> Any:
    """Join outputs, or targets, of several batches."""
    from composable.batches.joined import join_parts, pad_parts  # on use

    if all(isinstance(one, list) and len(one) == n for one, n in zip(parts, counts, strict=True)):
        return list(chain(*parts))
    if isinstance(parts[0], Mapping):  # the loss among the outputs of a model
        parts = [{k: v for k, v in part.items() if getattr(v, "ndim", 1)} for part in parts]
    try:
        return join_parts(parts if padding is None else pad_parts(parts, padding), counts, "value")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"metrics[{name!r}] is an OfAll, and the batches can't be joined: {error}; pass "
            "padding=-100 for other lengths, or a function that returns one value for each example."
        ) from error


def called(name: str, function: Any, batch: tuple[Any, Any]) -> Any:
    """Call a metric with outputs and targets, which other metrics get too.

    Raises:
        ValueError: It changed them.
    """
    tensors = [one for one in tensors_of(batch) if not one.is_inference()]
    versions = [tensor._version for tensor in tensors]
    returned = function(*batch)
    if versions != [tensor._version for tensor in tensors]:
        raise ValueError(
            f"metrics[{name!r}] changed its outputs or targets in place, which other metrics and "
            "the loss get too; change copies, as of tensor.clone()."
        )
    return returned


def confirm_mean(name: str, function: Any, returned: Any, batch: Any, count: int) -> bool:
    """Return whether two halves of a batch confirm that a value can be averaged over examples.

    Args:
        name: The name of the metric.
        function: The metric.
        returned: What it returned for the batch.
        batch: The outputs and the targets.
        count: The number of examples.

    Raises:
        ValueError: They refute it.
    """
    value = value_of(name, returned)
    if count < 2:
        return False
    sizes = [count // 2, count - count // 2]
    try:
        split = zip(*(_split(one, sizes, count) for one in batch), strict=True)
        parts = [value_of(name, function(*half)) for half in split]
    except Exception as error:
        if value.numel() == count:  # of outputs that can't be split
            return True
        why = f"one value for {count} examples, and failed on two halves of them: {error}"
        raise ValueError(f"metrics[{name!r}] returned {why}; {_CURE}.") from error
    if value.ndim:
        halves = zip(parts, sizes, strict=True)
        lengths = [tensor.numel() if tensor.ndim or n == 1 else 0 for tensor, n in halves]
        if value.numel() == sum(lengths):
            return True
        why = f"{value.numel()} values for {count} examples and {lengths} for two halves of them"
    else:
        found, *means = (tensor.item() for tensor in (value, *parts))
        mean = sum(one * n for one, n in zip(means, sizes, strict=True)) / count
        if math.isnan(found) and math.isnan(mean):
            return False
        computed = [value] if isinstance(returned, Tensor) else tensors_of(batch)
        kinds = {torch.float32, *(one.dtype for one in computed if one.is_floating_point())}
        # Sums may be in another order, and a number may come from values in 16 bits.
        tolerance = min(64 * max(torch.finfo(kind).eps for kind in kinds), 0.02)
        size = max(1 / 8, *map(abs, means))  # which may cancel
        if math.isclose(found, mean, rel_tol=tolerance, abs_tol=tolerance * size):
            return True
        why = f"{found:.6g} for {count} examples and {mean:.6g} as the mean of two halves of them"
    raise ValueError(f"metrics[{name!r}] returned {why}; {_CURE}.")


_CURE = (
    "it must be one value for each example, their mean, or composable.metrics.OfAll(function), "
    "which is called once for all batches"
)


def _split(tree: Any, sizes: list[int], count: int) -> list[Any]:
    """Split outputs or targets, which may have several rows for each example."""
    if isinstance(tree, list) and len(tree) == count:
        return [tree[: sizes[0]], tree[sizes[0] :]]
    rows = next((len(tensor) for tensor in tensors_of(tree) if tensor.ndim), count)
    factor = 1 if rows % count else rows // count
    return split_batch(tree, [factor * size for size in sizes])


def value_of(name: str, returned: Any) -> Tensor:
    try:
        return torch.as_tensor(returned, dtype=torch.float64 if type(returned) is float else None)
    except (RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            f"metrics[{name!r}] returned {returned!r} and must return a tensor with one value for "
            "each example, or their mean."
        ) from error


_TERM = "\0"
"""What separates the name of a value from the number of its term."""

_SUM = -1.0
"""The count of a value that is a sum, and not a mean."""


def _is_sum(count: Tensor | float) -> bool:
    return not isinstance(count, Tensor) and count < 0


def _joining(metric: Any) -> list[Any]:
    """Return the metrics of torchmetrics in an object, which may be a collection."""
    parts = metric.modules() if isinstance(metric, nn.Module) else [metric]
    return [part for part in parts if hasattr(part, "sync_on_compute")]


def joins_itself(metric: Any) -> bool:
    """Return whether an object joins the states of all processes when it computes."""
    parts = _joining(metric)
    return bool(parts) and all(part.sync_on_compute for part in parts)


@contextmanager
def computed_alone(metric: Any) -> Iterator[None]:
    """Compute an object from this process's state, over all batches."""
    parts = _joining(metric)
    functions = [part.distributed_available_fn for part in parts]
    try:
        for part in parts:
            part.distributed_available_fn = bool
        yield
    finally:
        for part, function in zip(parts, functions, strict=True):
            part.distributed_available_fn = function


def _by_name(
    gathered: Sequence[Mapping[str, list[Any]]],
) -> Iterator[tuple[str, list[list[Any]]]]:
    """Yield the terms of each process for each name."""
    for name in dict.fromkeys(name for one in gathered for name in one):
        yield name, [one.get(name, []) for one in gathered]
