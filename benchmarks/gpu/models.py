"""The models that are trained, and the text of the GPT."""

import hashlib
import re
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn

from composable.utils.reproducibility import seed_context

__all__ = ["gpt", "residual_net", "resnet50", "source_tokens"]


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    """A residual block of three convolutions (He et al., 2015)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(_conv(inputs, width, 1), nn.ReLU(), _conv(width, width, 3, stride), nn.ReLU()),
            _conv(width, 4 * width, 1),
        )
        same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else _conv(inputs, 4 * width, 1, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the block."""
        return torch.relu(self.body(inputs) + self.shortcut(inputs))


def resnet50(width: int = 64) -> nn.Module:
    """Build a ResNet-50, with 25.6 million parameters at the width of 64."""
    return _resnet(width, (3, 4, 6, 3), 1000, nn.MaxPool2d(3, 2, 1))


def residual_net(seed: int, width: int) -> nn.Module:
    """Build a network of two residual blocks, with the weights of a seed.

    All its operations have deterministic algorithms.
    """
    with seed_context(seed):
        return _resnet(width, (1, 1), 10, nn.Identity())


def _resnet(width: int, stages: tuple[int, ...], classes: int, pool: nn.Module) -> nn.Module:
    blocks: list[nn.Module] = []
    inputs = width
    for stage, count in enumerate(stages):
        for index in range(count):
            stride = 2 if stage and not index else 1
            blocks.append(Bottleneck(inputs, width << stage, stride))
            inputs = 4 * width << stage
    return nn.Sequential(
        *(_conv(3, width, 7, 2), nn.ReLU(), pool, *blocks),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)),
    )


def gpt(*, tiny: bool) -> tuple[nn.Module, int]:
    """Build a GPT of the size of GPT-2, whose head is its embedding; with its vocabulary."""
    from examples.small_gpt import Sizes, small_gpt  # it needs tokenizers

    sizes = Sizes(
        vocabulary=64 if tiny else 50_304,  # a multiple of 64, which matrix units prefer
        depth=1 if tiny else 12,
        width=32 if tiny else 768,
        context=16 if tiny else 1024,
        positions="learned",
        initialization="gpt2",
    )
    model = small_gpt(sizes, seed=0)
    model[-1].weight = model[0].weight
    return model, sizes.vocabulary


def source_tokens(vocabulary: int, count: int) -> tuple[Tensor, str]:
    """Return the first tokens of the Python source of the installed PyTorch, and its name.

    A token is the rank of a word, or of a character between words; the rarest have the last one.
    """
    from examples.small_gpt import files

    folder = Path(torch.__file__).parent
    pieces: list[str] = []
    for path in files(folder):
        pieces += re.findall(r"\w+|\W", path.read_text(encoding="utf-8"))
        if len(pieces) >= count:
            break
    if len(pieces) < count:
        raise ValueError(f"the source in {folder} has {len(pieces)} tokens, fewer than {count}")
    pieces = pieces[:count]
    ranks = {piece: rank for rank, (piece, _) in enumerate(Counter(pieces).most_common())}
    tokens = torch.tensor([min(ranks[piece], vocabulary - 1) for piece in pieces])
    digest = hashlib.sha256("".join(pieces).encode()).hexdigest()[:16]
    return tokens, f"source of torch {torch.__version__}, {digest}"
