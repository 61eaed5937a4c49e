"""Soft-capped logits: the formula, and which module is the head."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from tests.support import hugging_face
from tests.support.models import language_model


def test_logits_have_the_values_of_the_formula():
    logits = torch.tensor([-1e4, -3.0, 0.0, 0.5, 1e4], dtype=torch.float64)

    assert_close(F.softcap_logits(logits, cap=2.0), 2 * torch.tanh(logits / 2))
    assert F.softcap_logits(logits, cap=2.0).abs().max() <= 2


@pytest.mark.parametrize("family", ["gpt2", "bert as a decoder"])
def test_head_and_loss_of_a_model_of_transformers_are_capped(family):
    pytest.importorskip("transformers")
    model, ids = hugging_face.build(family).eval(), hugging_face.tokens(2, 6)
    new = F.softcap_head(model, cap=0.5)

    plain, capped = model(ids, labels=ids), new(ids, labels=ids)

    assert_close(capped.logits, F.softcap_logits(plain.logits, cap=0.5))
    assert capped.loss != plain.loss
    assert new.get_output_embeddings().weight is model.get_output_embeddings().weight
    assert new.state_dict().keys() == model.state_dict().keys()


def test_other_heads_are_named_and_a_second_bound_is_refused():
    model = nn.ModuleDict({"score": nn.Linear(2, 2), "value": nn.Linear(2, 1)})

    named = F.softcap_head(model, cap=3.0, target="score")

    assert "cap=3.0" in repr(named["score"])
    assert "cap" not in repr(named["value"])
    assert "cap" in repr(F.softcap_head(model)["value"])
    assert F.softcap_head(named, cap=3.0, target="score") is named
    with pytest.raises(ValueError, match=r"cap=4.0 must be 3.0, the bound that score has"):
        F.softcap_head(named, cap=4.0, target="score")
    with pytest.raises(ValueError, match="target='none' must be the name of a module"):
        F.softcap_head(model, target="none")


def test_model_that_caps_its_logits_is_refused():
    model = language_model()
    model.config = type("Config", (), {"final_logit_softcapping": 30.0})()

    with pytest.raises(ValueError, match=r"with the bound 30.0; set config.final_logit_softcapp"):
        F.softcap_head(model)
