"""The rates of all dropouts of a model."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

from composable.functional import NoEffectWarning, set_dropout
from tests.support.hub_models import HEADS
from tests.support.hugging_face import build, llama


def test_every_layer_gets_the_rate_and_the_given_model_keeps_its_own():
    model = nn.Sequential(nn.Dropout(0.0), nn.Sequential(nn.Dropout2d(0.5)), nn.AlphaDropout(0.2))

    new = set_dropout(model, p=0.25)

    assert [new[0].p, new[1][0].p, new[2].p] == [0.25] * 3
    assert [model[0].p, model[1][0].p, model[2].p] == [0.0, 0.5, 0.2]


def test_attention_drops_at_the_rate():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)

    new = set_dropout(layer, p=0.5)

    assert new.self_attn.dropout == 0.5
    x = torch.ones(3, 1, 8)
    assert not torch.equal(new(x), layer(x))
    assert torch.equal(new.eval()(x), layer.eval()(x))


class Attention(nn.Module):
    """Drops by a function."""

    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout

    def forward(self, x):
        return scaled_dot_product_attention(x, x, x, dropout_p=self.dropout * self.training)


@pytest.mark.parametrize("model", [lambda: nn.GRU(3, 4, 2, dropout=0.9), lambda: Attention(0.9)])
def test_modules_without_a_dropout_layer_drop_at_the_rate(model):
    x, given = torch.randn(5, 2, 3), model()

    new = set_dropout(given, p=0.0)

    assert_close(new(x), new(x))
    assert given.dropout == 0.9


def test_no_dropout_of_a_model_of_transformers_is_left():
    head = HEADS["sequences, BART"]
    model, batch = set_dropout(head.build(), p=0.5), head.batch([2, 6, 3])

    none = set_dropout(model, p=0.0)

    assert not torch.equal(model(**batch).logits, model(**batch).logits)
    assert torch.equal(none(**batch).logits, none(**batch).logits)


@pytest.mark.parametrize("model", [lambda: build("gpt2", attn_pdrop=0.0), llama])
def test_models_of_transformers_drop_in_training_only(model):
    new, tokens = set_dropout(model(), p=0.5), torch.arange(6)[None]

    assert torch.equal(new(tokens).logits, model()(tokens).logits)
    new.train()
    assert not torch.equal(new(tokens).logits, new(tokens).logits)


def test_a_model_with_the_rate_is_returned_and_one_without_dropout_is_reported():
    model = nn.Sequential(nn.Dropout(0.1))

    assert set_dropout(model, p=0.1) is model
    for other in (nn.Linear(2, 2), nn.LSTM(2, 2)):
        with pytest.warns(
            NoEffectWarning, match="found nothing to replace.* Add nn.Dropout layers"
        ):
            set_dropout(other)
