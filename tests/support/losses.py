"""Losses of class indices `[batch]` and outputs `[batch, CLASSES]`: those of torch, and users'."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 4
WEIGHTS = torch.tensor([1.0, 10.0, 0.5, 3.0], dtype=torch.float64)
LAST_IS_RARE = torch.tensor([1.0, 2.0, 0.5, 0.0], dtype=torch.float64)


def one_hot(targets: Tensor, outputs: Tensor) -> Tensor:
    return F.one_hot(targets, CLASSES).to(outputs.dtype)


def sign(targets: Tensor, outputs: Tensor) -> Tensor:
    return (targets % 2 * 2 - 1).to(outputs.dtype)


def of_dtype(make: Callable[[Tensor], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """Keep the class weights of a loss in each dtype of outputs, on each device: one tensor."""
    made: dict[tuple[torch.dtype, torch.device], Any] = {}

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        key = outputs.dtype, outputs.device
        if key not in made:
            made[key] = make(WEIGHTS.to(outputs))
        return made[key](outputs, targets)  # type: ignore[no-any-return]

    return loss


def on_one_hot(module: nn.Module, *, squashed: Callable[[Tensor], Tensor] = lambda o: o) -> Any:
    return lambda outputs, targets: module(squashed(outputs), one_hot(targets, outputs))


def on_first(module: nn.Module) -> Any:
    return lambda outputs, targets: module(outputs[:, 0], sign(targets, outputs))


def on_parts(module: nn.Module) -> Any:
    return lambda outputs, targets: module(outputs[:, :2], outputs[:, 2:], outputs[:, 1:3])


def connectionist(reduction: str) -> Any:
    module = nn.CTCLoss(reduction=reduction, zero_infinity=True)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        steps = torch.stack([outputs, outputs.roll(1, 1), 2 * outputs]).log_softmax(-1)
        lengths = torch.full_like(targets, 3), torch.ones_like(targets)
        return module(steps, 1 + targets[:, None] % 3, *lengths)  # type: ignore[no-any-return]

    return loss


def adaptive() -> Any:
    module = nn.AdaptiveLogSoftmaxWithLoss(CLASSES, CLASSES, [2]).double().requires_grad_(False)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.arange(parameter.numel()).sin().view_as(parameter))
    return lambda outputs, targets: module.to(outputs.device)(outputs.double(), targets).loss


OF_TORCH: dict[str, Any] = {
    f"{name}, {reduction}": make(reduction)
    for reduction in ("mean", "sum")
    for name, make in {
        "CrossEntropyLoss": lambda r: nn.CrossEntropyLoss(reduction=r),
        "CrossEntropyLoss, weights": lambda r: of_dtype(
            lambda w: nn.CrossEntropyLoss(w, reduction=r, label_smoothing=0.1)
        ),
        "CrossEntropyLoss, ignored": lambda r: nn.CrossEntropyLoss(ignore_index=1, reduction=r),
        "CrossEntropyLoss, shares": lambda r: on_one_hot(nn.CrossEntropyLoss(reduction=r)),
        "NLLLoss": lambda r: of_dtype(
            lambda w: lambda o, t: nn.NLLLoss(w, reduction=r)(o.log_softmax(1), t)
        ),
        "BCELoss": lambda r: on_one_hot(nn.BCELoss(reduction=r), squashed=torch.sigmoid),
        "BCEWithLogitsLoss": lambda r: of_dtype(
            lambda w: on_one_hot(nn.BCEWithLogitsLoss(pos_weight=w, reduction=r))
        ),
        "MSELoss": lambda r: on_one_hot(nn.MSELoss(reduction=r)),
        "L1Loss": lambda r: on_one_hot(nn.L1Loss(reduction=r)),
        "SmoothL1Loss": lambda r: on_one_hot(nn.SmoothL1Loss(reduction=r)),
        "HuberLoss": lambda r: on_one_hot(nn.HuberLoss(reduction=r)),
        "KLDivLoss": lambda r: on_one_hot(
            nn.KLDivLoss(reduction="batchmean" if r == "mean" else r),
            squashed=partial(torch.log_softmax, dim=1),
        ),
        "PoissonNLLLoss": lambda r: on_one_hot(nn.PoissonNLLLoss(reduction=r)),
        "GaussianNLLLoss": lambda r: (
            lambda o, t: nn.GaussianNLLLoss(reduction=r)(
                o[:, :2], one_hot(t, o)[:, :2], o[:, 2:].exp()
            )
        ),
        "SoftMarginLoss": lambda r: on_first(nn.SoftMarginLoss(reduction=r)),
        "HingeEmbeddingLoss": lambda r: on_first(nn.HingeEmbeddingLoss(reduction=r)),
        "MarginRankingLoss": lambda r: (
            lambda o, t: nn.MarginRankingLoss(0.5, reduction=r)(o[:, 0], o[:, 1], sign(t, o))
        ),
        "CosineEmbeddingLoss": lambda r: (
            lambda o, t: nn.CosineEmbeddingLoss(reduction=r)(o[:, :2], o[:, 2:], sign(t, o))
        ),
        "TripletMarginLoss": lambda r: on_parts(nn.TripletMarginLoss(reduction=r)),
        "TripletMarginWithDistanceLoss": lambda r: on_parts(
            nn.TripletMarginWithDistanceLoss(reduction=r)
        ),
        "MultiMarginLoss": lambda r: nn.MultiMarginLoss(reduction=r),
        "MultiLabelMarginLoss": lambda r: (
            lambda o, t: nn.MultiLabelMarginLoss(reduction=r)(
                o, F.pad(t[:, None], (0, CLASSES - 1), value=-1)
            )
        ),
        "MultiLabelSoftMarginLoss": lambda r: on_one_hot(nn.MultiLabelSoftMarginLoss(reduction=r)),
        "CTCLoss": connectionist,
    }.items()
} | {"AdaptiveLogSoftmaxWithLoss": adaptive()}


def masked(outputs: Tensor, targets: Tensor) -> Tensor:
    kept = (targets != 1).to(outputs.dtype)
    return (F.cross_entropy(outputs, targets, reduction="none") * kept).sum() / kept.sum()


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs, targets, reduction="none")
    return ((1 - (-losses).exp()) ** 2 * losses).mean()


def focal_by_positives(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs, targets, reduction="none")
    return losses.sum() / (targets > 0).sum().clamp(min=1)


def by_rare(outputs: Tensor, targets: Tensor) -> Tensor:
    """Divide the sum over all examples by a count that is 0 for some parts."""
    losses = F.cross_entropy(outputs, targets, reduction="none")
    return 2 + 0.5 * (losses.square().sum() / (targets == 3).sum())


def by_rare_ones(outputs: Tensor, targets: Tensor) -> Tensor:
    losses, loss = F.cross_entropy(outputs, targets, reduction="none"), 2
    for rare in (1, 3):
        loss = loss + losses.sum() / (targets == rare).to(outputs.dtype).sum()
    return loss + losses.mean()


def by_class(outputs: Tensor, targets: Tensor) -> Tensor:
    losses, loss = F.cross_entropy(outputs, targets, reduction="none"), torch.zeros(())
    for label in range(CLASSES):
        kept = (targets == label).to(outputs.dtype)
        loss = loss + (losses * kept).sum() / kept.sum()
    return loss


def by_known_class(outputs: Tensor, targets: Tensor, known: Callable[[Tensor], Any]) -> Tensor:
    losses, loss = F.cross_entropy(outputs, targets, reduction="none"), 0 * outputs.sum()
    for label in range(CLASSES):
        selected = losses[targets == label]
        if known(selected):
            loss = loss + selected.mean()
    return loss


def by_unique_class(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs, targets, reduction="none")
    return sum(losses[targets == label].mean() for label in targets.unique())


def by_number(count: Callable[[Tensor], Any]) -> Any:
    """Divide a sum by a count of targets that is read as a number."""
    return lambda outputs, targets: (
        F.cross_entropy(outputs, targets, reduction="sum") / max(1, count(targets == 3))
    )


def checked(outputs: Tensor, targets: Tensor) -> Tensor:
    loss = F.cross_entropy(outputs, targets) + 0.5 * outputs.square().mean()
    if loss.isnan():
        raise ValueError("the loss is NaN.")
    return loss


def root_of_mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, one_hot(targets, outputs)).sqrt()


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    shares, truth = outputs.softmax(1), one_hot(targets, outputs)
    return 1 - 2 * (shares * truth).sum() / (shares.sum() + truth.sum())


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    rows = F.normalize(outputs)
    return F.cross_entropy(
        5 * rows @ rows.roll(1, 1).T, torch.arange(len(rows), device=rows.device)
    )


def clip(outputs: Tensor, targets: Tensor) -> Tensor:
    scores = 5 * F.normalize(outputs[:, :2]) @ F.normalize(outputs[:, 2:]).T
    labels = torch.arange(len(scores), device=scores.device)
    return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2


def barlow_twins(outputs: Tensor, targets: Tensor) -> Tensor:
    left, right = (half / (half.norm(dim=0) + 0.1) for half in outputs.chunk(2, 1))
    return F.mse_loss(left.T @ right, torch.eye(2).to(outputs), reduction="sum")


def balanced(outputs: Tensor, targets: Tensor) -> Tensor:
    counts = torch.bincount(targets, minlength=CLASSES)
    return F.cross_entropy(outputs, targets, weight=1 / (counts + 1).to(outputs.dtype))


def against_the_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs - outputs.mean(0), one_hot(targets, outputs))


def log_cosh(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - one_hot(targets, outputs)).cosh().log().mean()


def quantile(outputs: Tensor, targets: Tensor) -> Tensor:
    errors = one_hot(targets, outputs) - outputs
    return torch.maximum(0.9 * errors, -0.1 * errors).mean()


def distilled(outputs: Tensor, targets: Tensor) -> Tensor:
    taught = one_hot(targets, outputs).softmax(1)
    soft = F.kl_div(outputs.log_softmax(1), taught, reduction="batchmean")
    return 0.3 * soft + 0.7 * F.mse_loss(outputs, taught)


def two_tasks(outputs: Tensor, targets: Tensor) -> Tensor:
    first = F.cross_entropy(outputs[:, :2], targets % 2, weight=WEIGHTS[:2].to(outputs))
    return first + F.mse_loss(outputs[:, 2], targets.to(outputs.dtype))


def with_squares(outputs: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
    loss = F.cross_entropy(outputs, targets, weight)
    loss += 0.5 * F.mse_loss(outputs, one_hot(targets, outputs))
    return 1 + loss


def two_masks(outputs: Tensor, targets: Tensor) -> Tensor:
    losses, loss = F.cross_entropy(outputs, targets, reduction="none"), torch.zeros(())
    for kept in ((targets != 1).to(outputs.dtype), (targets >= 2).long()):
        loss = loss + (losses * kept).sum() / kept.sum()
    return loss


def one_mask_twice(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs, targets, reduction="none"), outputs.square().mean(1)
    first, second = ((one * (targets < 3)).sum() / (targets < 3).sum() for one in losses)
    return first + 0.5 * second


def binary_and_squares(outputs: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    first = F.cross_entropy(outputs[:, :2], (targets > 1).long(), weight)
    return first + F.mse_loss(outputs[:, 2], targets.to(outputs.dtype))


def mean_and_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, ignore_index=1) + 0.1 * outputs.square().sum()


def selected(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")[targets != 1].mean()


def penalized(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets) + 0.1 * outputs.square().mean().sqrt()


def per_example(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = [F.cross_entropy(o, t) for o, t in zip(outputs, targets, strict=True)]
    return torch.stack(losses).mean()


def mean_of_tasks(outputs: Tensor, targets: Tensor) -> Tensor:
    tasks = [F.cross_entropy(outputs, targets), F.cross_entropy(outputs.flip(1), targets)]
    return torch.stack(tasks).mean()


def accumulated(outputs: Tensor, targets: Tensor) -> Tensor:
    loss = torch.zeros((), dtype=outputs.dtype, device=outputs.device)
    for temperature in (1.0, 2.0):
        loss += F.cross_entropy(outputs / temperature, targets) / 2
    return loss.float().to(outputs.dtype).squeeze()


def noisy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs + torch.randn_like(outputs), targets)


def rare(weights: Tensor) -> Tensor:
    return LAST_IS_RARE.to(weights)


class RunningMean(nn.Module):
    """A loss with a buffer that each call moves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(CLASSES, dtype=torch.float64))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.to(outputs.device)
        self.mean.lerp_(outputs.detach().mean(0).double(), 0.1)  # type: ignore[operator, union-attr]
        return F.cross_entropy(outputs - self.mean.to(outputs.dtype), targets)


class NaNOnce:
    """The cross entropy, but NaN at one call with gradients; without, it is compared with parts."""

    def __init__(self, call: int) -> None:
        self.call, self.calls = call, 0

    def __call__(self, outputs: Tensor, targets: Tensor, **options: Any) -> Tensor:
        self.calls += torch.is_grad_enabled()
        factor = torch.nan if torch.is_grad_enabled() and self.calls == self.call else 1.0
        return F.cross_entropy(outputs, targets, **options) * factor


RECOGNIZED: dict[str, Any] = {
    "a function": lambda o, t: F.cross_entropy(o, t),
    "twice, cast": lambda o, t: 2 * F.cross_entropy(o, t).float().to(o.dtype),
    "negative": lambda o, t: 1 - F.cross_entropy(o, t).neg(),
    "masked": masked,
    "focal": focal,
    "log cosh": log_cosh,
    "quantile": quantile,
    "sum over all": lambda o, t: (o - one_hot(t, o)).square().sum(),
    "row sums": lambda o, t: (o - one_hot(t, o)).square().sum(1).mean(),
    "distilled": distilled,
    "per example": per_example,
    "accumulated": accumulated,
    "weights and squares": of_dtype(lambda w: partial(with_squares, weight=w)),
    "rare class and squares": of_dtype(lambda w: partial(with_squares, weight=rare(w))),
    "two masks": two_masks,
    "one mask twice": one_mask_twice,
    "two tasks, weights": of_dtype(lambda w: partial(binary_and_squares, weight=w[:2])),
    "mean and sum": mean_and_sum,
    "selected": selected,
    "rare class": of_dtype(lambda w: nn.CrossEntropyLoss(rare(w))),
    "rare class, smoothed": of_dtype(lambda w: nn.CrossEntropyLoss(rare(w), label_smoothing=0.2)),
    "by a rare count": by_rare,
    "by rare counts": by_rare_ones,
    "by class": by_class,
    "checked": checked,
    "smoothed by hand": lambda o, t: (
        0.9 * F.cross_entropy(o, t) + 0.1 * F.cross_entropy(o, t, label_smoothing=0.0)
    ),
}
REFUSED: dict[str, Any] = {
    "focal by positives": focal_by_positives,
    "by a number": by_number(lambda rare: rare.sum().item()),
    "by a number of 1 or more": by_number(torch.count_nonzero),
    "by a length": by_number(lambda rare: len(rare.nonzero())),
    "by class, if any": partial(by_known_class, known=lambda selected: (selected > 0).any()),
    "by class, if it has a length": partial(by_known_class, known=len),
    "by class, if it has elements": partial(by_known_class, known=lambda one: one.numel() > 0),
    "by unique class": by_unique_class,
    "root of mean square": root_of_mean_square,
    "dice": dice,
    "contrastive": contrastive,
    "clip": clip,
    "barlow twins": barlow_twins,
    "balanced": balanced,
    "against the mean": against_the_mean,
    "two tasks": two_tasks,
    "penalized": penalized,
    "mean of tasks": mean_of_tasks,
    "sum by length": lambda o, t: F.cross_entropy(o, t, reduction="sum") / len(o),
}
WITH_EFFECTS: dict[str, Any] = {"noisy": noisy, "running mean": RunningMean()}
