"""Batch-size warm-up: small batches first, large ones as the gradient gets noisier.

Smith, Kindermans, Ying and Le, "Don't Decay the Learning Rate, Increase the Batch Size", ICLR 2018,
https://arxiv.org/abs/1711.00489
"""

from composable._support.checks import check_count, check_order


def warmed_up_batch_size(
    samples: int,
    *,
    duration: int,
    min_batch_size: int,
    max_batch_size: int,
    step_size: int = 1,
) -> int:
    r"""Return the batch size after a number of examples: it grows linearly, in steps.

    $$b = b_0 + s \left\lfloor \frac{n \, (b_1 - b_0)}{d \, s} \right\rfloor$$

    for $n < d$ examples, and $b_1$ afterwards.

    Args:
        samples: Number $n$ of examples that the run trained on, 0 or more.
        duration: Number $d$ of examples of the warm-up. 0 for no warm-up.
        min_batch_size: Batch size $b_0$ at the start, at least 1.
        max_batch_size: Batch size $b_1$ after the warm-up, at least `min_batch_size`.
        step_size: Number $s$ of examples by which the batch grows at a time, at least 1.

    Returns:
        The batch size, in `[min_batch_size, max_batch_size]`.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: An argument is out of range.

    Example:
        >>> grow = {"duration": 80, "min_batch_size": 8, "max_batch_size": 32, "step_size": 8}
        >>> [warmed_up_batch_size(samples, **grow) for samples in range(0, 100, 20)]
        [8, 8, 16, 24, 32]
    """
    check_count("samples", samples)
    check_count("duration", duration)
    check_count("min_batch_size", min_batch_size, 1)
    check_count("max_batch_size", max_batch_size, 1)
    check_order("min_batch_size", min_batch_size, "max_batch_size", max_batch_size)
    check_count("step_size", step_size, 1)
    if samples >= duration:
        return max_batch_size
    steps = samples * (max_batch_size - min_batch_size) // (duration * step_size)
    return min_batch_size + step_size * steps
