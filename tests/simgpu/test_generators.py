"""Of the generators of devices, those of a computation are restored, and no others are touched."""

import pytest
import torch

from composable._support.generators import preserving_generators
from tests.simgpu.device import KIND


def states():
    torch.ones(1, device=KIND)  # PyTorch makes the generators at the first use of a device
    return [one.get_state() for one in torch.get_device_module(KIND).default_generators]


@pytest.mark.parametrize(("name", "number"), [(f"{KIND}:0", 0), (KIND, 1), (f"{KIND}:1", 1)])
def test_only_generators_of_the_devices_are_seeded_and_restored(name, number):
    torch.accelerator.set_device_index(1)
    before, of_cpu = states(), torch.get_rng_state()
    with preserving_generators([torch.device("cpu"), torch.device(name)]) as seed:
        seed(17)
        inside = states()
        drawn = torch.rand(3), torch.rand(3, device=name).cpu()
    torch.accelerator.set_device_index(0)

    expected = torch.rand(3, generator=torch.Generator().manual_seed(17))
    assert all(torch.equal(one, expected) for one in drawn)
    assert [i for i in range(2) if not torch.equal(inside[i], before[i])] == [number]
    assert all(map(torch.equal, states(), before))
    assert torch.equal(torch.get_rng_state(), of_cpu)
