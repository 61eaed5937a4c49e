"""What the loss is a mean over: warnings where the count is probably another one."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable.core.loss_mean import LossMeanWarning, count_loss_tokens
from composable.functional import MixedTargets
from tests.support.hugging_face import build
from tests.support.models import seeded, weights
from tests.support.runs import make_trainer

TOKENS = torch.randint(1, 7, (4, 6), generator=torch.Generator().manual_seed(0))
PADDED = TOKENS.masked_fill(torch.arange(6) > torch.tensor([[1], [5], [3], [4]]), -100)


class Bigram(nn.Embedding):
    def forward(self, tokens):
        return super().forward(tokens).mT


def fit(targets=PADDED, **options):
    trainer = make_trainer(
        seeded(lambda: Bigram(7, 7)),
        **{"train_dataloader": [(TOKENS, targets)], "loss_fn": cross_entropy, **options},
        max_duration="1ep",
    )
    trainer.fit()
    return weights(trainer.state.model)


@pytest.mark.parametrize("options", [{"grad_accum": 2}, {"eval_dataloader": [(TOKENS, PADDED)]}])
def test_warns_where_examples_are_counted_and_targets_are_ignored(options):
    with pytest.warns(LossMeanWarning, match="loss_mean_over='tokens'") as caught:
        fit(**options)

    assert len(caught) == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"grad_accum": 2, "loss_mean_over": "tokens"},
        {"grad_accum": 2, "loss_mean_over": lambda batch: len(batch[0])},
        {"grad_accum": 2, "targets": TOKENS},
    ],
)
def test_does_not_warn_elsewhere(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossMeanWarning)
        fit(**options)


class WithLoss(nn.Module):
    """A model of Transformers that computes its loss from the labels."""

    def __init__(self):
        super().__init__()
        pytest.importorskip("transformers")
        self.inner = build("gpt2")

    def forward(self, batch):
        return self.inner(**batch)

    def loss(self, outputs, batch):
        return outputs.loss


def trained_with_own_loss(**options):
    trainer = make_trainer(
        seeded(WithLoss).double(),
        train_dataloader=[{"input_ids": TOKENS, "labels": PADDED}],
        input_key="input_ids",
        target_key="labels",
        loss_fn=None,
        max_duration="1ep",
        **options,
    )
    trainer.state.model.inner.config.attn_pdrop = 0
    for module in trainer.state.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    trainer.fit()
    return weights(trainer.state.model)


def test_next_tokens_are_the_terms_of_a_model_that_shifts_its_labels():
    whole = trained_with_own_loss()

    torch.testing.assert_close(
        trained_with_own_loss(grad_accum=2, loss_mean_over="next_tokens"), whole
    )


def test_trial_finds_that_a_wrapped_model_shifts_its_labels():
    whole = trained_with_own_loss()

    torch.testing.assert_close(trained_with_own_loss(grad_accum=2, loss_mean_over="trial"), whole)


@pytest.mark.parametrize("first", [PADDED, TOKENS])
def test_trial_finds_that_a_loss_function_is_a_mean_over_tokens(first):
    loader = [(TOKENS, first), (TOKENS, PADDED)]

    split, counted, whole = (
        fit(train_dataloader=loader, **options)
        for options in (
            {"grad_accum": 2, "loss_mean_over": "trial"},
            {"grad_accum": 2, "loss_mean_over": "tokens"},
            {},
        )
    )

    torch.testing.assert_close(split, whole)
    torch.testing.assert_close(split, counted, rtol=0, atol=0)


def test_error_of_a_trial_names_another_setting():
    with pytest.raises(IndexError, match="Target -100 is out of bounds") as caught:
        fit(
            TOKENS,
            loss_fn=partial(cross_entropy, ignore_index=0),
            grad_accum=2,
            loss_mean_over="trial",
        )

    assert "raised by loss_mean_over='trial'" in "".join(caught.value.__notes__)


def test_warns_where_all_tokens_are_counted_and_the_model_shifts_its_labels():
    with pytest.warns(LossMeanWarning, match="GPT2LMHeadModel shifts .* pass 'next_tokens'"):
        trained_with_own_loss(grad_accum=2, loss_mean_over="tokens")


def test_counts_the_tokens_of_mixed_targets_by_their_weights():
    pair = MixedTargets(torch.tensor([[1, -100]]), torch.tensor([[-100, -100]]), torch.tensor(0.75))

    assert count_loss_tokens(pair).item() == 0.75
