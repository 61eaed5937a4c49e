"""Two encoders and a contrastive loss with a learned temperature: that of parts is another loss."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from composable import Event, State
from composable._support.dtensors import whole
from composable.algorithms import WholeLoss
from tests.support.runs import make_trainer

KEYS: dict[str, Any] = {"input_key": (0, 1), "target_key": 2}


class TwoEncoders(nn.Module):
    """Two encoders of pairs of vectors."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 4))
        self.right = nn.Linear(5, 4)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.arange(1, parameter.numel() + 1).sin().view_as(parameter))

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Encode both."""
        return normalize(self.left(left)), normalize(self.right(right))


class Contrast(nn.Module):
    """The InfoNCE of pairs: with a learned temperature, and a count of its calls."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))  # FSDP2 shards no scalar
        self.register_buffer("calls", torch.tensor(0))
        self.noise = noise

    def forward(self, outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        """Compare each left vector with all right ones, but for those of its own class."""
        if self.training:
            self.calls += 1  # type: ignore[operator, assignment]
        left, right = outputs
        logits = self.temperature.exp() * left @ right.T
        logits = logits + self.noise * torch.randn_like(logits)
        alike = (targets[:, None] == targets) & ~torch.eye(len(targets), dtype=torch.bool)
        return cross_entropy(logits.masked_fill(alike, -1e4), torch.arange(len(left)))


def pairs(*sizes: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return batches of pairs, each with a class."""
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(sum(sizes), 6, generator=generator)
    right = torch.randn(sum(sizes), 5, generator=generator)
    classes = torch.arange(sum(sizes)) % 7
    columns = (torch.split(one, list(sizes)) for one in (left, right, classes))
    return list(zip(*columns, strict=True))


def trained_pair(
    *sizes: int, dropout: float = 0.0, noise: float = 0.0, **options: Any
) -> dict[str, Any]:
    """Train two encoders, and return losses, gradients of the last step and weights, as lists."""
    losses: list[float] = []
    gradients: dict[str, list[float]] = {}

    def keep(event: Event, state: State, logger: Any) -> None:
        if event is Event.AFTER_TRAIN_BATCH:
            losses.append(float(state.loss))  # type: ignore[arg-type]
            gradients.update({n: numbers(g) for n, g in state.current_gradients().items()})

    loss = Contrast(noise)
    trainer = make_trainer(
        TwoEncoders(dropout),
        pairs(*(sizes or (13, 13))),
        loss_fn=loss,
        callbacks=keep,
        **{"max_duration": "2ep", **KEYS, **options},
    )
    trainer.fit()
    state = trainer.state
    weights = {name: numbers(one) for name, one in state.named_parameters()}
    calls = int(state.loss_module.calls)  # type: ignore[union-attr, arg-type]
    return {"losses": losses, "gradients": gradients, "weights": weights, "calls": calls}


def trained_with(options: dict[str, Any], algorithms: Any = ()) -> dict[str, Any]:
    """Train with the loss of the whole of unequal batches; processes import this function."""
    return trained_pair(10, 3, algorithms=[WholeLoss(), *algorithms], **options)


def numbers(tensor: Tensor) -> list[float]:
    """Return a tensor, or the parts of it that processes have, as numbers."""
    return whole(tensor).detach().flatten().tolist()  # type: ignore[no-any-return]
