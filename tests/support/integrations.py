"""What works in the loops of other libraries, and why some algorithms are refused there."""

from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/integrations.md"

LOOPS = (
    "own loop",
    "Fabric",
    "Accelerate",
    "Lightning, callback",
    "Lightning, mixin",
    "HF, callback",
    "HF, mixin",
)
"""The loops that docs/integrations.md compares."""

CALLBACKS = ("Lightning, callback", "HF, callback")
SIX = "six of them together"
"""The row of six algorithms."""

READ_ONLY_BATCH = "A callback can read the batch but not replace it."
LOSS_INSIDE = (
    "The loss is computed inside the training step, where no callback is called. `NoOpModel` "
    "provides a loss with its model; most other losses fail on the scalar that this model returns."
)
NO_EVALUATION_CALLBACK = (
    "No callback is called before an evaluation, so the evaluation would use the training weights. "
    "The average is still computed: `with t.evaluating(): trainer.evaluate()` uses it."
)
OWN_MODEL = "This trainer requires a model of its own type, which `NoOpModel` would replace."
SECOND_PASS = (
    "SAM needs a second pass over the batch, which cannot be added to an external loop. "
    "`adapt_loop` raises an `UnsupportedRequestError`. In your own loop, `sam_perturbation` takes "
    "a few lines: see [its card](methods/sam_perturbation.md)."
)
SECOND_FORWARD = (
    "WholeLoss needs a second forward pass over all parts of a batch, which cannot be added to an "
    "external loop. `adapt_loop` raises an `UnsupportedRequestError`. In your own loop, "
    "`cached_gradients` takes a few lines: see [its card](methods/cached_gradients.md)."
)
EVALUATED_BATCHES = (
    "It changes the batches of evaluations, which an external loop does not pass to algorithms. "
    "`adapt_loop` raises an `UnsupportedRequestError`; call `fixres` or `tta` in the evaluation."
)
LATE_STATISTICS = (
    "SWA recomputes batch norm statistics on the batches after `swa_end`, to which the callback "
    'has no access. With `swa_end="1dur"` there are no such batches, and only (3) applies.'
)
FREEZES_BEFORE = (
    "The frozen parameters of a batch must be known before its forward pass, where `start_batch` "
    "is called."
)

REASONS = [
    READ_ONLY_BATCH,
    LOSS_INSIDE,
    NO_EVALUATION_CALLBACK,
    OWN_MODEL,
    SECOND_PASS,
    SECOND_FORWARD,
    LATE_STATISTICS,
    FREEZES_BEFORE,
    EVALUATED_BATCHES,
]
"""In the order in which the page numbers them."""


def in_callbacks(reason: str) -> dict[str, str]:
    """Refused, for one reason, where a callback is all that there is."""
    return dict.fromkeys(CALLBACKS, reason)


def everywhere(reason: str) -> dict[str, str]:
    """Refused in every loop but that of the Trainer."""
    return dict.fromkeys(LOOPS, reason)


_ITERATED = ("own loop", "Fabric", "Accelerate")
_FULL = (*_ITERATED, "Lightning, mixin", "HF, mixin")
_AVERAGED = (*_FULL, "Lightning, callback")


def _tested(test: str, loops: Iterable[str] = LOOPS) -> dict[str, str]:
    return dict.fromkeys(loops, f"test_laws_of_loops.py::test_{test}")


FEATURES = {
    "gradient accumulation": _tested("accumulated_steps_are_those_of_the_trainer"),
    "accumulation of batches of several sizes": _tested(
        "short_last_steps_and_batches_match_the_trainer", _FULL
    ),
    **dict.fromkeys(
        (
            "mixed precision in bfloat16",
            "mixed precision in float16, with a loss scaler",
            "fused optimizers with a loss scaler",
        ),
        _tested("precisions_and_fused_optimizers_match_the_trainer"),
    ),
    "exact resume": _tested("resumed_training_is_that_of_the_trainer"),
    "exact resume with accumulation": _tested("resumed_training_is_that_of_the_trainer"),
    "evaluation with averages": _tested(
        "algorithms_train_and_evaluate_as_in_the_trainer", _AVERAGED
    ),
    "dropout, seeded as in the `Trainer`, also for microbatches": _tested(
        "accumulated_steps_are_those_of_the_trainer", _FULL
    ),
    "data order of the `Trainer`, also of random datasets": _tested(
        "loaders_draw_as_in_the_trainer", (*_ITERATED, "Lightning, callback", "Lightning, mixin")
    ),
    "a second pass over a batch (`SAM`)": {},
}
"""The tests of the features that docs/integrations.md compares, by row and loop."""
