"""The data of `configured.yaml`, a file of settings for `composable train`.

    pip install "composable[config]" scikit-learn
    composable train examples/configured.yaml --allow examples
    composable train examples/configured.yaml --allow examples seed=3 algorithms.0.alpha=0.4

The file may then call this function, since `--allow` names its package.
"""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, TensorDataset, random_split


def digits(*, train: bool) -> Dataset:
    """Return the images for training, or for evaluation, with their labels.

    Args:
        train: Whether to train on them.
    """
    data = load_digits()
    images = TensorDataset(torch.tensor(data.data).float() / 16, torch.tensor(data.target))
    parts = random_split(images, [0.7, 0.3], torch.Generator().manual_seed(0))
    return parts[0 if train else 1]
