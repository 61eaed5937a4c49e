"""Recipes: measured compositions of algorithms, an optimizer and a schedule."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.recipes.recipe import Recipe as Recipe
else:
    export_lazily(__name__)
