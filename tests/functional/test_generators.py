"""Of the global generators, those of a computation are restored, and no others are touched."""

import pytest
import torch

from composable._support.generators import preserving_generators


def states(generators):
    return [one.get_state().tolist() for one in generators]


@pytest.fixture
def gpus(monkeypatch):
    """Put generators in the place of those of three GPUs, of which the second is the current."""
    found = tuple(torch.Generator().manual_seed(i) for i in range(3))
    monkeypatch.setattr(torch.cuda, "default_generators", found)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    return found


@pytest.mark.parametrize(("name", "number"), [("cuda:0", 0), ("cuda", 1), ("cuda:2", 2)])
def test_only_generators_of_the_devices_are_seeded_and_restored(gpus, name, number):
    before, of_cpu = states(gpus), torch.get_rng_state()

    with preserving_generators([torch.device("cpu"), torch.device(name)]) as seed:
        seed(17)
        inside = states(gpus)
        drawn = torch.rand(3)

    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(17)))
    changed = [i for i in range(3) if inside[i] != before[i]]
    assert changed == [number]
    assert inside[number] == torch.Generator().manual_seed(17).get_state().tolist()
    assert states(gpus) == before
    assert torch.equal(torch.get_rng_state(), of_cpu)


def test_generators_are_restored_after_an_error():
    def fail():
        with preserving_generators([torch.device("meta")]) as seed:
            seed(17)
            raise KeyError

    before = torch.get_rng_state()

    with pytest.raises(KeyError):
        fail()

    assert torch.equal(torch.get_rng_state(), before)
