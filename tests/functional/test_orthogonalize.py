"""Orthogonalization against PyTorch's own, and its meaning."""

import pytest
import torch

from composable.functional import orthogonalize
from composable.functional.orthogonalize import COEFFICIENTS

SHAPES = [(1, 1), (8, 8), (5, 7), (64, 16), (16, 64), (97, 33), (32, 27), (128, 512)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e3])
def test_each_matrix_of_a_batch_has_the_bits_of_torch(shape, scale):
    muon = pytest.importorskip("torch.optim._muon", reason="PyTorch 2.8 has no Muon")
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)) * scale
    theirs = [muon._zeropower_via_newtonschulz(one, COEFFICIENTS, 5, 1e-7) for one in matrices]

    assert torch.equal(orthogonalize(matrices), torch.stack(theirs).float())
    assert torch.equal(orthogonalize(matrices[0]), theirs[0].float())
    assert torch.equal(orthogonalize(matrices[:, None]).squeeze(1), torch.stack(theirs).float())


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.02), (torch.float32, 1e-5)])
def test_singular_values_become_nearly_one_and_vectors_stay(dtype, bound):
    matrices = torch.randn(4, 12, 20, generator=torch.Generator().manual_seed(0))
    u, values, vh = torch.linalg.svd(matrices, full_matrices=False)

    result = orthogonalize(matrices, dtype=dtype)

    new = values / torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    for _ in range(5):
        a, b, c = COEFFICIENTS
        new = a * new + b * new**3 + c * new**5
    assert (result - u * new[:, None] @ vh).abs().max() < bound
    assert ((new > 0.65) & (new < 1.25)).all()


def test_zero_stays_zero_and_no_step_only_normalizes():
    matrix = torch.tensor([[3.0, 0.0], [0.0, 4.0]])

    assert torch.equal(orthogonalize(torch.zeros(3, 2)), torch.zeros(3, 2))
    assert torch.equal(orthogonalize(matrix, steps=0, dtype=torch.float32), matrix / 5)
