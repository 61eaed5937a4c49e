"""Recipes for small language models."""

from functools import partial
from typing import Any

import torch
from attrs import evolve

from composable._support.checks import check_count, check_order, check_range
from composable.algorithms import (
    Alibi,
    GradientClipping,
    NGramEmbeddings,
    Rotary,
    SeqLengthWarmup,
)
from composable.optim import RowAdagrad, by_role, linear
from composable.recipes._muon import muon_factory
from composable.recipes.recipe import Recipe


def small_gpt(
    *,
    lr: float = 16e-3,
    adamw_lr: float = 6e-3,
    momentum: float = 0.85,
    weight_decay: float = 0.1,
    max_sequence_length: int = 256,
    sequence_length: int = 64,
    dtype: torch.dtype = torch.float32,
) -> Recipe:
    """Return ALiBi, short training sequences and Muon, for a small causal language model.

    Attention biases replace the position embeddings, so that the model can be trained on the first
    `sequence_length` tokens of each sequence and evaluated on all of them. Load more sequences in a
    batch, such as four times as many if they are cut to a quarter: the batch then has as many
    tokens as before, from more places of the text, and attention costs less. Muon updates the
    hidden matrices, and AdamW all other parameters. Gradients are clipped. The learning rates rise
    over the first 5 % of training and fall linearly to 0.

    `composable.functional.alibi` must support the attention of the model; `register_alibi` adds a
    class.

    Args:
        lr: The learning rate of the hidden matrices, with updates of AdamW's size.
        adamw_lr: The learning rate of the other parameters.
        momentum: The momentum of Muon, in [0, 1). Longer training takes higher values.
        weight_decay: The decoupled weight decay of all parameters.
        max_sequence_length: The number of tokens of a sequence in evaluation, at least 1.
        sequence_length: The number of tokens of a sequence in training, at least 1.
        dtype: The dtype in which Muon orthogonalizes. `torch.bfloat16` is faster on GPUs, and on
            processors with matrix units for it.

    Returns:
        The algorithms, the optimizer and the schedule.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Sources: Press et al., "Train Short, Test Long", ICLR 2022, https://arxiv.org/abs/2108.12409;
    Jordan et al., "Muon", 2024, https://kellerjordan.github.io/posts/muon/.

    Example:
        >>> from composable.recipes import small_gpt
        >>> small_gpt(max_sequence_length=1024).algorithms[0]
        Alibi(max_sequence_length=1024, train_sequence_length_scaling=1.0)
    """
    check_count("max_sequence_length", max_sequence_length, 1)
    check_count("sequence_length", sequence_length, 1)
    positions = Alibi(max_sequence_length, train_sequence_length_scaling=1.0)
    short = SeqLengthWarmup(
        duration=0.0, min_seq_length=sequence_length, max_seq_length=sequence_length
    )
    optimizer = _muon(
        lr=lr, adamw_lr=adamw_lr, momentum=momentum, weight_decay=weight_decay, dtype=dtype
    )
    return _recipe([positions, short], optimizer)


def small_gpt_rotary(
    *,
    lr: float = 16e-3,
    adamw_lr: float = 6e-3,
    momentum: float = 0.85,
    weight_decay: float = 0.1,
    max_sequence_length: int = 256,
    min_sequence_length: int = 32,
    length_warmup: float = 0.6,
    dtype: torch.dtype = torch.float32,
) -> Recipe:
    """Return rotary positions, a warm-up of the sequence length and Muon, for a small GPT.

    Rotations of the queries and keys replace learned positions. Training begins on the first tokens
    of each sequence and uses all of them after `length_warmup`, so that the first steps cost less.
    The rest is as in `small_gpt`.

    `composable.functional.rotary` must support the attention of the model; `register_rotary` adds
    a class.

    Args:
        lr: The learning rate of the hidden matrices, with updates of AdamW's size.
        adamw_lr: The learning rate of the other parameters.
        momentum: The momentum of Muon, in [0, 1). Longer training takes higher values.
        weight_decay: The decoupled weight decay of all parameters.
        max_sequence_length: The number of tokens of a sequence after the warm-up of the length, at
            least `min_sequence_length`.
        min_sequence_length: The number of tokens of a sequence at the start, at least 1.
        length_warmup: The share of training in which the length grows, in [0, 1].
        dtype: The dtype in which Muon orthogonalizes, as in `small_gpt`.

    Returns:
        The algorithms, the optimizer and the schedule.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Sources: Su et al., "RoFormer", 2021, https://arxiv.org/abs/2104.09864; Li et al., "The
    Stability-Efficiency Dilemma", NeurIPS 2022, https://arxiv.org/abs/2108.06084; Jordan et al.,
    "Muon", 2024, https://kellerjordan.github.io/posts/muon/.

    Example:
        >>> from composable.recipes import small_gpt_rotary
        >>> [type(one).__name__ for one in small_gpt_rotary().algorithms]
        ['Rotary', 'SeqLengthWarmup', 'GradientClipping']
    """
    check_range("length_warmup", length_warmup, 0, 1)
    check_count("min_sequence_length", min_sequence_length, 1)
    check_count("max_sequence_length", max_sequence_length, 1)
    check_order(
        "min_sequence_length", min_sequence_length, "max_sequence_length", max_sequence_length
    )
    lengths = SeqLengthWarmup(
        duration=length_warmup,
        min_seq_length=min_sequence_length,
        max_seq_length=max_sequence_length,
    )
    optimizer = _muon(
        lr=lr, adamw_lr=adamw_lr, momentum=momentum, weight_decay=weight_decay, dtype=dtype
    )
    return _recipe([Rotary(), lengths], optimizer)


def speedrun_gpt(  # noqa: PLR0913 (each is a hyperparameter)
    *,
    lr: float = 16e-3,
    adamw_lr: float = 24e-3,
    table_lr: float = 0.1,
    momentum: float = 0.85,
    weight_decay: float = 0.0,
    n: int = 3,
    rows: int = 2**20,
    max_sequence_length: int = 256,
    sequence_length: int = 64,
    dtype: torch.dtype = torch.float32,
) -> Recipe:
    """Return n-gram embeddings, ALiBi and Muon, for a small causal language model and much text.

    A table of hashed n-grams is added to the token embedding. Its gradients are sparse and it has a
    separate optimizer, `RowAdagrad`, so that a step costs no more with a larger table. The rest is
    as in `small_gpt`: attention biases, Muon for the hidden matrices, AdamW for the other
    parameters, and clipping. The learning rates rise over the first 5 % of training and fall
    linearly to 0.

    The table takes `rows` times the width of the model numbers, many times as much as a small
    model: 403 MB with a width of 96 in float32. It serves models that see each text once: in a
    second pass over the same text, rows of rare n-grams overfit, and the recipe was worse than
    AdamW.

    `composable.functional.alibi` must support the attention of the model, and
    `composable.functional.ngram_embeddings` find its token embedding. Sparse gradients train on one
    process and with `DDP`, without `compile=True`.

    Args:
        lr: The learning rate of the hidden matrices, with updates of AdamW's size.
        adamw_lr: The learning rate of the other parameters.
        table_lr: The learning rate of the table.
        momentum: The momentum of Muon, in [0, 1). Longer training takes higher values.
        weight_decay: The decoupled weight decay of all parameters but the table.
        n: The length of the longest n-gram, at least 2.
        rows: The number of rows of the table.
        max_sequence_length: The number of tokens of a sequence in evaluation, at least 1.
        sequence_length: The number of tokens of a sequence in training, at least 1.
        dtype: The dtype in which Muon orthogonalizes, as in `small_gpt`.

    Returns:
        The algorithms, the optimizers and the schedule.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Sources: as for `small_gpt`; Huang et al., "Over-Tokenized Transformer", ICML 2025,
    https://arxiv.org/abs/2501.16975.

    Example:
        >>> from composable.recipes import speedrun_gpt
        >>> speedrun_gpt(rows=1000).algorithms[0]
        NGramEmbeddings(n=3, rows=1000, megabytes=4000.0, sparse=True, target=None)
    """
    check_range("table_lr", table_lr, 0)
    short = small_gpt(
        lr=lr,
        adamw_lr=adamw_lr,
        momentum=momentum,
        weight_decay=weight_decay,
        max_sequence_length=max_sequence_length,
        sequence_length=sequence_length,
        dtype=dtype,
    )
    tables = NGramEmbeddings(n=n, rows=rows, megabytes=4000.0, sparse=True)
    optimizer = by_role({"tables": partial(RowAdagrad, lr=table_lr)}, default=short.optimizers)
    return evolve(short, algorithms=(tables, *short.algorithms), optimizers=optimizer)


def _muon(**options: Any) -> Any:
    return muon_factory(**options, adamw_betas=(0.9, 0.99))


def _recipe(algorithms: list[Any], optimizer: Any) -> Recipe:
    """Return algorithms with clipping, an optimizer and its schedule."""
    every: list[Any] = [*algorithms, GradientClipping("norm", 1.0)]
    return Recipe(every, optimizer, linear(warmup="0.05dur"))
