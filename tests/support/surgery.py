"""What the tests of surgeries in the loop share."""

from torch import nn

from tests.support.data import batches
from tests.support.models import CLASSES, seeded


def convolutional():
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Conv2d(4, 4, 3, stride=2),
            nn.Flatten(),
            nn.LayerNorm(4),
            nn.Linear(4, CLASSES),
        )
    )


def images():
    return [(x.reshape(4, 1, 6, 6), y) for x, y in batches(12, features=36)]
