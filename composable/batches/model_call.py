"""How a model is called on a batch: with its input, with all of it, or with keyword arguments.

Each function has the form `call(model, batch, spec)`, and a `State` holds its model's function.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs
import torch
from torch import Tensor, nn

from composable._support.notes import add_note
from composable._support.tree import tensors_of
from composable.batches.spec import BatchSpec
from composable.functional.mixed import MixedTargets

ModelCall: TypeAlias = Callable[[Any, Any, BatchSpec], Any]

_WITH_ADAPTERS = frozenset({"peft.PeftModel"})
_PRETRAINED = _WITH_ADAPTERS | {"transformers.PreTrainedModel"}
_OUTPUTS = frozenset({"transformers.ModelOutput"})


def call_with_input(model: Any, batch: Any, spec: BatchSpec) -> Any:
    """Call a model with the input of a batch; with several inputs, as positional arguments."""
    inputs = spec.inputs(batch)
    several = type(inputs) is tuple and spec.has_several_inputs
    return model(*inputs) if several else model(inputs)


def call_with_batch(model: Any, batch: Any, spec: BatchSpec) -> Any:
    """Call a model with the whole batch."""
    return model(batch)


def call_with_keywords(model: Any, batch: Any, spec: BatchSpec) -> Any:
    """Call a model with the entries of a batch as keyword arguments: it computes its loss.

    Raises:
        TypeError: The batch is not a mapping, or its targets are mixed.
    """
    return model(**_keywords(batch))


def call_with_return_loss(model: Any, batch: Any, spec: BatchSpec) -> Any:
    """Call a model like `call_with_keywords`, and request its loss, as CLIP requires.

    Raises:
        TypeError: The batch is not a mapping, or its targets are mixed.
    """
    return model(**{"return_loss": True, **_keywords(batch)})


def keyword_call_of(model: nn.Module) -> ModelCall:
    """Return the call by which a model computes its loss."""
    requested = "return_loss" in inspect.signature(base_model_of(model).forward).parameters
    return call_with_return_loss if requested else call_with_keywords


def _keywords(batch: Any) -> Mapping[str, Any]:
    if not isinstance(batch, Mapping):
        raise TypeError(
            "a model that computes its own loss is called with the entries of the batch as keyword "
            f"arguments, and the batch is a {type(batch).__name__}; return dictionaries from the "
            "dataset, such as {'input_ids': ..., 'labels': ...}, or pass loss_fn."
        )
    if any(isinstance(value, MixedTargets) for value in batch.values()):
        raise TypeError(needs_logits("MixUp or CutMix", "the model"))
    return batch


def call_for_logits(model: Any, batch: Any, spec: BatchSpec) -> Any:
    """Call a model with the entries of a batch except its targets, and return the logits.

    A batch that is not a mapping is divided by `spec` as for any other model.
    """
    if not isinstance(batch, Mapping):
        return logits_of(call_with_input(model, batch, spec))
    names = spec.target_names
    return logits_of(model(**{name: part for name, part in batch.items() if name not in names}))


@attrs.frozen(eq=False)
class NamedOutputs:
    """A call of a model that returns some of its outputs."""

    call: ModelCall
    outputs: Callable[[Any], Any]
    """Returns them, given all outputs."""

    def __call__(self, model: Any, batch: Any, spec: BatchSpec) -> Any:
        """Call the model, and return the named outputs."""
        return self.outputs(self.call(model, batch, spec))


def logits_of(outputs: Any) -> Any:
    """Return the logits of an output of Transformers; outputs without logits as they are.

    A model with `return_dict=False` returns them as the first of its outputs after the loss.
    """
    if type(outputs) is tuple:
        rest = (part for part in outputs if not (isinstance(part, Tensor) and part.ndim == 0))
        return next(rest, outputs)
    logits = getattr(outputs, "logits", None)
    return outputs if logits is None else logits


def metric_outputs(outputs: Any, *, own_loss: bool = False) -> Any:
    """Return what metrics get: the logits of an output of Transformers, other outputs as they are.

    Args:
        outputs: The outputs of a model.
        own_loss: Whether the model is known to compute its loss itself.
    """
    return logits_of(outputs) if own_loss or _is_of(outputs, _OUTPUTS) else outputs


def needs_logits(name: str, model: str) -> str:
    """Return the message about an algorithm that needs a loss of logits and targets."""
    return (
        f"{name} needs the loss as a function of logits and targets, and {model} computes its own "
        "loss; pass loss_fn, such as torch.nn.functional.cross_entropy: the model is then called "
        "without the labels, and loss_fn with its logits and the labels."
    )


def explain_batch(error: Exception, call: ModelCall, batch: Any) -> None:
    """Add a note to an error of a model that gets the whole batch, because it defines `loss`."""
    if call is call_with_batch and not isinstance(batch, Tensor):
        add_note(
            error,
            "without loss_fn, a model that defines loss(outputs, batch) is called with the whole "
            f"batch, here a {type(batch).__name__}; take its inputs from it in forward, or pass "
            "loss_fn.",
        )


_OF_BYTES = ("Byte", "unsigned char", "must share same datatype")
_OF_DTYPES = ("dtype", "scalar type", "datatype")
_IN_DATA = "in the dataset or the collate_fn of the DataLoader, such as"


def explain_dtype(error: RuntimeError, model: Any, batch: Any) -> None:
    """Add a note to an error of a model whose batch has another dtype than its weights."""
    given = {tensor.dtype for tensor in tensors_of(batch)}
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    weights = {parameter.dtype for parameter in parameters if parameter.is_floating_point()}
    others = sorted(str(dtype) for dtype in given - weights if dtype.is_floating_point)
    if torch.uint8 in given and any(words in str(error) for words in _OF_BYTES):
        add_note(
            error,
            "the batch has a tensor of uint8, as images are stored, and the model computes in "
            f"floating point. Convert and normalize it {_IN_DATA} images.float() / 255, or at the "
            "start of the model's forward, so that methods for uint8 images, such as RandAugment, "
            "come before.",
        )
    elif others and any(words in str(error) for words in _OF_DTYPES):
        add_note(
            error,
            f"the batch has a tensor of {others[0]}, and the weights are of "
            f"{', '.join(sorted(map(str, weights)))}. Convert it {_IN_DATA} inputs.float(); "
            "float64 is the default of NumPy.",
        )


def is_transformers_model(model: nn.Module | type) -> bool:
    """Return whether a model, or a class, is one of Transformers, or PEFT's wrapper of one."""
    return _is_of(model, _PRETRAINED)


def has_adapters(model: nn.Module) -> bool:
    """Return whether a model is PEFT's wrapper of one."""
    return _is_of(model, _WITH_ADAPTERS)


def base_model_of(model: nn.Module) -> nn.Module:
    """Return the model inside PEFT's wrapper; another model as it is."""
    base: nn.Module = model.get_base_model() if has_adapters(model) else model  # type: ignore[operator]
    return base


def shifts_labels(model: nn.Module) -> bool:
    """Return whether a model computes the loss of Transformers' causal models.

    Some decoders, such as `BartForCausalLM`, have this loss function, but compute their loss
    without it, and without a shift. Other libraries' classes that do so are taken to shift.
    """
    base = base_model_of(model)
    own = getattr(getattr(base, "loss_function", None), "__name__", "")
    encodes = getattr(getattr(base, "config", None), "is_encoder_decoder", False)
    return own == "ForCausalLMLoss" and not encodes and any(map(_computes_loss, type(base).__mro__))


def _computes_loss(kind: type) -> bool:
    """Return whether a class itself computes a loss by `loss_function`, or as Transformers did."""
    forward = inspect.unwrap(vars(kind).get("forward", _computes_loss))
    theirs = forward.__module__.startswith("transformers.")
    code = forward.__code__
    return "loss_function" in code.co_names or (not theirs and "labels" in code.co_varnames)


def _is_of(value: Any, classes: frozenset[str]) -> bool:
    """Return whether a value, or a class, is of one of the classes, which need not be imported."""
    bases = (value if isinstance(value, type) else type(value)).__mro__
    return not classes.isdisjoint(
        f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in bases
    )


class CalledModel(nn.Module):
    """A model as a function of a batch."""

    def __init__(self, model: nn.Module, call: ModelCall, spec: BatchSpec) -> None:
        super().__init__()
        self.model, self.call, self.spec = model, call, spec
        self.training = model.training

    def forward(self, batch: Any) -> Any:
        """Call the model on the batch."""
        return self.call(self.model, batch, self.spec)


def batch_spec_of(
    model: nn.Module, input_key: Any = None, target_key: Any = None, layout: str | None = None
) -> BatchSpec:
    """Return the parts of a batch of a model: its `batch_spec`, or as in Transformers.

    Args:
        model: The model.
        input_key: The input, if it is given.
        target_key: The target, if it is given.
        layout: What the examples of a batch are, if it is given.
    """
    defaults: tuple[Any, Any] = 0, 1
    own = getattr(model, "batch_spec", None)
    if isinstance(own, BatchSpec):
        defaults, layout = (own.input_key, own.target_key), layout or own.batch_layout
    if is_transformers_model(model):
        base = base_model_of(model)
        answers = "start_positions" in inspect.signature(base.forward).parameters
        targets = ("start_positions", "end_positions") if answers else "labels"
        defaults = getattr(model, "main_input_name", "input_ids"), targets
    given = input_key, target_key
    keys = [d if key is None else key for key, d in zip(given, defaults, strict=True)]
    return BatchSpec(keys[0], keys[1], layout)
