"""Keys. Their numbers are pinned: another scheme would change every recorded run."""

import pytest
import torch

from composable import Key


@pytest.mark.parametrize(
    ("key", "seed"),
    [
        (Key(17).fold("MixUp", 3), 9681648764757965067),
        (Key(17).fold("step", 0), 4383167833192124771),
        (Key(0).fold(""), 1786884285633530058),
        (Key(2**64 - 1).fold("x"), 17469728152335504605),
    ],
)
def test_folding_gives_the_same_key_in_every_version(key, seed):
    assert key.seed == seed


def test_a_key_gives_the_same_numbers_in_every_version():
    key = Key(17).fold("MixUp", 3)

    drawn = torch.rand(3, generator=key.generator())

    expected = torch.tensor([0.722576916217804, 0.21548765897750854, 0.07268309593200684])
    assert torch.equal(drawn, expected)
    assert torch.randint(100, (5,), generator=key.generator()).tolist() == [41, 19, 20, 21, 28]


def test_numbers_are_folded_in_as_splitmix64_counts():
    # Steele, Lea and Flood (2014): the first outputs of the generator with the seed 1234567.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]

    assert [Key(1234567).fold(i).seed for i in range(3)] == published


def test_order_and_type_matter():
    seeds = [Key(17).fold(*d).seed for d in [("a", "b"), ("b", "a"), ("ab",), (1,), ("1",), ()]]

    assert len(set(seeds)) == len(seeds)
    assert Key(17).fold("a").fold("b") == Key(17).fold("a", "b")
    assert Key(17).fold() == Key(17)
