"""Hashes of integers, as tensor operations: random numbers that depend on a number and a seed."""

from torch import Tensor

_POSITIVE = 2**63 - 1


def hash_integers(numbers: Tensor, seed: int) -> Tensor:
    """Hash numbers to integers below 2**62, by the function of SplitMix64; products wrap around.

    Args:
        numbers: Integers of dtype int64.
        seed: An integer from 0 to 2**64 - 1.
    """
    mixed = numbers * _signed(0x9E3779B97F4A7C15) + _signed(seed)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(0x94D049BB133111EB)
    return _shifted(mixed ^ _shifted(mixed, 31), 2)


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """Shift to the right, and fill with zeros."""
    return (numbers >> bits) & (_POSITIVE >> (bits - 1))


def _signed(number: int) -> int:
    """Reinterpret an unsigned 64-bit integer as a signed one."""
    return number - 2**64 if number > _POSITIVE else number
