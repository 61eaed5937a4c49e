"""Train with the settings of a file: hydra's `instantiate` builds what `_target_` names.

    pip install hydra-core scikit-learn
    python examples/configured.py examples/configured.yaml
    python examples/configured.py examples/configured.yaml seed=3 algorithms.0.alpha=0.4

Such a file can call any function: run only files that you trust.
"""

import sys

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from composable import Trainer
from composable.metrics import accuracy
from composable.utils.reproducibility import seed_context


def build(path: str, *overrides: str) -> Trainer:
    """Return a Trainer of this model and data, with the other settings from a file.

    Args:
        path: A file of YAML.
        overrides: Settings that replace the file's, such as "seed=3".
    """
    settings = OmegaConf.load(path)
    settings.merge_with_dotlist([*overrides])
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data).float() / 16, torch.tensor(digits.target))
    train, evaluation = random_split(data, [0.7, 0.3], torch.Generator().manual_seed(0))
    with seed_context(settings.seed):
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return instantiate(settings, _convert_="all")(
        model,
        train_dataloader=DataLoader(train, 64, shuffle=True),
        eval_dataloader=DataLoader(evaluation, 256),
        metrics={"accuracy": accuracy},
    )


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit("Name a file of settings, such as examples/configured.yaml.")
    print(build(*sys.argv[1:]).fit().metrics["eval"])
