"""Functions of images as single operations of PyTorch, for `torch.compile` and `torch.func`.

Sizes of tensors within these functions depend on a draw, which neither of the two supports. So
`torch.compile` calls such a function as it is, and `vmap` calls it once, for all batches as one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from composable._support.spatial import laid_out_like

Function = Callable[..., Tensor]


def opaque(name: str, function: Function, reference: Function, *draw: str) -> Function:
    """Return a function that is a single operation within `torch.compile` and `torch.func`.

    Args:
        name: The name of the operation.
        function: `function(images, *draw)`, which computes each image by itself. Its result has the
            shape, dtype and layout of the images. The last dimension of a draw is the batch.
        reference: A function with the same result, of operations that autograd records and `vmap`
            supports. It computes the gradients.
        draw: The names of the other arguments.
    """
    compiled = _operation(name, function, reference, draw)

    class Transformed(torch.autograd.Function):
        @staticmethod
        def forward(*given: Tensor) -> Tensor:
            return call(*given)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return _gradients(reference, ctx.saved_tensors, gradient)

        @staticmethod
        def vmap(info: Any, dims: tuple[int | None, ...], *given: Tensor) -> tuple[Tensor, int]:
            return _batches_as_one(call, info.batch_size, dims, given), 0

    def call(*given: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return compiled(*given)
        if torch._C._functorch.peek_interpreter_stack():
            result: Tensor = Transformed.apply(*given)  # type: ignore[no-untyped-call]
            return result
        return function(*given)

    return call


def _operation(name: str, function: Function, reference: Function, draw: Sequence[str]) -> Function:
    """Register a function as an operation, which `torch.compile` puts into a graph."""
    arguments = ", ".join(f"Tensor {argument}" for argument in ("images", *draw))
    schema = f"({arguments}) -> Tensor"
    operation: Any = custom_op(f"composable::{name}", function, mutates_args=(), schema=schema)
    operation.register_fake(lambda images, *_: laid_out_like(torch.empty_like(images), images))
    operation.register_autograd(
        lambda ctx, gradient: _gradients(reference, ctx.saved_tensors, gradient),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    operation.register_vmap(
        lambda info, dims, *given: (_batches_as_one(operation, info.batch_size, dims, given), 0)
    )
    registered: Function = operation
    return registered


def _gradients(
    function: Function, given: tuple[Tensor, ...], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of the arguments that are floating-point tensors."""
    floats = [part for part in given if part.is_floating_point()]

    def of_floats(*floats: Tensor) -> Tensor:
        rest = iter(floats)
        return function(*[next(rest) if part.is_floating_point() else part for part in given])

    gradients = iter(torch.func.vjp(of_floats, *floats)[1](gradient))
    return tuple([next(gradients) if part.is_floating_point() else None for part in given])


def _batches_as_one(
    function: Function, count: int, dims: tuple[int | None, ...], given: tuple[Tensor, ...]
) -> Tensor:
    """Join the batches of images and draws, call a function, and split the result."""
    images, *draw = [
        part.expand(count, *part.shape) if dim is None else part.movedim(dim, 0)
        for part, dim in zip(given, dims, strict=True)
    ]
    joined = [part.movedim(0, -2).flatten(-2) for part in draw]
    result = function(images.flatten(0, 1), *joined)
    return result.reshape(*images.shape[:2], *result.shape[1:])
