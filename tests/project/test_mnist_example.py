"""The convolutional network on MNIST of the examples."""

import torch

from examples import mnist


def batch_of(pixels, count=64):
    inputs = torch.arange(28.0 * 28).reshape(1, 28, 28).repeat(count, 1, 1, 1)
    return mnist.Shifted(pixels)([(image, torch.tensor(0)) for image in inputs])[0]


def test_shifts_are_drawn_for_each_image():
    torch.manual_seed(0)
    shifted = batch_of(2)

    centers = shifted[:, 0, 14, 14]
    rows, columns = (centers // 28 - 14).int(), (centers % 28 - 14).int()
    assert set(rows.tolist()) == set(columns.tolist()) == {-2, -1, 0, 1, 2}
    # The inner pixels of an image move together.
    expected = torch.arange(28.0 * 28).reshape(28, 28)
    for image, row, column in zip(shifted[:, 0], rows.tolist(), columns.tolist(), strict=True):
        moved = expected[4 + row : 24 + row, 4 + column : 24 + column]
        assert torch.equal(image[4:24, 4:24], moved)


def test_parts_do_not_overlap_and_all_labels_are_in_each():
    data = mnist.images()

    rows = torch.cat([part.tensors[0].flatten(1) for part in data.values()])
    assert len(torch.unique(rows, dim=0)) == len(rows) == 5000
    assert all(part.tensors[1].unique().tolist() == list(range(10)) for part in data.values())


def test_network_learns_within_one_epoch():
    state = mnist.build([], 0, max_duration="1ep").fit()

    assert state.metrics["test"]["accuracy"] > 0.9
