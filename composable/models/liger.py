"""The fused kernels of Liger, for models of Transformers."""

import inspect
from typing import Any, TypeVar

from torch import accelerator, nn

from composable._support.checks import kind_of
from composable._support.extras import needs
from composable._support.surgery import copy_on_write
from composable.batches.model_call import base_model_of, is_transformers_model

Model = TypeVar("Model", bound=nn.Module)

_DEVICES = ("cuda", "xpu", "npu")


def with_liger_kernels(model: Model, **kernels: bool) -> Model:
    """Replace layers of a model of Transformers by the fused kernels of Liger, in a copy.

    They compute the same functions, to rounding, in less time and memory. Call it before the
    Trainer is built, and before or after adapters of PEFT are added. Liger also replaces functions
    of the model's module in Transformers, which all models of its class then use.

    Args:
        model: A model of Transformers, or PEFT's wrapper of one. It is not modified.
        kernels: Which kernels to use, by the names of Liger for this model, such as
            `rms_norm=False`. By default those that Liger chooses.

    Returns:
        A copy that shares the parameters.

    Raises:
        TypeError: The model is not one of Transformers.
        ModuleNotFoundError: Liger is not installed.
        RuntimeError: There is no device for its kernels.
        ValueError: Liger has no kernels for this model, or none of that name.

    Source: Hsu et al., "Liger Kernel", 2024, https://arxiv.org/abs/2410.10989.

    Example:
        >>> from composable.models import with_liger_kernels
        >>> with_liger_kernels(nn.Linear(2, 1))
        Traceback (most recent call last):
        TypeError: model must be a model of Transformers, not a Linear.
    """
    if not is_transformers_model(model):
        raise TypeError(f"model must be a model of Transformers, not {kind_of(model)}.")
    with needs("with_liger_kernels", "liger"):
        from liger_kernel.transformers import monkey_patch as liger
    _check_device()
    base: Any = base_model_of(model)
    kind = base.config.model_type
    apply = liger.MODEL_TYPE_TO_APPLY_LIGER_FN.get(kind)
    if apply is None:
        raise ValueError(
            f"Liger has no kernels for models of type {kind!r}, but for "
            f"{', '.join(sorted(liger.MODEL_TYPE_TO_APPLY_LIGER_FN))}; train the model without "
            "with_liger_kernels."
        )
    known = inspect.signature(apply).parameters.keys() - {"model"}
    if not kernels.keys() <= known:
        raise ValueError(
            f"kernels={kernels!r} are not those that Liger has for models of type {kind!r}: "
            f"{', '.join(sorted(known))}."
        )
    new = copy_on_write(model)
    apply(model=base_model_of(new), **kernels)
    return new


def _check_device() -> None:
    device = accelerator.current_accelerator(check_available=True)
    if device is None or device.type not in _DEVICES:
        found = "none" if device is None else f"one of type {device.type!r}"
        raise RuntimeError(
            f"the kernels of Liger need a device of type {', '.join(_DEVICES)}, and this machine "
            f"has {found}; train the model without with_liger_kernels."
        )
