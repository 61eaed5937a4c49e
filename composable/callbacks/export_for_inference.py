"""Export the model for inference."""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from composable._support.checks import as_path, check_flags, check_one_of, check_range
from composable._support.extras import needs
from composable._support.paths import replacing
from composable._support.tree import map_tensors, tensors_of
from composable._support.warn import warn_user
from composable.batches.model_call import call_with_batch, call_with_input, is_transformers_model
from composable.callbacks._intervals import UsesEvaluatedModel
from composable.core.evaluation_mode import evaluation_mode
from composable.core.intervals import IntervalLike
from composable.core.logger import Logger
from composable.core.state import State
from composable.data.grouping import batches_of
from composable.distributed import Processes

_SUFFIXES = (".pt2", ".onnx")
_ROWS = 2  # torch.export takes a dimension of size 1 for a constant


class ExportError(RuntimeError):
    """A model cannot be exported, or the exported one computes something else."""


class ExportForInference(UsesEvaluatedModel):
    """Exports the model at the end of training, and at intervals if requested.

    The exported model is in evaluation mode, on the CPU, and takes batches of any size. It has the
    weights that an evaluation would measure at that moment: averages, if an algorithm or an
    optimizer keeps them, and at the end of training the best checkpoint, with `load_best_at_end`.
    Before the file is renamed to its path, it is loaded, and its outputs are compared with the
    evaluated model's on a batch of another size, computed on the device of the run. With several
    processes, rank 0 exports; a model whose parameters are divided among them, as by FSDP, cannot
    be exported.

    Args:
        path: The file; its folder is created. Its suffix is the format: ".pt2" for
            `torch.export.load`, or ".onnx", which needs the packages that
            `pip install "composable[onnx]"` installs. Its name may have the fields {epoch} and
            {batch}. An existing file is replaced.
        interval: When to export during training: "1ep", a function `(state, event) -> bool`, or
            None for never.
        at_end: Whether to export at the end of training.
        sample_input: The arguments of one call of the model: a tensor, a tuple of arguments, or a
            dictionary of keyword arguments. Default: the input of the last training batch, without
            its targets.
        averaged: Whether to export the evaluated weights, where they differ from the trained ones.
        dynamic_batch: Whether the exported model takes batches of any size, or of two examples
            only: some models cannot be exported for any size.
        tolerance: The largest difference of an output, relative to the largest output, above 0. If
            a 16-bit model is exported in float32, to ONNX, at least 8 roundings of its dtype.

    Raises:
        ValueError: An argument has an invalid value.
        ImportError: The packages for ONNX are missing.
        FileExistsError: During training: the path is a link.
        ExportError: During training: the model cannot be exported, or the outputs differ.

    Example:
        >>> from composable.callbacks import ExportForInference
        >>> export = ExportForInference("runs/a/model.pt2", interval="1ep")
        >>> export.path.suffix
        '.pt2'
    """

    def __init__(
        self,
        path: str | Path,
        *,
        interval: IntervalLike = None,
        at_end: bool = True,
        sample_input: Any = None,
        averaged: bool = True,
        dynamic_batch: bool = True,
        tolerance: float = 1e-3,
    ) -> None:
        self.path = as_path("path", path)
        _fill(self.path, epoch=0, batch=0)
        check_one_of("the suffix of path", self.path.suffix, _SUFFIXES)
        if self.path.suffix == ".onnx":
            _import_onnx()
        check_flags(at_end=at_end, averaged=averaged, dynamic_batch=dynamic_batch)
        check_range("tolerance", tolerance, 0, ends="()")
        super().__init__(interval)
        self.at_end, self.averaged, self.dynamic_batch = at_end, averaged, dynamic_batch
        self.tolerance = tolerance
        self._given = None if sample_input is None else Call.of(sample_input)
        self._sample = self._given

    def batch_end(self, state: State, logger: Logger) -> None:
        """Keep the input if its shape is new, and export if the interval has passed."""
        if self._given is None:
            call = Call.of_batch(state)
            if self._sample is None or call.signature != self._sample.signature:
                self._sample = call.first_rows()
        super().batch_end(state, logger)

    def _act(self, state: State, logger: Logger) -> None:
        self.export(state)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Export at the end."""
        if self.at_end:
            self.export(state)

    def export(self, state: State) -> None:
        """Export the model of a state.

        Raises:
            ExportError: It cannot be exported, or the outputs differ.
        """
        if not Processes.current().is_main:
            return
        if self._sample is None:
            warn_user(
                f"ExportForInference did not write {self.path}, because this fit trained on no "
                "batch that shows what the input is; pass sample_input.",
            )
            return
        path = _fill(self.path, epoch=state.timestamp.epoch, batch=state.timestamp.batch)
        model = self._evaluated(state) if self.averaged else state.model
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")  # about internals of torch.export
                self._write(model, path)
        except (ExportError, FileExistsError):  # the second: the path is a link
            raise
        except Exception as error:
            raise ExportError(
                f"{type(state.model).__name__} cannot be exported to {path}: "
                f"{type(error).__name__}: {error}\nIf the model depends on the size of the batch, "
                "pass dynamic_batch=False; if it takes other inputs, pass sample_input."
            ) from error

    def _write(self, evaluated: nn.Module, path: Path) -> None:
        onnx = path.suffix == ".onnx"
        with _no_cache(evaluated):
            model = copy.deepcopy(evaluated).cpu().eval()
        model = model.float() if onnx else model
        call = self._sample.first_rows().for_model(model)  # type: ignore[union-attr]
        shapes = call.dynamic_shapes() if self.dynamic_batch else None
        program = torch.export.export(model, call.args, call.kwargs, dynamic_shapes=shapes)
        other = call.more_rows() if self.dynamic_batch else call
        with replacing(path) as partial:
            if onnx:
                torch.onnx.export(program, dynamo=True, verbose=False).save(partial)  # type: ignore[union-attr]
                exported = _run_onnx(partial, other)
            else:
                torch.export.save(program, partial)
                exported = torch.export.load(partial).module()(*other.args, **other.kwargs)
            rounding = 8 * _eps(evaluated) if onnx else 0.0
            expected = _outputs_of(evaluated, other.for_model(evaluated))
            self._compare(expected, exported, path, max(self.tolerance, rounding))

    def _compare(self, expected: Any, exported: Any, path: Path, tolerance: float) -> None:
        pairs = zip(_outputs(expected), _outputs(exported), strict=True)
        for i, (one, other) in enumerate(pairs):
            one = one.cpu()
            scale = one.abs().nan_to_num(posinf=0).amax().item() if one.numel() else 0.0
            near = tolerance * scale
            if not torch.allclose(one, other.to(one), rtol=tolerance, atol=near, equal_nan=True):
                difference = (one - other.to(one)).abs().max().item()
                raise ExportError(
                    f"the model in {path} would differ from the trained one: output {i} by up to "
                    f"{difference:.2g}, with outputs of up to {scale:.2g}, and tolerance="
                    f"{tolerance:.3g} is allowed. The file is not written."
                )


@attrs.frozen(eq=False)
class Call:
    """The arguments of a call of the model."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = attrs.field(factory=dict)

    @classmethod
    def of(cls, given: Any) -> "Call":
        """Return the call that `sample_input` stands for."""
        if isinstance(given, Mapping):
            return cls(kwargs=dict(given))
        return cls(given if isinstance(given, tuple) else (given,))

    @classmethod
    def of_batch(cls, state: State) -> "Call":
        """Return the call that a run makes for the first batch of the step, without targets."""
        batch, spec = batches_of(state.batch)[0], state.batch_spec
        if state.model_call is call_with_batch:
            return cls((batch,))
        if state.model_call is call_with_input or not isinstance(batch, Mapping):
            inputs = spec.inputs(batch)
            return cls(tuple(inputs) if spec.has_several_inputs else (inputs,))
        return cls(kwargs={n: part for n, part in batch.items() if n not in spec.target_names})

    @property
    def signature(self) -> list[Any]:
        """The shapes without the examples, and the dtypes."""
        return [(tensor.shape[1:], tensor.dtype) for tensor in self.tensors()]

    def tensors(self) -> list[Tensor]:
        """Return the tensors, in the order of the inputs of the exported model."""
        return list(tensors_of([*self.args, self.kwargs]))

    def map(self, function: Any) -> "Call":
        """Apply a function to every tensor."""
        return Call(map_tensors(function, self.args), map_tensors(function, self.kwargs))

    def first_rows(self) -> "Call":
        """Return the call with copies of two examples."""

        def first(tensor: Tensor) -> Tensor:
            if not tensor.ndim:
                return tensor
            rows = tensor if len(tensor) >= _ROWS else torch.cat([tensor] * _ROWS)
            return rows[:_ROWS].detach().clone()

        return self.map(first)

    def more_rows(self) -> "Call":
        """Return the call with three examples."""
        return self.map(lambda t: torch.cat([t, t[:1]]) if t.ndim else t)

    def for_model(self, model: nn.Module) -> "Call":
        """Return the call on the device of the model, and in its dtype."""
        found = [p for p in model.parameters() if p.is_floating_point()]
        device = found[0].device if found else torch.device("cpu")

        def converted(tensor: Tensor) -> Tensor:
            dtype = found[0].dtype if found and tensor.is_floating_point() else tensor.dtype
            return tensor.to(device, dtype)

        return self.map(converted)

    def dynamic_shapes(self) -> Any:
        """Return the argument of `torch.export` by which the first dimension has any size."""
        batch = torch.export.Dim("batch")

        def shape(leaf: Any) -> Any:
            return {0: batch} if isinstance(leaf, Tensor) and leaf.ndim else None

        return pytree.tree_map(shape, self.kwargs if self.kwargs else self.args)


def _outputs_of(model: nn.Module, call: Call) -> Any:
    """Call the model as an evaluation does, but for the cache of keys and values."""
    with evaluation_mode(model), _no_cache(model):
        return model(*call.args, **call.kwargs)


@contextmanager
def _no_cache(model: nn.Module) -> Iterator[None]:
    """Let a model of Transformers return no keys and values of a text, for generating the next."""
    config: Any = model.config if is_transformers_model(model) else None
    kept = getattr(config, "use_cache", None)
    if kept is None:
        yield
        return
    config.use_cache = False
    try:
        yield
    finally:
        config.use_cache = kept


def _eps(model: nn.Module) -> float:
    """Return the rounding of the dtype of a model."""
    dtypes = [p.dtype for p in model.parameters() if p.is_floating_point()]
    return torch.finfo(dtypes[0]).eps if dtypes else 0.0


def _outputs(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _import_onnx() -> Any:
    with needs("a path with the suffix .onnx", "onnx"):
        import onnxruntime
        import onnxscript  # noqa: F401 (torch.onnx needs it)
    return onnxruntime


def _run_onnx(path: Path, call: Call) -> Sequence[Tensor]:
    session = _import_onnx().InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    tensors = [call.kwargs[n] for n in names] if call.kwargs else call.tensors()
    given = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
    return [torch.from_numpy(output) for output in session.run(None, given)]


def _fill(path: Path, **fields: int) -> Path:
    try:
        return path.with_name(path.name.format(**fields))
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(
            f"path={str(path)!r} may have the fields {{epoch}} and {{batch}} in its name, and no "
            "others."
        ) from error
