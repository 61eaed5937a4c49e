"""Keyed random numbers: functions of a seed and of names."""

from hashlib import blake2b

import attrs
import torch

_MASK = 2**64 - 1


@attrs.frozen
class Key:
    """A name for a stream of random numbers.

    Folding in the name of a component and the number of a batch gives another key, and the same
    key always gives the same numbers. So the draws of a component never shift another component's,
    and any step can be replayed alone.

    Args:
        seed: An integer from 0 to 2**64 - 1.

    Example:
        >>> from composable import Key
        >>> key = Key(17).fold("MixUp", 3)
        >>> torch.equal(
        ...     torch.rand(4, generator=key.generator()),
        ...     torch.rand(4, generator=key.generator()),
        ... )
        True
        >>> key == Key(17).fold("MixUp").fold(3)
        True
    """

    seed: int = attrs.field()
    of_step: "Key | None" = attrs.field(default=None, init=False, eq=False, repr=False)
    """The key of the step, if this key belongs to one of several batches of a step."""

    @seed.validator
    def _check_seed(self, _: object, seed: object) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed={seed!r} must be an integer from 0 to 2**64 - 1.")
        if not 0 <= seed <= _MASK:
            raise ValueError(f"seed={seed!r} is out of range: use 0 to 2**64 - 1.")

    def fold(self, *data: str | int) -> "Key":
        """Derive the key that this one and `data` determine."""
        folded = object.__new__(Key)  # at every step: validation would cost more than folding
        object.__setattr__(folded, "seed", fold_in(self.seed, *data))
        object.__setattr__(folded, "of_step", None)
        return folded

    def of_batch(self, number: int) -> "Key":
        """Derive the key of a batch, where a step has several: the first has the step's key."""
        if not number:
            return self
        folded = self.fold("batch", number)
        object.__setattr__(folded, "of_step", self.of_step or self)
        return folded

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """Create a generator at the start of this key's stream."""
        try:
            generator = torch.Generator(device)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"device={device!r} has no generator: {error}") from None
        generator.manual_seed(self.seed)
        return generator


def as_key(seed: int | Key) -> Key:
    """Return the key of a seed, or a key as it is."""
    return seed if isinstance(seed, Key) else Key(seed)


def fold_in(seed: int, *data: str | int) -> int:
    """Derive the seed that `seed` and `data` determine, one item after the other."""
    for item in data:
        if type(item) is int:  # SplitMix64: cheap, since every step folds its number
            mixed = (seed + (item + 1) * 0x9E3779B97F4A7C15) & _MASK
            mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
            mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
            seed = mixed ^ mixed >> 31
        elif isinstance(item, str):
            digest = blake2b(seed.to_bytes(8, "little") + item.encode(), digest_size=8).digest()
            seed = int.from_bytes(digest, "little")
        else:
            raise TypeError(f"data contains {item!r}: a key folds in strings and integers.")
    return seed
