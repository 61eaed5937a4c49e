"""What works in the loops of other libraries, and why some algorithms are refused there."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/integrations.md"

LOOPS = {
    "own loop": "test_own_loop.py",
    "Fabric": "test_own_loop.py",
    "Accelerate": "test_own_loop.py",
    "Lightning, callback": "test_lightning.py",
    "Lightning, mixin": "test_lightning.py",
    "HF, callback": "test_huggingface.py",
    "HF, mixin": "test_huggingface.py",
}
"""The loops that docs/integrations.md compares, each with the file of its tests."""

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


_ACCUMULATION, _PRECISION, _RESUME = (
    f"test_{name}_of_adapters.py::" for name in ("accumulation", "precision", "resume")
)
_ITERATED = ("own loop", "Fabric", "Accelerate")
_FULL = (*_ITERATED, "Lightning, mixin", "HF, mixin")

FEATURES = {
    "gradient accumulation": dict.fromkeys(
        LOOPS, f"{_ACCUMULATION}test_matches_the_trainer_without_dropout"
    ),
    "accumulation of batches of several sizes": dict.fromkeys(
        _FULL, f"{_ACCUMULATION}test_short_last_steps_and_batches_match_the_trainer"
    ),
    "mixed precision in bfloat16": dict.fromkeys(
        LOOPS, f"{_PRECISION}test_matches_the_precision_of_the_trainer"
    ),
    "mixed precision in float16, with a loss scaler": dict.fromkeys(
        LOOPS, f"{_PRECISION}test_matches_the_precision_of_the_trainer"
    ),
    "fused optimizers with a loss scaler": dict.fromkeys(
        LOOPS, f"{_PRECISION}test_fused_optimizers_step_with_unscaled_gradients"
    ),
    "exact resume": {
        **dict.fromkeys(
            _ITERATED, f"{_RESUME}test_prepared_loaders_resume_exactly_with_random_datasets"
        ),
        "Lightning, mixin": f"{_RESUME}test_lightning_resumes_exactly",
        "Lightning, callback": f"{_RESUME}test_lightning_callback_resumes_exactly",
        "HF, mixin": f"{_RESUME}test_hugging_face_resumes_exactly",
        "HF, callback": f"{_RESUME}test_hugging_face_callback_resumes_with_the_state_only",
    },
    "exact resume with accumulation": {
        **dict.fromkeys(_ITERATED, f"{_ACCUMULATION}test_loops_resume_between_steps"),
        "Lightning, mixin": f"{_RESUME}test_lightning_resumes_exactly",
        "Lightning, callback": f"{_RESUME}test_lightning_callback_resumes_exactly",
        "HF, mixin": f"{_RESUME}test_hugging_face_resumes_exactly",
        "HF, callback": f"{_RESUME}test_hugging_face_callback_resumes_with_the_state_only",
    },
    "evaluation with averages": {
        **dict.fromkeys(_ITERATED, "test_own_loop.py::test_matches_the_trainer"),
        "Lightning, mixin": "test_lightning.py::test_matches_the_trainer",
        "Lightning, callback": "test_lightning.py::test_matches_the_trainer",
        "HF, mixin": "test_huggingface.py::test_averaged_weights_are_used_for_evaluation",
    },
    "dropout, seeded as in the `Trainer`, also for microbatches": dict.fromkeys(
        _FULL, f"{_ACCUMULATION}test_matches_the_trainer"
    ),
    "data order of the `Trainer`, also of random datasets": dict.fromkeys(
        _ITERATED, "test_own_loop.py::test_loader_draws_as_in_the_trainer"
    ),
    "a second pass over a batch (`SAM`)": {},
}
"""The tests of the features that docs/integrations.md compares, by row and loop."""
