"""The arguments of the Trainer are those of `TrainerOptions`: listed, documented, checked."""

import inspect
import pydoc

import attrs
import pytest

from composable import Trainer
from composable.trainer.options import TrainerOptions
from composable.trainer.session import overridden_runs
from tests.support.models import linear
from tests.support.runs import make_trainer

FIELDS = [field for field in attrs.fields(TrainerOptions) if field.init]


# --- the signature ---


def test_the_signature_lists_every_option():
    parameters = inspect.signature(Trainer).parameters

    assert list(parameters) == [field.name for field in FIELDS]
    assert {p.name for p in parameters.values() if p.kind is not p.KEYWORD_ONLY} == {"model"}
    assert parameters["eval_interval"].default == "1ep"
    assert parameters["model"].default is inspect.Parameter.empty


def test_help_describes_every_option():
    text = inspect.getdoc(Trainer.__init__)

    for field in FIELDS:
        assert f"    {field.name}: " in text, field.name
    assert "nonfinite_loss: What to do about a loss" in pydoc.render_doc(Trainer)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((linear(),), {"max_epochs": 3}, "Trainer got an unexpected argument 'max_epochs'"),
        ((), {}, "Trainer: missing a required argument: 'model'"),
        (
            (linear(), []),
            {},
            "too many positional arguments; pass all but the model by name",
        ),
        ((linear(),), {"model": linear()}, "multiple values for argument 'model'"),
    ],
)
def test_an_unknown_argument_is_a_type_error_that_names_it(arguments, options, message):
    with pytest.raises(TypeError, match=message):
        Trainer(*arguments, **options)


# --- overrides ---


def test_runs_are_overridden_within_the_block_alone():
    def with_seed(options):
        return attrs.evolve(options, seed=99)

    with overridden_runs(with_seed):
        inside = make_trainer(seed=3)
        with overridden_runs(lambda options: attrs.evolve(options, seed=5)):
            innermost = make_trainer(seed=3)
        again = make_trainer(seed=3)
    outside = make_trainer(seed=3)

    seeds = [one.state.key.seed for one in (inside, innermost, again, outside)]
    assert seeds == [99, 5, 99, 3]
