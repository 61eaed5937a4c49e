"""Tables of hashed n-grams: a parameter group of their own, before and after a surgery."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from composable.algorithms import NGramEmbeddings
from composable.distributed import DDP, FSDP2
from composable.functional import ngram_embeddings
from composable.optim import Muon, decay_groups, muon_groups
from tests.support.models import language_model, weights
from tests.support.optimizers import ROWS
from tests.support.parallel_runs import fit, fit_tables, mixed_net
from tests.support.processes import attempt, run
from tests.support.runs import LANGUAGE, sgd

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


@pytest.mark.parametrize(
    ("build", "group", "others"),
    [
        (with_a_group, "tables", set()),
        (lambda model: adamw(decay_groups(model)), "weights", {"words.weight"}),
    ],
)
def test_a_new_table_joins_its_group_or_that_of_the_token_embedding(build, group, others):
    model = language_model()
    state = LANGUAGE.trainer(
        model, algorithms=[NGramEmbeddings(rows=8)], optimizers=build(model)
    ).state

    held = groups_of(state.optimizers, state.model)[group]
    assert {NAME, *others} <= set(held)
    assert others or held == [NAME]


# --- sparse gradients ---


def with_sparse_table(sparse=True, **options):
    """Build a Trainer of a language model whose table has an optimizer of its own."""
    return LANGUAGE.trainer(
        optimizers=ROWS, algorithms=[NGramEmbeddings(rows=64, sparse=sparse)], **options
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"grad_accum": 2},
        {"accumulate_batches": 2},
        {"precision": "amp_bf16"},
        {"precision": "amp_fp16"},
        {"compile": {"backend": "aot_eager"}},
    ],
    ids=lambda options: "-".join(options),
)
def test_sparse_tables_train_the_weights_of_dense_ones(options):
    found, expected = (with_sparse_table(one, **options).fit().model for one in (True, False))

    assert found.words.ngrams.sparse
    assert_close(weights(found), weights(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strategy", [DDP(shards=2), DDP(shards=2, exact=True), None], ids=str)
def test_sparse_table_on_two_processes_is_that_of_one(strategy):
    (alone,) = run(fit_tables, 1, strategy, False)
    several = run(fit_tables, 2, strategy or DDP(), True)

    assert several[0] == several[1]
    assert several[0] == pytest.approx(alone, abs=1e-5)


def test_sharded_parameters_refuse_sparse_gradients():
    for one in attempt(fit_tables, 2, FSDP2(), True):
        assert "FSDP2 does not support sparse gradients; use sparse=False" in str(one)


def test_compiled_models_refuse_sparse_gradients():
    with pytest.raises(
        ValueError, match="compile=True does not support sparse gradients of n-grams"
    ):
        with_sparse_table(compile=True).fit()


def test_modules_with_an_attribute_of_that_name_have_dense_gradients():
    options = {"model": mixed_net, "optimizers": sgd, "parallel": DDP(shards=2)}
    (alone,), several = (run(partial(fit, **options), size) for size in (1, 2))

    for one in several:
        assert [one["size"], one["loss"]] == pytest.approx([alone["size"], alone["loss"]], rel=1e-6)
