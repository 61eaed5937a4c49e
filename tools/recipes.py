"""The measured effect of each recipe, and of its parts, from the studies in docs/evidence."""

from collections.abc import Iterator

import attrs

from tools.evidence import STUDIES, Evidence, describe_verdict, link

__all__ = ["RECIPES", "RecipeEvidence", "recipe_table"]


@attrs.frozen
class RecipeEvidence:
    """A recipe in a study.

    Args:
        recipe: The name of the function, and of its arm.
        study: The name of the study.
        parts: The arms that have a part of the recipe, or one part replaced.
    """

    recipe: str
    study: str
    parts: tuple[str, ...]


RECIPES: tuple[RecipeEvidence, ...] = (
    RecipeEvidence("speedrun_gpt", "language-long", ()),
    RecipeEvidence("speedrun_gpt", "language", ("NGramEmbeddings", "small_gpt", "Muon")),
    RecipeEvidence("small_gpt", "language", ("Muon",)),
    RecipeEvidence("small_resnet", "vision", ("Muon", "ChannelsLast")),
)


_COMMANDS = {
    "language": "language.py compare",
    "language-long": "language_long.py compare",
}


def recipe_table() -> list[str]:
    """Return the table of docs/recipes.md."""
    head = ["| recipe | compared on | effect | its parts | repeat with |", "|---|---|---|---|---|"]
    return [*head, *_rows()]


def _rows() -> Iterator[str]:
    studies = {study.name: study for study in STUDIES}
    for one in RECIPES:
        study = studies[one.study]
        parts = "; ".join(f"{part}: {_effect(study, part)}" for part in one.parts)
        cells = [
            f"`{one.recipe}`",
            link(study, "evidence.md"),
            _effect(study, one.recipe),
            parts or "–",
            f"`python benchmarks/{_COMMANDS.get(one.study, f'evidence.py {one.study}')}`",
        ]
        yield f"| {' | '.join(cells)} |"


def _effect(study: Evidence, arm: str) -> str:
    return describe_verdict(study.analysis[arm])
