"""Distillation: the divergence of a student's predictions from a teacher's.

Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015,
https://arxiv.org/abs/1503.02531. The teacher may be an earlier snapshot of the same run: Yang, Xie,
Su and Yuille, "Snapshot Distillation: Teacher-Student Optimization in One Generation", CVPR 2019,
https://arxiv.org/abs/1812.00123
"""

from jaxtyping import Float
from torch import Tensor

from composable._support.checks import check_blendable, check_tensor, checked, within
from composable._support.devices import compute_dtype
from composable._support.targets import check_class_dim, check_several_classes


@checked(temperature=within(0, ends="()"), class_dim=check_class_dim)
def distillation_loss(
    logits: Float[Tensor, "batch ..."],
    teacher_logits: Float[Tensor, "batch ..."],
    *,
    temperature: float = 1.0,
    class_dim: int = 1,
    weights: Float[Tensor, "batch ..."] | None = None,
) -> Float[Tensor, ""]:
    r"""Compute the divergence of softened predictions from a teacher's.

    $$T^2 \, \frac{\sum_i w_i \, \mathrm{KL}(p_i \,\|\, q_i)}{\sum_i w_i}, \qquad
    p = \mathrm{softmax}(z_\text{teacher} / T), \qquad q = \mathrm{softmax}(z / T)$$

    The factor $T^2$ keeps the size of the gradients. Add $\alpha$ times it to $1 - \alpha$ times
    the loss of the labels.

    Args:
        logits: Logits of the student, `[batch, classes, ...]`; -inf for masked classes.
        teacher_logits: Logits of the teacher, of the same shape. They get no gradient.
        temperature: The temperature $T$ by which logits are divided, above 0. Higher values give
            more weight to unlikely classes.
        class_dim: Dimension of the classes: 1, or -1 for `[batch, ..., classes]`.
        weights: Weights $w$ of the positions, `[batch, ...]`, 0 or more, such as 0 for padding,
            whose logits are not read, and 1 elsewhere. By default 1.

    Returns:
        The weighted mean, in the dtype of `logits`; 0 if all weights are 0. It is computed in at
        least float32.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Shapes differ, a number is out of range, or there is only one class.

    Example:
        >>> import torch
        >>> student, teacher = torch.zeros(3, 2), torch.tensor([[2.0, 0.0]] * 3)
        >>> distillation_loss(student, teacher, temperature=2.0)
        tensor(0.4438)
        >>> distillation_loss(teacher, teacher)
        tensor(0.)
    """
    check_blendable("logits", logits)
    check_blendable("teacher_logits", teacher_logits)
    if logits.ndim < 2 or logits.shape != teacher_logits.shape:
        raise ValueError(
            f"logits has shape {tuple(logits.shape)} and teacher_logits "
            f"{tuple(teacher_logits.shape)}; they must have one shape, [batch, classes, ...]. Use "
            "a teacher with the classes of the student, for the same batch."
        )
    check_several_classes("logits", logits, class_dim)
    dtype = compute_dtype(logits.dtype)
    if weights is not None:
        check_tensor("weights", weights)
        if weights.shape != (positions := logits.select(class_dim, 0).shape):
            raise ValueError(
                f"weights must have one value for each position, {tuple(positions)}, not the shape "
                f"{tuple(weights.shape)}."
            )
        # 0 times NaN is NaN, and so is its gradient.
        unread = (weights == 0).unsqueeze(class_dim)
        logits, teacher_logits = (z.masked_fill(unread, 0) for z in (logits, teacher_logits))
    log_q = (logits.to(dtype) / temperature).log_softmax(class_dim)
    log_p = (teacher_logits.detach().to(dtype) / temperature).log_softmax(class_dim)
    p = log_p.exp()
    terms = (p * (log_p - log_q)).masked_fill(p == 0, 0)  # such as masked classes
    divergence = terms.sum(class_dim) * temperature**2
    if weights is None:
        return divergence.mean().to(logits.dtype)
    weights = weights.detach().to(dtype)
    total = weights.sum()
    # Not divided by 0: 0 / 0 is NaN, and so is its gradient.
    return ((divergence * weights).sum() / (total + (total == 0))).to(logits.dtype)
