"""Seeding, deterministic algorithms, and the state of the global random number generators.

The library never draws from a global generator. Models (dropout) and datasets may do so: the
`Trainer` therefore seeds the global generators with `seed_epoch`, `seed_fetch` and `seed_step`, as
functions of the run's seed and the position in the run.
"""

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from composable._support.checks import check_count
from composable.core.key import Key, as_key, fold_in

_BLOCK = 32  # seeds are computed so many at a time


def accelerator() -> str | None:
    """Return the type of the accelerator of this machine, such as "cuda" or "mps", or None."""
    current = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if current is None else current.type


def _other_generators() -> Any:
    """Return PyTorch's module of an accelerator that is not CUDA, or None."""
    kind = accelerator()
    return None if kind in (None, "cuda") else getattr(torch, str(kind), None)


_OTHER = _other_generators()
_cuda = torch.cuda
_seed_cpu = torch.default_generator.manual_seed


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy (if it is loaded) and PyTorch.

    Args:
        seed: The seed, from 0 to 2**64 - 1. NumPy uses its lower 32 bits.

    Raises:
        ValueError: `seed` is out of range.
        TypeError: `seed` is not an integer.

    Example:
        >>> from composable.utils.reproducibility import seed_all
        >>> seed_all(17)
        >>> first = torch.rand(2)
        >>> seed_all(17)
        >>> torch.equal(torch.rand(2), first)
        True
    """
    _seed_all(Key(seed).seed)
    if torch.backends.cuda.is_built() and not _cuda.is_initialized():  # type: ignore[no-untyped-call]
        _cuda.manual_seed_all(seed)  # once CUDA is initialized


def _seed_all(seed: int) -> None:
    _seed_python(seed)
    seed_torch(seed)


def _seed_python(seed: int) -> None:
    """Seed the generators of Python, and of NumPy if it is loaded."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)


def seed_torch(seed: int) -> None:
    """Seed PyTorch's generators on every device in use."""
    # torch.manual_seed is a hundred times slower: it queues work for devices that are not in use.
    _seed_cpu(seed)
    # Empty until CUDA is initialized; a forked process inherits them, but cannot use them.
    if _cuda.default_generators and _cuda.is_initialized():  # type: ignore[no-untyped-call]
        _cuda.manual_seed_all(seed)
    if _OTHER is not None:
        getattr(_OTHER, "manual_seed_all", _OTHER.manual_seed)(seed)


def seed_epoch(seed: int | Key, epoch: int) -> None:
    """Seed the global generators for an epoch: for shuffling and for worker processes.

    Example:
        >>> from composable.utils.reproducibility import seed_epoch, seed_step
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Dropout())
        >>> for epoch in range(2):
        ...     seed_epoch(17, epoch)
        ...     for step, batch in enumerate(torch.rand(3, 8, 4), start=3 * epoch):
        ...         seed_step(17, step)
        ...         outputs = model(batch)  # the same dropout as in a Trainer with seed 17
    """
    _seed_all(epoch_seed(seed, epoch))


def epoch_seed(seed: int | Key, epoch: int) -> int:
    """Return the seed of an epoch."""
    return _seed_at(seed, "epoch", _integer("epoch", epoch))


def seed_fetch(seed: int | Key, step: int, shard: int = 0) -> None:
    """Seed the global generators for fetching the batch of a step, or a shard of it."""
    folded, shard = fetch_seed(seed, step), _integer("shard", shard)
    _seed_all(fold_in(folded, shard) if shard else folded)


def fetch_seed(seed: int | Key, step: int) -> int:
    """Return the seed for fetching the batch of a step."""
    return _seed_at(seed, "fetch", _integer("step", step))


def seed_order(seed: int | Key, step: int) -> None:
    """Seed the global generators for a sampler that draws the batch of a step during iteration."""
    _seed_all(_seed_at(seed, "order", step))


def seed_example(key: Key) -> None:
    """Seed the global CPU generators for one example of a dataset."""
    _seed_python(key.seed)
    torch.default_generator.manual_seed(key.seed)


def seed_step(seed: int | Key, step: int, microbatch: int = 0) -> None:
    """Seed PyTorch's generators for the forward pass of a step, such as its dropout."""
    number = seed.seed if type(seed) is Key else _number(seed)
    step = step if type(step) is int else _integer("step", step)
    folded = _seeds(number, "step", step // _BLOCK)[step % _BLOCK]
    own = type(microbatch) is not int or microbatch
    seed_torch(fold_in(folded, _integer("microbatch", microbatch)) if own else folded)


def _integer(name: str, value: int) -> int:
    if type(value) is not int:
        check_count(name, value)
    return int(value)


def _number(seed: int | Key) -> int:
    return as_key(seed).seed


def _seed_at(seed: int | Key, name: str, i: int) -> int:
    return _seeds(_number(seed), name, i // _BLOCK)[i % _BLOCK]


@lru_cache(maxsize=512)
def _seeds(seed: int, name: str, block: int) -> tuple[int, ...]:
    """Return the seeds of a block of steps for one kind of seeding.

    Folding one number between two training steps takes five times as long as in a row, since its
    code and data have left the cache by then.
    """
    folded = fold_in(seed, name)
    return tuple(fold_in(folded, i) for i in range(block * _BLOCK, (block + 1) * _BLOCK))


def get_random_seed() -> int:
    """Return a seed from the operating system's randomness, without using a generator."""
    return int.from_bytes(os.urandom(4), "little")


def get_rng_state() -> dict[str, Any]:
    """Return the states of the global generators of Python, NumPy (if loaded) and PyTorch.

    Example:
        >>> from composable.utils.reproducibility import get_rng_state, load_rng_state
        >>> before = get_rng_state()
        >>> first = torch.rand(2)
        >>> load_rng_state(before)
        >>> torch.equal(torch.rand(2), first)
        True
    """
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if numpy := sys.modules.get("numpy"):
        state["numpy"] = numpy.random.get_state()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    if _OTHER is not None:
        state["accelerator"] = [_OTHER.get_rng_state(i) for i in range(_OTHER.device_count())]
    return state


def load_rng_state(state: dict[str, Any]) -> None:
    """Restore the states of the global generators that `get_rng_state` returned.

    Raises:
        ValueError: `state` is not a value of `get_rng_state`, or has another number of devices.
    """
    if not isinstance(state, dict) or not {"python", "torch"} <= state.keys():
        raise ValueError(f"state={state!r} must be a value of get_rng_state().")
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state and (numpy := sys.modules.get("numpy")):
        numpy.random.set_state(state["numpy"])
    for name, module in (("cuda", torch.cuda), ("accelerator", _OTHER)):
        if name not in state or module is None:
            continue
        if len(state[name]) != module.device_count():
            raise ValueError(
                f"state has {len(state[name])} generators of {name} devices, but this machine has "
                f"{module.device_count()}: delete state[{name!r}] to load the rest."
            )
        for index, one in enumerate(state[name]):
            module.set_rng_state(one, index)


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore the global generators at the end of a block, even after an exception."""
    state = get_rng_state()
    try:
        yield
    finally:
        load_rng_state(state)


@contextmanager
def seed_context(seed: int) -> Iterator[None]:
    """Seed the global generators inside a block, and restore them after it.

    Example:
        >>> from composable.utils.reproducibility import seed_context
        >>> with seed_context(17):
        ...     first = torch.rand(2)
        >>> with seed_context(17):
        ...     print(torch.equal(torch.rand(2), first))
        True
    """
    with preserve_rng():
        seed_all(seed)
        yield


def configure_deterministic_mode() -> None:
    """Restrict PyTorch to deterministic algorithms, for the rest of the process.

    An operation without a deterministic algorithm raises. This also sets `CUBLAS_WORKSPACE_CONFIG`,
    which cuBLAS reads at its first use: call this before the first CUDA operation.

    Example:
        >>> from composable.utils.reproducibility import configure_deterministic_mode
        >>> configure_deterministic_mode()
        >>> torch.are_deterministic_algorithms_enabled()
        True
        >>> torch.use_deterministic_algorithms(False)
    """
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
