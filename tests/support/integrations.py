"""Why some algorithms are refused in the loops of other libraries."""

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
    LATE_STATISTICS,
    FREEZES_BEFORE,
]
"""In the order in which the page numbers them."""


def in_callbacks(reason: str) -> dict[str, str]:
    """Refused, for one reason, where a callback is all that there is."""
    return dict.fromkeys(CALLBACKS, reason)


def everywhere(reason: str) -> dict[str, str]:
    """Refused in every loop but that of the Trainer."""
    return dict.fromkeys(LOOPS, reason)
