"""Tables of hashed n-grams: a parameter group of their own, before and after a surgery."""

from functools import partial

import pytest
import torch

from composable.algorithms import NGramEmbeddings
from composable.functional import ngram_embeddings
from composable.optim import Muon, decay_groups, muon_groups
from tests.support.models import language_model
from tests.support.runs import LANGUAGE

adamw = partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1)
NAME = "words.ngrams.weight"


def groups_of(optimizers, model):
    """Return the names of the parameters of each group that has some."""
    names = {id(p): name for name, p in model.named_parameters()}
    groups = [group for one in optimizers for group in one.param_groups]
    return {g["name"]: [names[id(p)] for p in g["params"]] for g in groups if g["params"]}


@pytest.mark.parametrize("divide", [decay_groups, muon_groups])
def test_tables_have_a_group_if_there_are_any(divide):
    model = language_model()
    new = ngram_embeddings(model, rows=8)

    before, after = divide(model), divide(new)

    assert [group["name"] for group in after] == [*(group["name"] for group in before), "tables"]
    assert [p is new.words.ngrams.weight for p in after[-1]["params"]] == [True]
    held = [id(p) for group in after for p in group["params"]]
    assert sorted(held) == sorted(map(id, new.parameters()))


def tables_apart(parameters):
    """Build Adagrad for the tables alone."""
    groups = decay_groups(*parameters.modules)
    return torch.optim.Adagrad([one for one in groups if one["name"] == "tables"], lr=0.1)


def the_rest(parameters):
    """Build AdamW for all other parameters."""
    groups = decay_groups(*parameters.modules)
    return adamw([one for one in groups if one["name"] != "tables"])


def with_a_group(model):
    """Build an optimizer with a group for tables that a surgery adds."""
    return adamw([*decay_groups(model), {"params": [], "name": "tables", "lr": 0.5}])


@pytest.mark.parametrize(
    ("optimizers", "options"),
    [
        ([the_rest, tables_apart], {}),
        (partial(Muon, lr=0.01), {}),
        (partial(Muon, lr=0.01), {"decay_norms_and_biases": False}),
        (adamw, {"decay_norms_and_biases": False}),
    ],
    ids=["two optimizers", "Muon", "Muon with decay groups", "AdamW with decay groups"],
)
def test_optimizers_of_the_trainer_have_the_group_and_train_it(optimizers, options):
    trainer = LANGUAGE.trainer(
        algorithms=[NGramEmbeddings(rows=8)], optimizers=optimizers, **options
    )
    state = trainer.fit()

    assert groups_of(state.optimizers, state.model)["tables"] == [NAME]
    assert state.model.words.ngrams.weight.abs().sum() > 0


def test_a_surgery_adds_a_table_to_the_group_of_an_optimizer_that_is_built():
    model = language_model()
    state = LANGUAGE.trainer(
        model, algorithms=[NGramEmbeddings(rows=8)], optimizers=with_a_group(model)
    ).state

    assert groups_of(state.optimizers, state.model)["tables"] == [NAME]


def test_without_such_a_group_a_table_joins_the_token_embedding():
    model = language_model()
    state = LANGUAGE.trainer(
        model, algorithms=[NGramEmbeddings(rows=8)], optimizers=adamw(decay_groups(model))
    ).state

    groups = groups_of(state.optimizers, state.model)
    assert NAME in groups["weights"]
    assert "words.weight" in groups["weights"]
