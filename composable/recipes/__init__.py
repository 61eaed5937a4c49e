"""Recipes: compositions of algorithms, an optimizer and a schedule."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.recipes.finetuning import lora as lora
    from composable.recipes.language import small_gpt as small_gpt
    from composable.recipes.language import small_gpt_rotary as small_gpt_rotary
    from composable.recipes.language import speedrun_gpt as speedrun_gpt
    from composable.recipes.recipe import Recipe as Recipe
    from composable.recipes.regularized import strong_regularization as strong_regularization
    from composable.recipes.vision import small_resnet as small_resnet
    from composable.recipes.vision import speedrun_vision as speedrun_vision
else:
    export_lazily(__name__)
