"""The errors of two simple classifiers on the split of `examples/digits.py`.

    python benchmarks/digits_references.py --store    # write docs/evidence/digits-demo

A support vector machine, whose C is chosen on the validation scans, and the nearest neighbor. Both
are trained on the scans of training and validation, as the reported runs of the demo are.
"""

import argparse
import json
import sys
from pathlib import Path

from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import digits  # noqa: E402 (a script of examples/)

STORED = ROOT / "docs/evidence/digits-demo/references.json"


def part(name: str) -> tuple[NDArray, NDArray]:
    """Return the scans of a part as rows, and their labels."""
    images, labels = digits.digits()[name].tensors
    return images.flatten(1).numpy(), labels.numpy()


def errors() -> dict[str, float]:
    """Return the test errors in percent."""
    tried = {c: SVC(C=c).fit(*part("train")).score(*part("validation")) for c in (1, 10, 100)}
    models = {
        "support vector machine": SVC(C=max(tried, key=lambda c: tried[c])),
        "nearest neighbor": KNeighborsClassifier(1),
    }
    return {
        name: 100 * (1 - model.fit(*part("all")).score(*part("test")))
        for name, model in models.items()
    }


def main() -> None:
    """Print the errors."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", action="store_true", help=f"write {STORED.relative_to(ROOT)}")
    store = parser.parse_args().store
    found = errors()
    print(json.dumps(found, indent=1))
    if store:
        STORED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
