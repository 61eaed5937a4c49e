"""The arguments of the Trainer are those of `TrainerOptions`: listed, documented, checked."""

import inspect
import pydoc
import re
from typing import Any

import attrs
import numpy as np
import pytest

from composable import Trainer
from composable.distributed import DDP
from composable.trainer.options import GROUPS, TrainerOptions
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


@pytest.mark.parametrize("parameter", inspect.signature(Trainer).parameters.values(), ids=str)
def test_every_option_has_a_type(parameter):
    assert parameter.annotation not in (Any, inspect.Parameter.empty)


def test_each_option_is_in_one_group_that_documents_it():
    fields = [name for group in GROUPS for name in attrs.fields_dict(group)]

    assert fields == [field.name for field in FIELDS]
    for group in GROUPS:
        listed = re.findall(r"^    (\w+): ", inspect.getdoc(group), re.MULTILINE)
        assert listed == list(attrs.fields_dict(group))


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


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate_batches": np.int64(2)},
        {"parallel": DDP(shards=np.int64(2))},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_run_with_integers_of_numpy_is_saved_and_resumed(options, tmp_path):
    make_trainer(save_folder=tmp_path, **options).fit(duration="1ep")
    resumed = make_trainer(save_folder=tmp_path, autoresume=True, **options)
    assert resumed.state.timestamp.epoch == 1
