"""Schedule-free SGD and AdamW.

Defazio et al., "The Road Less Scheduled", NeurIPS 2024, https://arxiv.org/abs/2405.15682. Names and
defaults follow the package `schedulefree`, and so do the results if all parameters have a gradient
in every step. The package counts steps by group.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from composable._support.checks import check_count, check_range, parameters_of
from composable.optim.wrapping import BaseOptimizer, check_betas, check_lr


class ScheduleFree(BaseOptimizer):
    """What both schedule-free optimizers share.

    A parameter holds the training weights $y$, and `state[parameter]["z"]` the base weights $z$.
    The model is evaluated with their average $x$: see `composable.functional.schedule_free_step`.
    The `Trainer` evaluates, predicts and saves weights for inference with the average. In your own
    loop, call `eval()` before and `train()` after.
    """

    _moments: tuple[str, ...] = ()

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        params = parameters_of(params)
        counts = {"k": 0, "weight_sum": 0.0, "lr_max": -1.0, "scheduled_lr": 0.0}
        super().__init__(params, {**defaults, **counts, "train_mode": True})

    def complete(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return a new group, and check its options."""
        self._check({**self.defaults, **group})
        return group

    @torch.no_grad()
    def eval(self) -> None:
        """Set the parameters to the average, to evaluate or to save them for inference."""
        for group in self.param_groups:
            if not group["train_mode"]:
                continue
            group["train_mode"] = False
            for p in self._started(group):  # one by one, to need the memory of one parameter only
                (average,) = self._averages([p], group)
                self.state[p]["y"] = p.detach().clone()
                p.copy_(average)

    @torch.no_grad()
    def train(self) -> None:
        """Restore the training weights, bit for bit, after `eval()`."""
        for group in self.param_groups:
            if group["train_mode"]:
                continue
            group["train_mode"] = True
            for p in self._started(group):
                state = self.state[p]
                # A state that the package has saved has no copy.
                saved = state.pop("y", None)
                p.copy_(p.lerp(state["z"], 1 - self._momentum(group)) if saved is None else saved)

    @torch.no_grad()
    def restart_average(self) -> None:
        """Start the average again from the current weights, such as others that were loaded."""
        for group in self.param_groups:
            group["train_mode"], group["weight_sum"] = True, 0.0
            for p in self._started(group):
                self.state[p].pop("y", None)
                self.state[p] |= {"z": p.detach().clone(), "weight_sum": 0.0}

    @torch.no_grad()
    def averaged_weights(self) -> dict[Tensor, Tensor]:
        """Return the average by parameter; parameters that have taken no step are omitted.

        Example:
            >>> weight = torch.ones(1, requires_grad=True)
            >>> optimizer = SGDScheduleFree([weight], lr=0.5)
            >>> for _ in range(2):
            ...     weight.grad = torch.ones(1)
            ...     optimizer.step()
            >>> weight.data, optimizer.averaged_weights()[weight]
            (tensor([0.2250]), tensor([0.2500]))
        """
        averages: dict[Tensor, Tensor] = {}
        for group in self.param_groups:
            params = self._started(group)
            new = self._averages(params, group) if group["train_mode"] else params
            averages.update(zip(params, new, strict=True))
        return averages

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters.

        Args:
            closure: A function that computes the loss and the gradients again, and returns the
                loss.

        Raises:
            RuntimeError: The optimizer is in evaluation mode, or a gradient is sparse.
        """
        if not all(group["train_mode"] for group in self.param_groups):
            raise RuntimeError(
                f"{type(self).__name__} is in evaluation mode: call optimizer.train() before "
                "training continues."
            )
        return super().step(closure)

    def step_group(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Update the parameters of a group; without one that has a gradient, count the step."""
        last, total = group["k"], group["weight_sum"]  # the package saves no others
        lr = _advance(group)
        alike: dict[tuple[int, float], list[Tensor]] = {}
        for p in params:
            state = self.state[p]
            if "z" not in state:
                state |= {"z": p.detach().clone(), "step": 0, "weight_sum": 0.0}
                state |= {name: torch.zeros_like(p) for name in self._moments}
            step = state["step"] = state.get("step", last) + 1
            weight = _weight(step, group)
            own = state["weight_sum"] = state.get("weight_sum", total) + weight
            alike.setdefault((step, weight / own if own else 0.0), []).append(p)
        for (step, weight), some in alike.items():  # one, unless some had no gradients
            y, z = _real(some), _real([self.state[p]["z"] for p in some])
            updates = self._updates(some, group, step)
            if group["weight_decay"]:
                torch._foreach_add_(updates, y, alpha=group["weight_decay"])
            # y' without x: the equations of schedule_free_step.
            torch._foreach_lerp_(y, z, weight)
            torch._foreach_add_(y, updates, alpha=lr * (self._momentum(group) * (1 - weight) - 1))
            torch._foreach_sub_(z, updates, alpha=lr)

    def _started(self, group: dict[str, Any]) -> list[Tensor]:
        return [p for p in group["params"] if "z" in self.state.get(p, ())]

    def _averages(self, params: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        if not params:
            return []
        z = [self.state[p]["z"] for p in params]
        return list(torch._foreach_lerp(params, z, 1 - 1 / self._momentum(group)))

    def _momentum(self, group: dict[str, Any]) -> float:
        raise NotImplementedError

    def _updates(self, params: list[Tensor], group: dict[str, Any], step: int) -> list[Tensor]:
        raise NotImplementedError

    def _check(self, options: dict[str, Any]) -> None:
        check_lr("lr", options["lr"])
        check_count("warmup_steps", options["warmup_steps"])
        for name in ("weight_decay", "r", "weight_lr_power"):
            check_range(name, options[name], 0, ends="[)")


class SGDScheduleFree(ScheduleFree):
    r"""Schedule-free SGD.

    In step $t$, with the gradient $g$ at $y$:

    $$z' = z - \gamma_t (g + \lambda y), \qquad x' = (1 - c_t)\, x + c_t z', \qquad
    y' = (1 - \beta)\, z' + \beta x', \qquad
    c_t = \frac{t^r \hat\gamma_t^{\,p}}{\sum_{s \le t} s^r \hat\gamma_s^{\,p}}$$

    with $\hat\gamma_t$ the largest learning rate so far; $t$ counts the steps in which a parameter
    has a gradient. The learning rate rises linearly in the first `warmup_steps` steps and is
    constant afterwards.

    Args:
        params: The parameters, or groups of them.
        lr: The learning rate $\gamma$: 10 to 50 times the rate for SGD with momentum.
        momentum: The interpolation $\beta$, in (0, 1].
        weight_decay: The weight decay $\lambda$ at $y$.
        warmup_steps: The number of steps of the warm-up.
        r: The power of the step in the weights of the average.
        weight_lr_power: The power $p$ of the learning rate in the weights of the average.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Example:
        >>> weight = torch.ones(1, requires_grad=True)
        >>> optimizer = SGDScheduleFree([weight], lr=0.5)
        >>> weight.grad = torch.ones(1)
        >>> optimizer.step()
        >>> weight.item()
        0.5
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "weight_decay": weight_decay,
                "warmup_steps": warmup_steps,
                "r": r,
                "weight_lr_power": weight_lr_power,
            },
        )

    def _momentum(self, group: dict[str, Any]) -> float:
        return float(group["momentum"])

    def _updates(self, params: list[Tensor], group: dict[str, Any], step: int) -> list[Tensor]:
        return [grad.clone() for grad in _gradients(params)]

    def _check(self, options: dict[str, Any]) -> None:
        super()._check(options)
        check_range("momentum", options["momentum"], 0, 1, ends="(]")


class AdamWScheduleFree(ScheduleFree):
    r"""Schedule-free AdamW.

    The steps are as in `SGDScheduleFree`, with the gradient divided by the root of the running mean
    of its square, as in Adam:

    $$v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
    z' = z - \gamma_t \left(\frac{g}{\sqrt{v / (1 - \beta_2^t)} + \epsilon} + \lambda y\right)$$

    Args:
        params: The parameters, or groups of them.
        lr: The learning rate $\gamma$: 1 to 10 times the rate for AdamW with a schedule.
        betas: The interpolation $\beta$ in (0, 1], and $\beta_2$ in [0, 1).
        eps: The term $\epsilon$ of the denominator.
        weight_decay: The weight decay $\lambda$ at $y$.
        warmup_steps: The number of steps of the warm-up.
        r: The power of the step in the weights of the average.
        weight_lr_power: The power $p$ of the learning rate in the weights of the average.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Example:
        >>> weight = torch.ones(1, requires_grad=True)
        >>> optimizer = AdamWScheduleFree([weight], lr=0.5)
        >>> weight.grad = torch.full((1,), 4.0)
        >>> optimizer.step()
        >>> weight.item()
        0.5
    """

    _moments = ("exp_avg_sq",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 0.0025,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "warmup_steps": warmup_steps,
                "r": r,
                "weight_lr_power": weight_lr_power,
            },
        )

    def _momentum(self, group: dict[str, Any]) -> float:
        return float(group["betas"][0])

    def _updates(self, params: list[Tensor], group: dict[str, Any], step: int) -> list[Tensor]:
        grads, beta = _gradients(params), group["betas"][1]
        squares = _real([self.state[p]["exp_avg_sq"] for p in params])
        torch._foreach_mul_(squares, beta)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - beta)
        roots = torch._foreach_div(squares, 1 - beta**step)
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        if any(root.device.type != "cpu" for root in roots):
            return list(torch._foreach_div(grads, roots))
        for grad, root in zip(grads, roots, strict=True):
            torch.div(grad, root, out=root)  # on the CPU, new memory takes longer than a division
        return list(roots)

    def _check(self, options: dict[str, Any]) -> None:
        super()._check(options)
        check_range("eps", options["eps"], 0, ends="[)")
        check_betas("betas", options["betas"], first="(]")


def _advance(group: dict[str, Any]) -> float:
    """Count a step of a group, as the package does; return its learning rate."""
    group["k"] = k = group["k"] + 1
    warmup = group["warmup_steps"]
    lr = float(group["lr"]) * (k / warmup if k <= warmup else 1.0)
    group["scheduled_lr"] = lr
    group["lr_max"] = max(lr, group["lr_max"])
    group["weight_sum"] += _weight(k, group)
    return lr


def _weight(step: int, group: dict[str, Any]) -> float:
    """Return the weight of a step in the average."""
    return float(step ** group["r"] * group["lr_max"] ** group["weight_lr_power"])


def _gradients(params: list[Tensor]) -> list[Tensor]:
    return _real([p.grad for p in params if p.grad is not None])


def _real(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
