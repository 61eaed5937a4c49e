"""The problems with little data of the benchmarks, and their arms."""

import pytest
import torch

from benchmarks import evidence, little_data
from composable.algorithms import BlurPool
from examples import small_gpt


def test_images_are_drawn_of_each_class_and_fewer_are_a_part_of_more():
    labels = torch.arange(60) % 3
    few, many, other = (
        little_data.images_a_class(labels, count, seed) for count, seed in ((2, 0), (9, 0), (2, 1))
    )
    assert labels[few].bincount().tolist() == [2, 2, 2]
    assert set(few) < set(many)
    assert set(few) != set(other)


def test_digits_train_on_so_many_images_a_class():
    trainer = little_data.build_digits([], 0, data_amount=3, max_duration="12ba", dropout=0.5)
    assert len(trainer._options.train_dataloader.dataset) == 30
    assert [one.p for one in trainer.state.model if isinstance(one, torch.nn.Dropout)] == [0.5, 0.5]
    assert {str(one.eval_interval) for one in trainer._options.evaluators} == {"2ba"}


def test_text_is_drawn_file_by_file_until_there_is_enough(short_texts):
    few, many = (little_data.drawn_text(size, 0) for size in (0.0005, 0.001))
    assert [sum(len(one.encode()) for one in drawn) for drawn in (few, many)] == [500, 1000]
    assert "".join(many).startswith("".join(few))
    assert little_data.drawn_text(0.0005, 1) != few
    with pytest.raises(ValueError, match="less than the text has"):
        little_data.drawn_text(1, 0)


def test_the_model_of_text_trains_with_dropout(short_texts, monkeypatch):
    monkeypatch.setattr(small_gpt, "spans", lambda part, count: ["def add(a, b):\n" * 9] * 2)
    options = {"data_amount": 0.002, "max_duration": "2ba", "vocabulary": 257, "dropout": 0.2}
    trainer = little_data.build_text([], 0, **options)
    dropped = [one for one in trainer.state.model.modules() if isinstance(one, torch.nn.Dropout)]
    assert [one.p for one in dropped] == [0.2] * 2
    trainer.fit()
    assert trainer.state.metrics["test"]["nats_per_byte"] > 0


def test_each_arm_is_left_out_with_as_many_settings():
    usual = {"weight_decay": [0.1], "dropout": [0.0]}
    decay, dropout, one = {"weight_decay": [1.0]}, {"dropout": [0.5]}, BlurPool()
    made = evidence.regularized({"BlurPool": one}, usual, decay, dropout)
    assert made["tune"] == {
        "baseline": usual,
        "strong decay": {"weight_decay": [1.0], "dropout": [0.0]},
        "all": {"weight_decay": [1.0], "dropout": [0.5]},
        "all without strong decay": {"weight_decay": [0.1], "dropout": [0.5]},
        "all without strong dropout": {"weight_decay": [1.0], "dropout": [0.0]},
        "all without BlurPool": {"weight_decay": [1.0], "dropout": [0.5]},
    }
    assert {name for name, algorithms in made["arms"].items() if algorithms == [one]} == {
        "all",
        "all without strong decay",
        "all without strong dropout",
    }
