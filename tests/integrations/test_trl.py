"""The algorithms in TRL's SFTTrainer, through the mixin for Hugging Face."""

from functools import partial

import datasets
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from composable.algorithms import EMA, GradientClipping, SeqLengthWarmup, SquaredReLUs
from composable.integrations.huggingface import LogitsModel, LoopAdapterMixin
from tests.integrations.huggingface_loop import arguments
from tests.integrations.loops import Run
from tests.support.adapters import adapters, text, with_lora
from tests.support.hugging_face import WORDS, llama
from tests.support.models import same

pytestmark = [
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning"),
]
RATE = 0.01


class Tuner(LoopAdapterMixin, SFTTrainer):
    compute_loss = LoopAdapterMixin.compute_loss


def next_token_loss(logits, labels):
    return cross_entropy(logits[:, :-1].mT, labels[:, 1:])


def tokenizer():
    words = Tokenizer(WordLevel({str(i): i for i in range(WORDS)}, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="0")


def run_of(algorithms, number=1):
    return Run(
        algorithms,
        with_lora,
        epochs=1,
        accumulate_batches=number,
        optimizer=partial(torch.optim.AdamW, lr=RATE, weight_decay=0.0),
        loss_fn=next_token_loss,
        batches=text,
    )


def build(folder, algorithms, model=None, **options):
    t = run_of(algorithms).adapter(
        LogitsModel(model or with_lora(), loss_fn=next_token_loss),
        loss_fn=None,
        input_key="input_ids",
        target_key="labels",
    )
    defaults = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 1,
        "learning_rate": RATE,
        "weight_decay": 0.0,
        "optim": "adamw_torch",
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    rows = [{"input_ids": row.tolist()} for batch in text() for row in batch["input_ids"]]
    data = datasets.Dataset.from_list(rows)
    return t, Tuner(
        t.model.model,
        adapter=t,
        args=arguments(folder, SFTConfig, **{**defaults, **options}),
        train_dataset=data,
        eval_dataset=data,
        processing_class=tokenizer(),
    )


def by_trainer(*options):
    trainer = run_of(*options).trainer()
    trainer.fit()
    return trainer


ALGORITHMS = (EMA("2ba"), GradientClipping("norm", 0.05), SeqLengthWarmup(0.5, 4, 12))


@pytest.mark.parametrize("accumulated", [1, 2])
def test_adapters_are_those_of_the_trainer(tmp_path, accumulated):
    t, tuner = build(tmp_path, ALGORITHMS, gradient_accumulation_steps=accumulated)
    tuner.train()

    expected = by_trainer(ALGORITHMS, accumulated)
    for name, value in adapters(expected.state.model).items():
        torch.testing.assert_close(adapters(t.model.model)[name], value)
    loss = expected.eval(text())["eval"]["loss"]
    assert tuner.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-5)


def test_what_is_logged_is_a_mean_also_of_accumulated_batches(tmp_path):
    _, tuner = build(tmp_path, [], gradient_accumulation_steps=2)
    tuner.train()

    logged = [one["loss"] for one in tuner.state.log_history if "loss" in one]
    assert len(logged) == 2
    expected = by_trainer([], 2).state.loss.item()
    assert logged[-1] == pytest.approx(expected, rel=1e-3)


def test_checkpointed_run_resumes_to_the_bit(tmp_path):
    saves = {"save_strategy": "steps", "save_steps": 2}
    whole, tuner = build(tmp_path / "a", ALGORITHMS, **saves)
    tuner.train()

    again, tuner = build(tmp_path / "b", ALGORITHMS, **saves)
    tuner.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))

    assert same(list(again.model.parameters()), list(whole.model.parameters()))
    assert same(*(list(t.state.averages["EMA"].values()) for t in (again, whole)))


def test_layers_can_be_replaced(tmp_path):
    t, tuner = build(tmp_path, [SquaredReLUs(), EMA("2ba")], model=llama())
    tuner.train()

    assert any(type(one).__name__ == "SquaredReLU" for one in t.model.modules())
    assert t.state.timestamp.batch == 4


def test_another_loss_is_refused(tmp_path):
    with pytest.raises(ValueError, match="loss_type='dft' must be 'nll'"):
        build(tmp_path, [], loss_type="dft")


def test_loss_of_trl_must_be_replaced_in_the_class():
    with pytest.raises(TypeError, match=r"compute_loss = LoopAdapterMixin\.compute_loss"):

        class Wrong(LoopAdapterMixin, SFTTrainer):
            pass
