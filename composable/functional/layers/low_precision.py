"""The base of the low-precision norms, and their surgery."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from composable._support.checks import LOW_PRECISION, check_precision
from composable._support.devices import autocast_dtype
from composable._support.warn import NoEffectWarning, warn_user

from .._reclass import keeps_forward_of, reclass
from ..replace_modules import replace_or_report


class LowPrecision(nn.Module):
    """A norm in a 16-bit dtype, which autocast does not cast to float32."""

    precision: torch.dtype | None
    reports_idle = False
    """Whether the layer warns, once, if it trains in float32 because there is no autocast."""
    weight: Any

    def __init__(self, *args: Any, precision: torch.dtype | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_precision("precision", precision)
        self.precision = precision

    def forward(self, inputs: Tensor) -> Tensor:
        device = inputs.device.type
        autocast = autocast_dtype(device)
        low = autocast if self.precision is None else self.precision
        if low is None and getattr(self.weight, "dtype", None) in (None, inputs.dtype):
            low = inputs.dtype if inputs.dtype in LOW_PRECISION else None
        if self.reports_idle and self.training and not torch.compiler.is_compiling():
            self._report(inputs, low)
        if low is None or inputs.dtype not in (*LOW_PRECISION, torch.float32):
            plain: Tensor = super().forward(inputs)
            return plain
        with nullcontext() if autocast is None else torch.autocast(device, enabled=False):
            bias = getattr(self, "bias", None)  # RMS norms have none
            weight, bias = (p if p is None else p.to(low) for p in (self.weight, bias))
            outputs = self._normalized(inputs.to(low), weight, bias)
        return outputs if autocast is not None else outputs.to(inputs.dtype)

    def _report(self, inputs: Tensor, low: torch.dtype | None) -> None:
        self.reports_idle = False
        if low is None and inputs.dtype == torch.float32:
            warn_user(
                f"{type(self).__name__} computes in float32, as before, because there is no "
                "autocast; pass precision='amp_bf16' to the Trainer, train within "
                "torch.autocast(...), or pass precision=torch.bfloat16 to the method.",
                NoEffectWarning,
            )

    def _normalized(self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, precision={self.precision}"


def report_if_idle(model: nn.Module) -> nn.Module:
    """Make the first low-precision norm of a model warn if it trains without autocast."""
    for module in model.modules():
        if isinstance(module, LowPrecision):
            module.reports_idle = module.precision is None
            break
    return model


def lower_norms(
    model: nn.Module,
    method: str,
    kinds: Mapping[Any, type[LowPrecision]],
    precision: torch.dtype | None,
) -> nn.Module:
    """Replace the norms of classes, or of their full names, by low-precision ones."""

    def rule(name: str, module: nn.Module) -> nn.Module:
        for plain, low in kinds.items():
            if keeps_forward_of(plain, module):
                new: LowPrecision = reclass(module, low, prefix="LowPrecision")
                new.precision = precision
                return new
        return module

    names = [kind if isinstance(kind, str) else kind.__name__ for kind in kinds]
    sought = f"{', '.join(names)}, with their own forward method"
    return replace_or_report(model, rule, tuple(kinds.values()), method, sought)
