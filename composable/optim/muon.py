"""Muon: momentum whose update is orthogonalized, for the hidden matrices of a model.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
https://kellerjordan.github.io/posts/muon/; the scaling "match_rms_adamw": Liu et al., "Muon is
Scalable for LLM Training", 2025, https://arxiv.org/abs/2502.16982
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from composable._support.checks import check_count, check_flag, check_place, check_range
from composable._support.dtensors import local_part
from composable.functional.orthogonalize import COEFFICIENTS, check_coefficients, iterate
from composable.optim.matrix_owners import Batch, compute_by_owners
from composable.optim.model_parameters import ModelGroups, ModelParameters
from composable.optim.muon_groups import ADAMW, MUON, muon_groups
from composable.optim.roles import MATRICES, TABLES, check_matrix, roles_of

__all__ = ["DEFAULT", "Muon"]

DEFAULT = "default"
"""The default process group: one that is held keeps its connections open after an error."""

_SCALINGS = (None, "original", "match_rms_adamw")
_ELEMENTS, _ELEMENTS_ON_CPU = 2**24, 2**18
"""The largest batch: larger ones save no time, and take memory."""


class Muon(Optimizer):
    r"""Muon for the hidden matrices, and AdamW for all other parameters.

    A hidden matrix $\theta$ with gradient $g$ is updated by

    $$B \leftarrow \mu B + (1 - \mu) g, \qquad
    \theta \leftarrow (1 - \gamma \lambda)\, \theta - \gamma\, s\, O((1 - \mu) g + \mu B)$$

    where $O$ is `composable.functional.orthogonalize` and the scale $s$ depends on the shape. Every
    other parameter is updated as by `torch.optim.AdamW`. Matrices of equal shape are updated in one
    batch.

    Args:
        params: What is optimized: the model, whose parameters `muon_groups` divides; or the groups
            of `muon_groups`; or hidden matrices only, as for `torch.optim.Muon`. In the `Trainer`,
            pass `optimizers=functools.partial(Muon, lr=...)`, and the model is divided.
        lr: The learning rate $\gamma$ of matrices.
        weight_decay: The decoupled weight decay $\lambda$.
        momentum: The momentum $\mu$, in [0, 1).
        nesterov: Whether momentum is Nesterov's. Otherwise the update is $O(B)$.
        ns_coefficients: The coefficients of `orthogonalize`.
        eps: The least norm of `orthogonalize`.
        ns_steps: The number of steps of `orthogonalize`.
        adjust_lr_fn: The scale $s$ for a matrix of $r$ rows and $c$ columns: "original" (or None)
            $\sqrt{\max(1, r / c)}$, or "match_rms_adamw" $0.2 \sqrt{\max(r, c)}$, with which the
            learning rates and weight decays of AdamW fit.
        dtype: The dtype in which matrices are orthogonalized.
        adamw_lr: The learning rate of AdamW. By default 1e-3, or `lr` with "match_rms_adamw".
        adamw_betas: The betas of AdamW.
        adamw_eps: The epsilon of AdamW.
        adamw_weight_decay: The weight decay of AdamW, by default `weight_decay`.
        process_group: The processes that have the same parameters and gradients, as with
            `DistributedDataParallel`: "default" for all, or a group. Each orthogonalizes some of
            the matrices, and sends the results to the others. Without one, each process
            orthogonalizes all. The `Trainer` sets it. A `DTensor` needs none: its rows are sent to
            one of its processes.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, or a matrix has fewer than two dimensions.

    Example:
        >>> from composable.optim import Muon
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = Muon(model, lr=0.02)
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
        >>> [(group["name"], group["lr"]) for group in optimizer.param_groups]
        [('matrices', 0.02), ('others', 0.001)]
    """

    process_group: Any = None  # of a copy, and of an optimizer that was unpickled

    def __init__(  # noqa: PLR0913
        self,
        params: nn.Module | Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        adamw_lr: float | Tensor | None = None,
        adamw_betas: tuple[float, float] = (0.9, 0.999),
        adamw_eps: float = 1e-8,
        adamw_weight_decay: float | None = None,
        process_group: Any = None,
    ) -> None:
        matrices = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "dtype": dtype,
            "stacked": 1,
        }
        _check_muon(matrices)
        if adamw_lr is None:
            adamw_lr = lr if adjust_lr_fn == "match_rms_adamw" else 1e-3
        others = {
            "lr": adamw_lr,
            "weight_decay": weight_decay if adamw_weight_decay is None else adamw_weight_decay,
            "betas": adamw_betas,
            "eps": adamw_eps,
        }
        _check_adamw(others, "adamw_")
        self._halves: dict[str, dict[str, Any]] = {MUON: matrices, ADAMW: others}
        known = isinstance(process_group, (str, dist.ProcessGroup)) or process_group is None
        if not known or (isinstance(process_group, str) and process_group != DEFAULT):
            raise TypeError(
                f"process_group={process_group!r} must be 'default', a "
                "torch.distributed.ProcessGroup, or None."
            )
        self.process_group = process_group
        super().__init__(_groups(params), {"lr": lr, "weight_decay": weight_decay})

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_halves": self._halves}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, of matrices unless its key "half" is "adamw".

        Raises:
            ValueError: A matrix has fewer than two dimensions, or an option is out of range.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group={param_group!r} must be a dictionary with 'params'.")
        half = param_group.get("half", MUON)
        if half not in self._halves:
            raise ValueError(f"half={half!r} must be 'muon' or 'adamw'.")
        group = {"half": half, **self._halves[half], **param_group}
        (_check_muon if half == MUON else _check_adamw)(group)
        params = group["params"]
        group["params"] = [params] if isinstance(params, Tensor) else list(params)
        if half == MUON:
            _check_matrices(group)
        super().add_param_group(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters.

        Args:
            closure: A function that computes the loss and the gradients again, and returns the
                loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if any(p.grad.is_sparse for p in params):
                raise RuntimeError(
                    "Muon does not support sparse gradients: use Embedding(sparse=False)."
                )
            if params:
                (self._step_matrices if group["half"] == MUON else self._step_others)(params, group)
        return loss

    def _step_matrices(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads = _gradients(params)
        for p, grad in zip(params, grads, strict=True):
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(grad)
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        lr, momentum = float(group["lr"]), group["momentum"]
        torch._foreach_lerp_(buffers, grads, 1 - momentum)
        updates = torch._foreach_lerp(grads, buffers, momentum) if group["nesterov"] else buffers
        own = [local_part(p) for p in params]
        torch._foreach_mul_(own, 1 - lr * group["weight_decay"])
        computed = compute_by_owners(
            updates,
            list(_batches(params, group["stacked"])),
            partial(_orthogonalized, group=group),
            group=dist.group.WORLD if self.process_group == DEFAULT else self.process_group,
            dtype=_narrower(group["dtype"], params[0].dtype),
        )
        for batch, results in computed:
            some = [own[i] for i in batch.indices]
            rate = -lr * _scale(group["adjust_lr_fn"], params[batch.indices[0]], group["stacked"])
            orthogonal = [result.to(p.dtype) for result, p in zip(results, some, strict=True)]
            torch._foreach_add_(some, orthogonal, alpha=rate)

    def _step_others(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for p in params:
            if not self.state[p]:
                # The dtype and the device that AdamW gives to its counts of steps.
                self.state[p]["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
                self.state[p]["exp_avg"] = torch.zeros_like(p)
                self.state[p]["exp_avg_sq"] = torch.zeros_like(p)
        averages, squares, steps = (
            [self.state[p][name] for p in params] for name in ("exp_avg", "exp_avg_sq", "step")
        )
        adamw(
            params,
            _gradients(params),
            averages,
            squares,
            [],
            steps,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            has_complex=any(torch.is_complex(p) for p in params),
        )

    def check_model(self, model: nn.Module) -> None:
        """Raise a ValueError if an embedding, or what is tied to one, is among the matrices."""
        groups = [group for group in self.param_groups if group["half"] == MUON]
        held = {id(p) for group in groups for p in group["params"]}
        for role in roles_of(model):
            if id(role.parameter) in held:
                check_matrix(role)


def _groups(params: Any) -> Any:
    if isinstance(params, nn.Module):
        return muon_groups(params)
    if isinstance(params, ModelParameters):
        return muon_groups(*params.modules)
    if isinstance(params, ModelGroups) and params.by_role:
        return [{**one, "half": MUON if one["name"] == MATRICES else ADAMW} for one in params]
    if isinstance(params, ModelGroups):
        return [group for one in muon_groups(*params.modules) for group in _divided(one, params)]
    several = isinstance(params, Iterable) and not isinstance(params, (str, bytes, dict, Tensor))
    listed = list(params) if several else []
    if not all(isinstance(one, (Tensor, dict, tuple)) for one in listed) or not listed:
        given = type(params).__name__ if listed else repr(params)
        raise TypeError(
            f"params={given} must be the model, groups of muon_groups(model), or hidden matrices."
        )
    return listed


def _divided(group: dict[str, Any], by: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Divide the group of the other parameters by `decay_groups`."""
    if group["half"] == MUON or group["name"] == TABLES:
        yield group
        return
    own = {id(p) for p in group["params"]}
    for one in (one for one in by if one["name"] != TABLES):
        yield {**one, "half": ADAMW, "params": [p for p in one["params"] if id(p) in own]}


def _gradients(params: Sequence[Tensor]) -> list[Tensor]:
    return [p.grad for p in params if p.grad is not None]


def _as_matrices(tensor: Tensor, stacked: int) -> Tensor:
    """View a parameter as a matrix, or as a stack of matrices."""
    if stacked == 1:
        return tensor.flatten(1)
    return tensor.reshape(stacked, len(tensor) // stacked, -1)


def _orthogonalized(updates: list[Tensor], group: Mapping[str, Any]) -> Sequence[Tensor]:
    """Orthogonalize updates of equal shape in one batch."""
    matrices = [_as_matrices(one, group["stacked"]) for one in updates]
    stack = torch.stack(matrices) if len(matrices) > 1 else matrices[0]
    options = [group[name] for name in ("ns_steps", "ns_coefficients", "eps", "dtype")]
    return list(iterate(stack, *options).reshape(len(updates), *updates[0].shape))


def _narrower(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    """Return the dtype in which no bit of a result is lost: that of the computation, or of it."""
    return one if one.itemsize <= other.itemsize else other


def _batches(params: Sequence[Tensor], stacked: int) -> Iterator[Batch]:
    """Divide parameters into batches of equal shape, dtype and device."""
    alike: dict[Any, list[int]] = {}
    for i, p in enumerate(params):
        alike.setdefault((p.shape, p.dtype, p.device), []).append(i)
    for (shape, _, device), indices in alike.items():
        elements = _ELEMENTS_ON_CPU if device.type == "cpu" else _ELEMENTS
        most = max(elements // max(shape.numel(), 1), 1)
        cost = shape.numel() * min(_matrix_shape(shape, stacked))
        for i in range(0, len(indices), most):
            some = indices[i : i + most]
            yield Batch(some, len(some) * cost)


def _matrix_shape(shape: torch.Size, stacked: int) -> tuple[int, int]:
    """Return the rows and columns of each matrix of a parameter."""
    return shape[0] // stacked, shape[1:].numel()


def _scale(adjust_lr_fn: str | None, parameter: Tensor, stacked: int) -> float:
    rows, columns = _matrix_shape(parameter.shape, stacked)
    if adjust_lr_fn == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


# --- checks ---


def _check_lr(name: str, value: Any) -> None:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    check_range(name, value, 0, math.inf, ends="[)")


def _check_muon(options: dict[str, Any]) -> None:
    _check_lr("lr", options["lr"])
    check_range("weight_decay", options["weight_decay"], 0, math.inf, ends="[)")
    check_range("momentum", options["momentum"], 0, 1, ends="[)")
    check_flag("nesterov", options["nesterov"])
    check_coefficients("ns_coefficients", options["ns_coefficients"])
    check_range("eps", options["eps"], 0, math.inf, ends="()")
    check_count("ns_steps", options["ns_steps"])
    scaling = options["adjust_lr_fn"]
    known = scaling is None or isinstance(scaling, str)
    if not known or scaling not in _SCALINGS:
        kind = ValueError if known else TypeError
        raise kind(f"adjust_lr_fn={scaling!r} must be 'original', 'match_rms_adamw' or None.")
    check_place(None, options["dtype"])
    check_count("stacked", options["stacked"], 1)


def _check_adamw(options: dict[str, Any], prefix: str = "") -> None:
    _check_lr(f"{prefix}lr", options["lr"])
    check_range(f"{prefix}weight_decay", options["weight_decay"], 0, math.inf, ends="[)")
    check_range(f"{prefix}eps", options["eps"], 0, math.inf, ends="[)")
    betas = options["betas"]
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"{prefix}betas={betas!r} must be two numbers, such as (0.9, 0.999).")
    for i, beta in enumerate(betas):
        check_range(f"{prefix}betas[{i}]", beta, 0, 1, ends="[)")


def _check_matrices(group: dict[str, Any]) -> None:
    """Check that the parameters of a group are matrices."""
    for one in group["params"]:
        p = one[1] if isinstance(one, tuple) and len(one) == 2 else one
        if not isinstance(p, Tensor):
            continue  # PyTorch names it
        if p.ndim < 2 or not p.is_floating_point() or len(p) % group["stacked"]:
            raise ValueError(
                f"params contains a parameter of shape {tuple(p.shape)} and {p.dtype} that is not "
                f"a matrix (stacked={group['stacked']}): pass the model, Muon(model, ...), or "
                "muon_groups(model), which leave such parameters to AdamW."
            )
