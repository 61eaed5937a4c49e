"""Muon: momentum whose update is orthogonalized, for the hidden matrices of a model.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
https://kellerjordan.github.io/posts/muon/; the scaling "match_rms_adamw": Liu et al., "Muon is
Scalable for LLM Training", 2025, https://arxiv.org/abs/2502.16982; rows of equal norm: "MuonEq",
2026, https://arxiv.org/abs/2603.28254; two momenta: record 340 of modded-nanogpt, 2026,
https://github.com/KellerJordan/modded-nanogpt/pull/340
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.adamw import adamw

from composable._support.checks import check_count, check_flag, check_place, check_range
from composable._support.devices import compute_dtype
from composable._support.dtensors import local_part
from composable.functional.orthogonalize import (
    COEFFICIENTS,
    Coefficients,
    check_coefficients,
    iterate,
)
from composable.optim.matrix_owners import Batch, compute_by_owners
from composable.optim.muon_groups import ADAMW, MUON, muon_groups
from composable.optim.neurons import as_neurons, scaled_neurons
from composable.optim.roles import (
    MATRICES,
    TABLES,
    ModelGroups,
    ModelParameters,
    check_matrix,
    roles_of,
)
from composable.optim.soap_momentum import SQUARES, STATES, preconditioned
from composable.optim.wrapping import BaseOptimizer, check_betas, check_lr

DEFAULT = "default"
"""The default process group: one that is held keeps its connections open after an error."""

_SCALINGS = (None, "original", "match_rms_adamw")
_ELEMENTS, _ELEMENTS_ON_CPU = 2**24, 2**18
"""The largest batch: larger ones save no time, and take memory."""


class Muon(BaseOptimizer):
    r"""Muon for the hidden matrices, and AdamW for all other parameters.

    A hidden matrix $\theta$ with gradient $g$ is updated by

    $$B \leftarrow \mu B + (1 - \mu) g, \qquad
    \theta \leftarrow (1 - \gamma \lambda)\, \theta - \gamma\, s\, O((1 - \mu) g + \mu B)$$

    where $O$ is `composable.functional.orthogonalize` and the scale $s$ depends on the shape. Every
    other parameter is updated as by `torch.optim.AdamW`. Matrices of equal shape are updated in one
    batch.

    Args:
        params: What is optimized: the model, whose parameters `muon_groups` divides; or the groups
            of `muon_groups`; or hidden matrices only, as for `torch.optim.Muon`, in groups with the
            key "batched" if one has three dimensions: True for a batch of matrices, False for the
            weight of a convolution. In the `Trainer`, pass
            `optimizers=functools.partial(Muon, lr=...)`, and the model is divided.
        lr: The learning rate $\gamma$ of matrices.
        weight_decay: The decoupled weight decay $\lambda$.
        momentum: The momentum $\mu$, in [0, 1).
        nesterov: Whether momentum is Nesterov's. Otherwise the update is $O(B)$.
        ns_coefficients: The coefficients of `orthogonalize`: three, or three for each step, such as
            `composable.functional.polar_express_coefficients()`.
        eps: The least norm of `orthogonalize`.
        ns_steps: The number of steps of `orthogonalize`.
        adjust_lr_fn: The scale $s$ for a matrix of $r$ rows and $c$ columns: "original" (or None)
            $\sqrt{\max(1, r / c)}$, or "match_rms_adamw" $0.2 \sqrt{\max(r, c)}$, with which the
            learning rates and weight decays of AdamW fit.
        dtype: The dtype in which matrices are orthogonalized.
        equalize_rows: Whether the rows of a matrix are scaled to norm 1 before it is
            orthogonalized (MuonEq).
        slow_momentum: The momentum of a second average $S$ of the gradients, in [0, 1). $B$ in the
            formula is then $(1 - a) B + a S$.
        slow_share: The share $a$ of the second average, in [0, 1].
        neuron_beta2: The share of an average of the mean square of each row of $O$ that a step
            keeps, in [0, 1). Rows are divided by its root, and the whole is scaled to the norm that
            it had (NorMuon).
        update_floor: The least ratio of the norms of a row of the update $s\, O$ and of the
            weights. Rows with less are scaled up.
        soap_beta2: The share of the averages of SOAP that a step keeps, in [0, 1). What is
            orthogonalized is preconditioned in their eigenbases first. Every process has the
            averages of all matrices: two squares of its sides for each matrix.
        split_attention: As in `muon_groups`: "projections" or "heads".
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
        ValueError: A number is out of range, a matrix has fewer than two dimensions, or three and
            its layout is not known.

    Example:
        >>> from composable.optim import Muon
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = Muon(model, lr=0.02)
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
        >>> [(group["name"], group["lr"]) for group in optimizer.param_groups]
        [('matrices', 0.02), ('others', 0.001)]
    """

    own_dtypes = STATES
    process_group: Any = None  # of a copy, and of an optimizer that was unpickled

    def __init__(  # noqa: PLR0913
        self,
        params: nn.Module | Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Coefficients = COEFFICIENTS,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        equalize_rows: bool = False,
        slow_momentum: float | None = None,
        slow_share: float = 0.56,
        neuron_beta2: float | None = None,
        update_floor: float = 0.0,
        soap_beta2: float | None = None,
        split_attention: str | None = None,
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
            "equalize_rows": equalize_rows,
            "slow_momentum": slow_momentum,
            "slow_share": slow_share,
            "neuron_beta2": neuron_beta2,
            "update_floor": update_floor,
            "soap_beta2": soap_beta2,
            "stacked": 1,
            "transposed": False,
            "batched": None,  # with three dimensions it is a matrix, or a batch of them
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
        super().__init__(_groups(params, split_attention), {"lr": lr, "weight_decay": weight_decay})

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_halves": self._halves}

    def complete(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return a new group, of matrices unless its key "half" is "adamw", and check it."""
        half = group.get("half", MUON)
        if half not in self._halves:
            raise ValueError(f"half={half!r} must be 'muon' or 'adamw'.")
        group = {"half": half, **self._halves[half], **group}
        (_check_muon if half == MUON else _check_adamw)(group)
        params = group["params"]
        group["params"] = [params] if isinstance(params, Tensor) else list(params)
        if half == MUON:
            _check_matrices(group)
        return group

    def step_group(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Update the parameters of a group, of either half."""
        if params:
            (self._step_matrices if group["half"] == MUON else self._step_others)(params, group)

    def _step_matrices(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads, lr = _gradients(params), float(group["lr"])
        updates = self._updates(params, grads, group)
        if group["soap_beta2"] is not None:
            updates = self._preconditioned(params, updates, grads, group)
        own = [local_part(p) for p in params]
        torch._foreach_mul_(own, 1 - lr * group["weight_decay"])
        computed = compute_by_owners(
            updates,
            list(_batches(params, group)),
            partial(_orthogonalized, group=group),
            group=dist.group.WORLD if self.process_group == DEFAULT else self.process_group,
            # No bit of a result is lost: of the computation, or of the parameters.
            dtype=min(group["dtype"], params[0].dtype, key=lambda one: one.itemsize),
        )
        for batch, results in computed:
            some = [own[i] for i in batch.indices]
            scale = _scale(params[batch.indices[0]], group)
            orthogonal = [result.to(p.dtype) for result, p in zip(results, some, strict=True)]
            if group["neuron_beta2"] is not None or group["update_floor"]:
                matrices = [params[i] for i in batch.indices]
                orthogonal = self._scaled(orthogonal, matrices, group, scale)
            torch._foreach_add_(some, orthogonal, alpha=-lr * scale)

    def _updates(
        self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]
    ) -> Sequence[Tensor]:
        """Average the gradients, and return what is orthogonalized."""
        momentum, means = group["momentum"], self._buffers("momentum_buffer", params, grads)
        torch._foreach_lerp_(means, grads, 1 - momentum)
        if group["slow_momentum"] is not None:
            slow = self._buffers("slow_momentum_buffer", params, grads)
            torch._foreach_lerp_(slow, grads, 1 - group["slow_momentum"])
            means = list(torch._foreach_lerp(means, slow, group["slow_share"]))
        return torch._foreach_lerp(grads, means, momentum) if group["nesterov"] else means

    def _preconditioned(
        self,
        params: list[Tensor],
        updates: Sequence[Tensor],
        grads: list[Tensor],
        group: dict[str, Any],
    ) -> list[Tensor]:
        """Precondition what is orthogonalized, matrices of equal shape in one batch."""
        _check_whole(params, f"soap_beta2={group['soap_beta2']!r} needs")
        found = list(updates)
        new = [SQUARES not in self.state[p] for p in params]
        for batch in _batches(params, group):
            for first in (True, False):
                some = [i for i in batch.indices if new[i] is first]
                if some:
                    results = preconditioned(
                        _stack([updates[i] for i in some], group),
                        _stack([grads[i] for i in some], group),
                        [self.state[params[i]] for i in some],
                        group["soap_beta2"],
                    )
                    shaped = _shaped(results, updates[some[0]].shape, group)
                    for i, tensor in zip(some, shaped, strict=True):
                        found[i] = tensor
        return found

    def _buffers(self, name: str, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        for p, grad in zip(params, grads, strict=True):
            if name not in self.state[p]:
                self.state[p][name] = torch.zeros_like(grad)
        return [self.state[p][name] for p in params]

    def _scaled(
        self, updates: list[Tensor], params: list[Tensor], group: dict[str, Any], scale: float
    ) -> list[Tensor]:
        """Scale the rows of orthogonal matrices."""
        dim, averages, shape = int(group["transposed"]), None, updates[0].shape
        if group["neuron_beta2"] is not None:
            for p in params:
                known = self.state[p].get("neuron_squares")
                if known is None and group["batched"]:
                    known = torch.zeros_like(p.select(-1 - dim, 0))
                self.state[p]["neuron_squares"] = as_neurons(known, p, dim)
            averages = [self.state[p]["neuron_squares"] for p in params]
        if group["batched"]:  # each is a matrix of its own
            _check_whole(params, "neuron_beta2 and update_floor of a batch of matrices need")
            updates, params = ([one for p in each for one in p] for each in (updates, params))
            averages = averages and [one for each in averages for one in each]
        found = scaled_neurons(
            updates,
            params,
            averages,
            dim=dim,
            beta2=group["neuron_beta2"],
            floor=group["update_floor"],
            scale=scale,
            eps=group["eps"],
        )
        return list(torch.stack(found).view(-1, *shape)) if group["batched"] else found

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


def _groups(params: Any, split_attention: str | None) -> Any:
    grouped = partial(muon_groups, split_attention=split_attention)
    if isinstance(params, nn.Module):
        return grouped(params)
    if isinstance(params, ModelParameters):
        return grouped(*params.modules)
    by_model = isinstance(params, ModelGroups) and not params.by_role
    if split_attention is not None and not by_model:
        raise ValueError(
            f"split_attention={split_attention!r} needs the model: pass Muon(model, ...), or "
            "muon_groups(model, split_attention=...); or stacked= to by_role."
        )
    if isinstance(params, ModelGroups) and params.by_role:
        half = {MATRICES: MUON}
        return [{"batched": False, **g, "half": half.get(g["name"], ADAMW)} for g in params]
    if isinstance(params, ModelGroups):
        return [group for one in grouped(*params.modules) for group in _divided(one, params)]
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


def _as_matrices(tensor: Tensor, group: Mapping[str, Any]) -> Tensor:
    """View a parameter as a matrix with a row for each output, or as a stack of such."""
    matrix = tensor if group["batched"] else tensor.flatten(1)
    matrix = matrix.mT if group["transposed"] else matrix
    one = matrix.ndim == 2 and group["stacked"] == 1
    return matrix if one else matrix.reshape(-1, *_matrix_shape(tensor.shape, group))


def _orthogonalized(updates: list[Tensor], group: Mapping[str, Any]) -> Sequence[Tensor]:
    """Orthogonalize updates of equal shape in one batch."""
    matrices = [_as_matrices(update, group) for update in updates]
    stack = torch.stack(matrices) if len(matrices) > 1 else matrices[0]
    if group["equalize_rows"]:
        stack = stack.to(group["dtype"])  # in which processes send it to each other
        precise = compute_dtype(stack.dtype)
        norms = torch.linalg.vector_norm(stack, dim=-1, keepdim=True, dtype=precise)
        stack = stack / norms.clamp(min=group["eps"]).to(stack.dtype)
    options = [group[name] for name in ("ns_steps", "ns_coefficients", "eps", "dtype")]
    return _shaped(iterate(stack, *options), updates[0].shape, group)


def _stack(tensors: list[Tensor], group: Mapping[str, Any]) -> Tensor:
    """Stack parameters as matrices `[parameters, stacked, rows, columns]`."""
    stack = torch.stack([_as_matrices(tensor, group) for tensor in tensors])
    return stack.reshape(len(tensors), -1, *stack.shape[-2:])


def _shaped(matrices: Tensor, shape: torch.Size, group: Mapping[str, Any]) -> list[Tensor]:
    """View matrices as parameters of some shape."""
    if group["transposed"]:
        return list(matrices.reshape(-1, *shape[:-2], shape[-1], shape[-2]).mT)
    return list(matrices.reshape(-1, *shape))


def _batches(params: Sequence[Tensor], group: Mapping[str, Any]) -> Iterator[Batch]:
    """Divide parameters into batches of equal shape, dtype and device."""
    alike: dict[Any, list[int]] = {}
    for i, p in enumerate(params):
        alike.setdefault((p.shape, p.dtype, p.device), []).append(i)
    for (shape, _, device), indices in alike.items():
        elements = _ELEMENTS_ON_CPU if device.type == "cpu" else _ELEMENTS
        most = max(elements // max(shape.numel(), 1), 1)
        cost = shape.numel() * min(_matrix_shape(shape, group))
        for i in range(0, len(indices), most):
            some = indices[i : i + most]
            yield Batch(some, len(some) * cost)


def _matrix_shape(shape: torch.Size, group: Mapping[str, Any]) -> tuple[int, int]:
    """Return the rows and columns of each matrix of a parameter."""
    rows, columns = shape[-2:] if group["batched"] else (shape[0], shape[1:].numel())
    if group["transposed"]:
        rows, columns = columns, rows
    return rows // group["stacked"], columns


def _scale(parameter: Tensor, group: Mapping[str, Any]) -> float:
    rows, columns = _matrix_shape(parameter.shape, group)
    if group["adjust_lr_fn"] == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


# --- checks ---


def _check_muon(options: dict[str, Any]) -> None:
    check_lr("lr", options["lr"])
    check_range("weight_decay", options["weight_decay"], 0, ends="[)")
    check_range("momentum", options["momentum"], 0, 1, ends="[)")
    check_flag("nesterov", options["nesterov"])
    check_coefficients("ns_coefficients", options["ns_coefficients"])
    check_range("eps", options["eps"], 0, ends="()")
    check_count("ns_steps", options["ns_steps"])
    scaling = options["adjust_lr_fn"]
    known = scaling is None or isinstance(scaling, str)
    if not known or scaling not in _SCALINGS:
        kind = ValueError if known else TypeError
        raise kind(f"adjust_lr_fn={scaling!r} must be 'original', 'match_rms_adamw' or None.")
    check_place(None, options["dtype"])
    check_flag("equalize_rows", options["equalize_rows"])
    for name in ("slow_momentum", "neuron_beta2", "soap_beta2"):
        if options[name] is not None:
            check_range(name, options[name], 0, 1, ends="[)")
    check_range("slow_share", options["slow_share"], 0, 1)
    check_range("update_floor", options["update_floor"], 0, ends="[)")
    check_count("stacked", options["stacked"], 1)
    check_flag("transposed", options["transposed"])
    check_flag("batched", options["batched"] or False)


def _check_adamw(options: dict[str, Any], prefix: str = "") -> None:
    check_lr(f"{prefix}lr", options["lr"])
    check_range(f"{prefix}weight_decay", options["weight_decay"], 0, ends="[)")
    check_range(f"{prefix}eps", options["eps"], 0, ends="[)")
    check_betas(f"{prefix}betas", options["betas"])


def _check_matrices(group: dict[str, Any]) -> None:
    """Check that the parameters of a group are matrices."""
    for parameter in group["params"]:
        p = parameter[1] if isinstance(parameter, tuple) and len(parameter) == 2 else parameter
        if not isinstance(p, Tensor):
            continue  # PyTorch names it
        plain = p.ndim == 2 or (p.ndim > 2 + (group["batched"] is None) and not group["transposed"])
        fits = p.ndim == 3 if group["batched"] else plain
        outputs = int(group["transposed"]) - (2 if group["batched"] else 0)
        if not fits or not p.is_floating_point() or p.shape[outputs] % group["stacked"]:
            raise ValueError(
                f"params contains a parameter of shape {tuple(p.shape)} and {p.dtype} that is not "
                f"a matrix (stacked={group['stacked']}, batched={group['batched']}): pass the "
                "model, Muon(model, ...), or muon_groups(model), which know the layouts of "
                "parameters and leave others to AdamW."
            )


def _check_whole(params: Sequence[Tensor], option: str) -> None:
    if any(hasattr(p, "device_mesh") for p in params):
        raise ValueError(
            f"{option} whole matrices, and the parameters are sharded: use DDP, or omit it."
        )
