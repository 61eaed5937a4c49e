"""The hashes of the text, the tokens and the packages of the language comparison."""

import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import small_gpt

VOCABULARIES = (2048, 4096)
"""Those that the recipe and the baseline chose."""


def data_hashes(vocabularies: Sequence[int] = VOCABULARIES) -> dict[str, str]:
    """Return the versions of the packages, and the hashes of the text and of its tokens."""
    packages = {f"package {name}": version(name) for name in ("torch", "tokenizers")}
    texts = {
        f"{part} text": sha256("\0".join(files).encode()).hexdigest()
        for part, files in small_gpt.texts().items()
    }
    tokens = {
        f"tokens of vocabulary {one}": sha256(
            small_gpt.training_tokens(one).numpy().tobytes()
        ).hexdigest()
        for one in vocabularies
    }
    return packages | texts | tokens


COUNT = "count the new text with `python benchmarks/counting.py --store`"


def check_data(
    stored: Mapping[str, str], found: Mapping[str, str] | None = None, otherwise: str = COUNT
) -> None:
    """Check that text, tokens and packages are the ones of the stored results.

    Args:
        stored: Hashes and versions, by names.
        found: The ones of this machine.
        otherwise: What to do to train on other data.

    Raises:
        ValueError: Some differ; the message says which.
    """
    found = data_hashes() if found is None else found
    differing = [
        f"{name} ({found.get(name, 'none')[:16]} instead of {known[:16]})"
        for name, known in stored.items()
        if found.get(name) != known
    ]
    if differing:
        raise ValueError(
            f"the data differ from the stored study: {', '.join(differing)}. Results on them "
            "cannot be compared with the stored ones: install the packages of constraints.txt, or "
            f"{otherwise}."
        )
