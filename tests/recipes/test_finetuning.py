"""The recipe for adapters: every linear layer, ten times the rate of full fine-tuning."""

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from composable import Event, Trainer
from composable.models import lora_config
from composable.recipes import lora
from tests.support.adapters import adapters, base, text, with_lora
from tests.support.hugging_face import llama
from tests.support.observers import Watch


def layers(model, kind=nn.Linear):
    return {name for name, one in model.named_modules() if isinstance(one, kind)}


def test_every_linear_layer_but_the_head_has_an_adapter():
    names = {name.split(".lora_")[0] for name in adapters(with_lora())}

    assert names == {f"base_model.model.{name}" for name in layers(llama()) - {"lm_head"}}


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning")
def test_layers_of_gpt2_are_linear_too():
    from transformers.pytorch_utils import Conv1D

    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=17))

    names = {name.split(".lora_")[0] for name in adapters(with_lora(model))}

    assert len(names) == 4
    assert names == {
        f"base_model.model.{name}" for name in layers(GPT2LMHeadModel(model.config), Conv1D)
    }


def test_the_recipe_trains_the_adapters_alone_at_ten_times_the_rate():
    losses = Watch(Event.BATCH_END, read=lambda state: float(state.loss))
    model, (batch,) = with_lora(), text(1)
    before = {name: one.detach().clone() for name, one in base(model).items()}
    trainer = Trainer(
        model,
        train_dataloader=[batch],
        max_duration="30ba",
        callbacks=losses,
        progress_bar=False,
        **lora(full_lr=2e-3).arguments(),
    )
    assert trainer.state.optimizers[0].defaults["lr"] == pytest.approx(2e-2)

    after = base(trainer.fit().model)

    assert losses.values[-1] < 0.9 * losses.values[0]
    assert all(torch.equal(one, before[name]) for name, one in after.items())


@pytest.mark.parametrize("option", [{"r": 8}, {"lora_alpha": 8}])
def test_the_names_of_peft_are_refused_with_those_of_the_preset(option):
    with pytest.raises(TypeError, match=r"(r|lora_alpha)=8 is named (rank|alpha) here"):
        lora_config(**option)
