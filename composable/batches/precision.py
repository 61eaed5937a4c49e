"""The precision of a run: the dtypes in which the model computes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import attrs
import torch
from torch import nn

from composable._support.checks import check_count, check_range
from composable._support.tree import map_tensors

_AUTOCAST = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}
_WEIGHTS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NAMES = ("fp32", "tf32", "amp", *_AUTOCAST, *_WEIGHTS)
_OTHER_NAMES = {"32": "fp32", "bf16-mixed": "amp_bf16", "16-mixed": "amp_fp16"}


def _check_name(argument: str, name: Any) -> None:
    allowed = f"must be one of {', '.join(map(repr, _NAMES))}"
    if not isinstance(name, str):
        raise TypeError(f"{argument}={name!r} {allowed}, or a composable.Precision.")
    if name not in _NAMES:
        meant = _OTHER_NAMES.get(name)
        advice = f" (this is {meant!r} here)" if meant else ""
        raise ValueError(f"{argument}={name!r} {allowed}{advice}.")


def _above(low: float) -> Any:
    return lambda _, attribute, value: check_range(attribute.name, value, low, ends="()")


@attrs.frozen(repr=False)
class Precision:
    """The dtypes in which a run computes.

    | name | weights | forward pass and loss | loss scaling |
    |---|---|---|---|
    | "fp32" | as the model has them | as without this library | no |
    | "tf32" | as the model has them | float32, with TF32 in matrix products and convolutions | no |
    | "amp_bf16" | as the model has them | `torch.autocast` in bfloat16 | no |
    | "amp_fp16" | as the model has them | `torch.autocast` in float16 | yes |
    | "bf16" | bfloat16 | bfloat16; the loss of a `loss_fn` in float32 | no |
    | "fp16" | float16 | float16; the loss of a `loss_fn` in float32 | yes |

    "amp" is "amp_fp16" or "amp_bf16", as `torch.autocast` uses on the device by default: float16 on
    a GPU, bfloat16 on a CPU.

    Small gradients are 0 in float16, so the loss is multiplied by a scale before the backward pass,
    and the gradients are divided by it afterwards. If a gradient overflows, the step is skipped and
    the scale is reduced, as by `torch.amp.GradScaler`.

    Args:
        name: The name of the precision.
        initial_scale: The loss scale of the first step, above 0.
        growth_factor: Multiplies the scale after `growth_interval` steps without overflow; above 1.
        backoff_factor: Multiplies the scale after an overflow; between 0 and 1.
        growth_interval: The number of steps without overflow before the scale grows.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The name is unknown, or a number is out of range.

    Example:
        >>> from composable import Precision
        >>> Precision("amp_fp16", growth_interval=500).scales_loss
        True
        >>> Precision("amp").on(torch.device("cpu")).name
        'amp_bf16'
    """

    name: str = attrs.field(
        default="fp32", validator=lambda _, a, value: _check_name(a.name, value)
    )
    initial_scale: float = attrs.field(default=65536.0, validator=_above(0))
    growth_factor: float = attrs.field(default=2.0, validator=_above(1))
    backoff_factor: float = attrs.field(
        default=0.5, validator=lambda _, a, value: check_range(a.name, value, 0, 1, ends="()")
    )
    growth_interval: int = attrs.field(
        default=2000, validator=lambda _, a, value: check_count(a.name, value, 1)
    )

    @classmethod
    def of(cls, value: Any) -> "Precision":
        """Return a precision, given itself or its name."""
        if isinstance(value, Precision):
            return value
        _check_name("precision", value)
        return cls(value)

    def on(self, device: torch.device) -> "Precision":
        """Return the precision for a device, with "amp" resolved.

        Raises:
            ValueError: The device does not support it.
        """
        name = self.name
        if name == "amp":
            low = torch.get_autocast_dtype(device.type)
            name = next(one for one, dtype in _AUTOCAST.items() if dtype is low)
        if fault := _fault(name, device):
            raise ValueError(f"precision={self.name!r} needs {fault}.")
        return attrs.evolve(self, name=name)

    def __repr__(self) -> str:
        fields = attrs.fields(type(self))[1:]
        changed = [
            f", {field.name}={value!r}"
            for field in fields
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"Precision({self.name!r}{''.join(changed)})"

    @property
    def weight_dtype(self) -> torch.dtype | None:
        """The dtype of the weights and of the inputs, or None to keep them."""
        return _WEIGHTS.get(self.name)

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The dtype of autocast, or None if there is none."""
        return _AUTOCAST.get(self.name)

    @property
    def scales_loss(self) -> bool:
        """Whether the loss is scaled."""
        return self.name.endswith("fp16")

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return a context in which forward passes and losses are computed.

        Use it for one forward pass, or one loss, at a time: autocast keeps the weights that it
        cast until the context ends.
        """
        dtype = self.autocast_dtype
        return nullcontext() if dtype is None else torch.autocast(device.type, dtype)

    def convert(self, model: nn.Module) -> nn.Module:
        """Convert the weights and buffers of a model, in place.

        Raises:
            ValueError: The model has complex weights, which have no 16-bit dtype.
        """
        dtype = self.weight_dtype
        if dtype is None:
            return model
        tensors = [*model.named_parameters(), *model.named_buffers()]
        if names := [name for name, tensor in tensors if tensor.is_complex()]:
            raise ValueError(
                f"precision={self.name!r} can't convert the complex tensor {names[0]!r} of the "
                f"model; use 'amp_{self.name}'."
            )
        return model.to(dtype)

    def cast(self, inputs: Any) -> Any:
        """Cast the floating-point tensors of a batch to the dtype of the weights."""
        dtype = self.weight_dtype
        if dtype is None:
            return inputs
        return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs)

    @contextmanager
    def backend_settings(self) -> Iterator[None]:
        """Allow TF32 within the context if this is "tf32", and restore PyTorch's settings."""
        with ExitStack() as undo:
            if self.name == "tf32":
                for backend, name, value in _tf32_settings():
                    undo.callback(setattr, backend, name, getattr(backend, name))
                    setattr(backend, name, value)
            yield


def _tf32_settings() -> list[tuple[Any, str, Any]]:
    """Return the settings that allow TF32: object, attribute and value."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(cudnn, "conv"):  # from PyTorch 2.9 on, where the older flags must not be mixed in
        return [(one, "fp32_precision", "tf32") for one in (matmul, cudnn.conv, cudnn.rnn)]
    return [(matmul, "allow_tf32", True), (cudnn, "allow_tf32", True)]


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest floating-point dtype of a device: float64, which `mps` does not have."""
    return torch.float32 if device.type == "mps" else torch.float64


def _fault(name: str, device: torch.device) -> str | None:
    """Return what the device lacks, in words, or None."""
    if name == "tf32" and device.type != "cuda":
        return f"an NVIDIA GPU, and device is {str(device)!r}; use 'fp32'"
    if name in _AUTOCAST and not torch.amp.is_autocast_available(device.type):
        return f"torch.autocast, which PyTorch does not have for {device.type!r}; use 'fp32'"
    if device.type != "cuda":
        return None
    major = torch.cuda.get_device_capability(device)[0]
    if torch.version.hip is None and major < 8 and (name == "tf32" or "bf16" in name):
        other = "fp32" if name == "tf32" else name.replace("bf16", "fp16")
        kind = torch.cuda.get_device_name(device)
        return f"a GPU of compute capability 8.0, and {kind} has {major}.x; use {other!r}"
    return None
