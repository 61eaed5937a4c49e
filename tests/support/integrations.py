"""Why some algorithms are refused in the loops of other libraries."""

LOOPS = {
    "own loop": "test_own_loop.py",
    "Fabric": "test_fabric.py",
    "Accelerate": "test_accelerate.py",
    "Lightning, callback": "test_lightning.py",
    "Lightning, mixin": "test_lightning.py",
    "HF, callback": "test_huggingface.py",
    "HF, mixin": "test_huggingface.py",
}
"""The loops that docs/integrations.md compares, each with the file of its tests."""

CALLBACKS = ("Lightning, callback", "HF, callback")

READ_ONLY_BATCH = "A callback sees the batch and can't replace it."
LOSS_INSIDE = (
    "The loss is computed inside the training step, where no callback is called. `NoOpModel` "
    "brings a loss with its model; most others fail on the number that this model gives."
)
NO_EVALUATION_CALLBACK = (
    "No callback is called before an evaluation, so it would be one of the training weights. The "
    "average is kept all the same: `with t.evaluating(): trainer.evaluate()` uses it."
)
OWN_MODEL = "This Trainer needs a model of its own kind, and `NoOpModel` replaces the model."
SECOND_PASS = (
    "It needs a second pass over the batch, and an external loop can't be made to repeat its "
    "forward and backward pass: `transforms` raises an `UnsupportedRequestError`. In a loop of your own, "
    "`sam_perturbation` takes a few lines: see [its card](methods/sam_perturbation.md)."
)
LATE_STATISTICS = (
    "It computes statistics of batch norms on the batches after `swa_end`, which a callback "
    'doesn\'t get. With `swa_end="1dur"` there are none, and it works, but for (3).'
)
FREEZES_BEFORE = (
    "Which parameters a batch doesn't train must be known before its forward pass, where "
    "`start_batch` is called."
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
