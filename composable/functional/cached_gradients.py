"""Cached gradients: the gradient of any loss of a whole batch, a part of the batch at a time.

Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under Memory Limited
Setup", 2021, https://arxiv.org/abs/2101.06983
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from composable._support.checks import check_is_callable, check_tensors, checked, kind_of
from composable._support.generators import preserving_generators
from composable._support.tree import map_tensors, tensors_of


class WholeGradients(NamedTuple):
    """The loss of a whole batch, and its gradients.

    Attributes:
        loss: The loss, detached.
        grads: The gradient of each parameter by name; None for one that the loss does not use.
    """

    loss: Tensor
    grads: dict[str, Tensor | None]


@checked(forward=check_is_callable, loss_fn=check_is_callable, params=check_tensors)
def cached_gradients(
    forward: Callable[[Any], Any],
    parts: Sequence[Any],
    loss_fn: Callable[[Any], Tensor],
    params: Mapping[str, Tensor],
    *,
    generator: torch.Generator | None = None,
) -> WholeGradients:
    r"""Compute the gradients of a loss of the outputs for a whole batch, a part at a time.

    $$\frac{dL}{d\theta} = \sum_i \frac{\partial L}{\partial z_i} \frac{d z_i}{d \theta}
    + \frac{\partial L}{\partial \theta}, \qquad z_i = f_\theta(x_i), \quad L = L(z_1, z_2, \dots)$$

    The outputs $z_i$ of all parts are computed without a graph, then the loss and its gradients
    with respect to them, and then the outputs of each part again, for its vector-Jacobian product.
    Memory holds the activations of one part at a time.

    Args:
        forward: Returns the outputs of a part: a tensor with a row for each example, or such
            tensors in mappings, tuples, lists and dataclasses. It is called twice for each part,
            with the same random numbers of PyTorch and the same buffers of the modules that it
            calls, and must return the same outputs.
        parts: The parts of a batch, each in the form that `forward` takes.
        loss_fn: Returns the loss, a tensor without dimensions, from the concatenated outputs of all
            parts. It is called once.
        params: The parameters of `forward` and of `loss_fn`, such as a temperature, by name.
        generator: Source of the seeds with which `forward` and `loss_fn` are called, on the CPU.
            Without one, torch's global generator.

    Returns:
        The loss and the gradients of the whole batch, up to rounding.

    Raises:
        TypeError: An argument is of the wrong type, there is no part, or `forward` returns no
            tensor.
        ValueError: Outputs can't be concatenated, the loss has dimensions, or the generator is not
            on the CPU.

    Example:
        >>> encoder = torch.nn.Linear(3, 2)
        >>> def contrast(z):  # of each example and the next one, against all others
        ...     return torch.nn.functional.cross_entropy(z @ z.roll(1, 0).T, torch.arange(len(z)))
        >>> batch, params = torch.randn(8, 3), dict(encoder.named_parameters())
        >>> loss, grads = cached_gradients(encoder, batch.split(2), contrast, params)
        >>> contrast(encoder(batch)).backward()
        >>> torch.allclose(grads["weight"], encoder.weight.grad, atol=1e-6)
        True
    """
    if not isinstance(parts, (list, tuple)) or not parts:
        got = f"{parts!r}" if isinstance(parts, (list, tuple)) else kind_of(parts)
        raise TypeError(f"parts must be a list or a tuple of at least one part, not {got}.")
    trained = {name: param for name, param in params.items() if param.requires_grad}
    if generator is not None and generator.device.type != "cpu":
        raise ValueError(
            f"generator must be on the CPU, not on {generator.device}: the host would wait for the "
            "seeds that are drawn from it; pass torch.Generator()."
        )
    *seeds, last = torch.randint(2**63 - 1, (len(parts) + 1,), generator=generator).tolist()
    with preserving_generators(tensor.device for tensor in params.values()) as seed_all:
        outputs = []
        with torch.no_grad(), _restoring_buffers():
            for part, seed in zip(parts, seeds, strict=True):
                seed_all(seed)
                outputs.append(_as_leaves(forward(part)))
        seed_all(last)
        loss, grads, of_outputs = _gradients_of_loss(loss_fn, outputs, trained)
        del outputs
        for part, seed, cached in zip(parts, seeds, of_outputs, strict=True):
            seed_all(seed)
            again = list(tensors_of(forward(part)))
            _add(grads, _product(again, cached, trained))
    return WholeGradients(loss, {name: grads.get(name) for name in params})


@contextmanager
def _restoring_buffers() -> Iterator[None]:
    """Restore the buffers of the modules that are called, at the end of a block."""
    before: dict[Tensor, Tensor] = {}
    places: dict[int, tuple[torch.nn.Module, dict[str, Tensor | None]]] = {}

    def note(called: torch.nn.Module, _: Any) -> None:
        for module in () if id(called) in places else called.modules():  # it may write to all
            _, buffers = places.setdefault(id(module), (module, dict(module._buffers)))
            new = {tensor for tensor in buffers.values() if tensor is not None} - before.keys()
            before.update({tensor: tensor.clone() for tensor in new})

    try:
        with register_module_forward_pre_hook(note):
            yield
    finally:
        for buffer, copy in before.items():
            buffer.copy_(copy)
        for module, buffers in places.values():
            module._buffers.update(buffers)


def _as_leaves(outputs: Any) -> Any:
    def leaf(tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        return tensor.requires_grad_() if tensor.is_floating_point() else tensor

    return map_tensors(leaf, outputs)


def _gradients_of_loss(
    loss_fn: Callable[[Any], Tensor], outputs: list[Any], params: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor | None], list[list[Tensor | None]]]:
    """Return the loss of outputs, and its gradients: of parameters and of each part's outputs."""
    columns = [list(tensors_of(output)) for output in outputs]
    leaves = [tensor for column in columns for tensor in column if tensor.requires_grad]
    with torch.enable_grad():
        loss = loss_fn(_joined(outputs[0], columns))
    if not isinstance(loss, Tensor) or loss.ndim:
        shown = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"loss_fn must return a tensor without dimensions, not {shown}.")
    found = torch.autograd.grad(loss, [*params.values(), *leaves], allow_unused=True)
    cached = iter(found[len(params) :])
    of_outputs = [[next(cached) if one.requires_grad else None for one in c] for c in columns]
    return loss.detach(), dict(zip(params, found, strict=False)), of_outputs


def _joined(like: Any, columns: list[list[Tensor]]) -> Any:
    """Concatenate the tensors of trees of one structure."""
    if not columns[0]:
        raise TypeError(
            "forward must return a tensor, or tensors in mappings, tuples, lists and dataclasses."
        )
    if len({len(column) for column in columns}) > 1:
        raise ValueError("forward must return the same number of tensors for all parts.")
    whole = []
    for tensors in zip(*columns, strict=True):
        if len({(tensor.ndim and tensor.shape[1:], tensor.dtype) for tensor in tensors}) > 1 or (
            not tensors[0].ndim
        ):
            shapes = [tuple(tensor.shape) for tensor in tensors]
            raise ValueError(
                f"forward must return tensors with a row for each example, equal in dtype and in "
                f"all other sizes, and returned tensors of the shapes {shapes} for the parts."
            )
        whole.append(torch.cat(tensors))
    joined = iter(whole)
    return map_tensors(lambda _: next(joined), like)


def _product(
    outputs: list[Tensor], grads: list[Tensor | None], params: Mapping[str, Tensor]
) -> dict[str, Tensor | None]:
    """Compute the vector-Jacobian product of a part."""
    pairs = [
        (output, grad)
        for output, grad in zip(outputs, grads, strict=True)
        if grad is not None and output.requires_grad
    ]
    if not pairs or not params:
        return {}
    tensors, cached = zip(*pairs, strict=True)
    found = torch.autograd.grad(tensors, list(params.values()), cached, allow_unused=True)
    return dict(zip(params, found, strict=True))


def _add(grads: dict[str, Tensor | None], more: Mapping[str, Tensor | None]) -> None:
    for name, grad in more.items():
        held = grads.get(name)
        if grad is not None:
            grads[name] = grad if held is None else held + grad
