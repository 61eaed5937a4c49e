"""Hypothesis strategies for batches and models, events and seeds.

Hypothesis draws only shapes and seeds, and the values are generated from the seeds. This is many
times faster than drawing values, and single values rarely matter.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from composable._support.checks import check_count, check_size
from composable._support.extras import needs
from composable.core.event import Event
from composable.testing.problems import CLASSES, SHAPE, built, image_batch

_ADVICE = "check_algorithm and check_function do not need it."
with needs("a strategy of composable.testing", "testing", _ADVICE):
    from hypothesis import register_random
    from hypothesis import strategies as st

__all__ = [
    "batches",
    "events",
    "models",
    "register_torch",
    "seeds",
]


class _TorchRandom:
    """PyTorch's global generator with the interface that Hypothesis requires."""

    def seed(self, value: int) -> None:
        torch.default_generator.manual_seed(value)

    def getstate(self) -> Tensor:
        return torch.default_generator.get_state()

    def setstate(self, state: Tensor) -> None:
        torch.default_generator.set_state(state)


_torch_random = _TorchRandom()  # kept alive here: Hypothesis holds only a weak reference


def register_torch() -> None:
    """Let Hypothesis seed PyTorch's global generator, as it does for Python and NumPy.

    Failures of tests that draw from it, for example by dropout, are then reproducible. Call this
    once, in `conftest.py`: of two registrations, one would undo the seeding of the other.
    """
    register_random(_torch_random)


def seeds() -> st.SearchStrategy[int]:
    """Return a strategy for the seeds of a `Key` or a `Trainer`, from 0 to 2**64 - 1."""
    return st.integers(0, 2**64 - 1)


def events() -> st.SearchStrategy[Event]:
    """Return a strategy for events."""
    return st.sampled_from(list(Event))


def batches(
    *,
    shape: tuple[int, ...] = SHAPE,
    classes: int = CLASSES,
    min_size: int = 1,
    max_size: int = 8,
    dtype: torch.dtype = torch.float32,
) -> st.SearchStrategy[tuple[Tensor, Tensor]]:
    """Return a strategy for batches of a classification problem.

    Args:
        shape: The shape of one input.
        classes: The number of classes.
        min_size: The minimum number of examples; 0 to include empty batches.
        max_size: The maximum number of examples.
        dtype: The dtype of the inputs.

    Returns:
        Pairs of inputs `[size, *shape]` from a normal distribution, and class indices `[size]`.

    Example:
        >>> from hypothesis import given
        >>> from composable.testing import batches
        >>> @given(batches(shape=(3, 4, 4)))
        ... def test_flipping_twice_is_not_flipping(batch):
        ...     images, _ = batch
        ...     assert torch.equal(images.flip(-1).flip(-1), images)
        >>> test_flipping_twice_is_not_flipping()
    """
    return st.builds(
        lambda size, seed: image_batch(size, shape=shape, classes=classes, dtype=dtype, seed=seed),
        st.integers(min_size, max_size),
        seeds(),
    )


def models(
    *, shape: tuple[int, ...] = SHAPE, classes: int = CLASSES
) -> st.SearchStrategy[nn.Module]:
    """Return a strategy for small image classifiers, with and without norms and dropout.

    Args:
        shape: The shape of one input: channels, height and width, the last two at least 4.
        classes: The number of outputs.

    Returns:
        Modules whose weights depend on a drawn seed; the global generators are restored.

    Raises:
        ValueError: `shape` does not have three dimensions, or the image is too small.
    """
    check_size("shape", shape)
    check_count("classes", classes, 1)
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(
            f"shape={shape!r} must be (channels, height, width), with height and width at least 4."
        )
    channels, pixels = shape[0], shape[0] * shape[1] * shape[2]

    def dense() -> nn.Module:
        hidden = nn.Linear(pixels, 8)
        return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(8, classes))

    def convolutional(norm: Callable[[int], nn.Module], dropout: float) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1),
            norm(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.Dropout(dropout),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, classes),
        )

    norms = st.sampled_from([nn.BatchNorm2d, nn.Identity, partial(nn.GroupNorm, 2)])
    dropouts = st.sampled_from([0.0, 0.3])
    return st.one_of(
        st.builds(lambda seed: built(dense, seed=seed), seeds()),
        st.builds(
            lambda seed, norm, p: built(lambda: convolutional(norm, p), seed=seed),
            seeds(),
            norms,
            dropouts,
        ),
    )
