"""What the low-precision norms share: which dtype to compute in, and who takes over."""

from typing import Any

import torch
from torch import Tensor, nn

from ._checks import check_module
from ._surgery import replace_modules, report_nothing
from ._take_over import keeps_forward_of, take_over

__all__ = ["LowPrecision", "lower_norms"]

LOW = (torch.float16, torch.bfloat16)


class LowPrecision(nn.Module):
    """A norm that casts its inputs and parameters down, and is left alone by autocast."""

    precision: torch.dtype | None
    weight: Any
    bias: Any

    def __init__(self, *args: Any, precision: torch.dtype | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_precision(precision)
        self.precision = precision

    def forward(self, inputs: Tensor) -> Tensor:
        device = inputs.device.type
        autocast = torch.is_autocast_enabled(device)
        low = self.precision
        if low is None and autocast:
            low = torch.get_autocast_dtype(device)
        if low is None or inputs.dtype not in (*LOW, torch.float32):
            plain: Tensor = super().forward(inputs)
            return plain
        with torch.autocast(device, enabled=False):
            weight, bias = (p if p is None else p.to(low) for p in (self.weight, self.bias))
            outputs = self._normalized(inputs.to(low), weight, bias)
        return outputs if autocast else outputs.to(inputs.dtype)

    def _normalized(self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, precision={self.precision}"


def lower_norms(
    model: nn.Module,
    method: str,
    plain: type[nn.Module],
    low: type[LowPrecision],
    precision: torch.dtype | None,
) -> nn.Module:
    """Replace norms of a class."""
    check_module("model", model)
    check_precision(precision)

    def rule(name: str, module: nn.Module) -> nn.Module:
        if not keeps_forward_of(plain, module):
            return module
        new: LowPrecision = take_over(module, low, prefix="LowPrecision")
        new.precision = precision
        return new

    new, count = replace_modules(model, rule)
    if count == 0 and not any(isinstance(module, low) for module in model.modules()):
        report_nothing(method, plain.__name__)
    return new


def check_precision(precision: Any) -> None:
    """Refuse what is no low precision."""
    if precision is not None and precision not in LOW:
        kind = ValueError if isinstance(precision, torch.dtype) else TypeError
        raise kind(
            f"precision is {precision!r}, but must be torch.float16, torch.bfloat16, or None for "
            "that of autocast."
        )
