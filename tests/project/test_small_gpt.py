"""The small language model of the examples: what the other one lacks."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Callback
from composable.algorithms import Alibi
from composable.optim import Muon
from examples import small_gpt

pytestmark = pytest.mark.usefixtures("short_texts")
SPANS = 3
SMALL = {
    "vocabulary": 300,
    "width": 32,
    "context": 16,
    "batch_tokens": 64,
    "evaluated_spans": SPANS,
}


def built(algorithms=(), seed=0, **options):
    return small_gpt.build(algorithms, seed, **{"max_duration": "2ba", **SMALL, **options})


def trained(*args, **options):
    trainer = built(*args, **options)
    trainer.fit()
    return trainer


# --- data ---


def test_validation_and_test_files_are_apart_from_those_of_training(tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "skipped.py").write_text("skipped")
    (tmp_path / "notes.txt").write_text("skipped")
    for number in range(24):
        (tmp_path / f"{number:02}.py").write_text(str(number), encoding="utf-8")

    parts = small_gpt.read_parts(tmp_path)

    assert parts["validation"] == ["0", "12"]
    assert parts["test"] == ["6", "18"]
    assert parts["train"] == ["3", "9", "15", "21"]


@pytest.mark.parametrize("vocabulary", [256, 300])
def test_tokens_are_those_of_the_text(vocabulary):
    tokens = small_gpt.training_tokens(vocabulary)

    text = small_gpt.tokenizer(vocabulary).decode(tokens.tolist())
    assert text == "".join(small_gpt.texts()["train"])
    assert max(tokens.tolist()) < vocabulary
    assert (len(tokens) == len(text)) == (vocabulary == 256)


def test_tokens_are_read_from_the_cache(monkeypatch):
    tokens = small_gpt.training_tokens(300)
    small_gpt.training_tokens.cache_clear()
    monkeypatch.setattr(small_gpt, "texts", lambda: pytest.fail("the text is read again"))

    assert torch.equal(small_gpt.training_tokens(300), tokens)


def test_a_window_is_followed_by_its_next_token():
    windows = small_gpt.Windows(torch.arange(600), 256)

    inputs, targets = windows[1]

    assert len(windows) == 2
    assert inputs[0] == 256
    assert torch.equal(inputs[1:], targets[:-1])


@pytest.mark.parametrize("vocabulary", [256, 300])
@pytest.mark.parametrize("context", [16, 64])
def test_every_byte_of_the_spans_is_predicted_once(vocabulary, context):
    evaluator = small_gpt.evaluator("test", vocabulary, context, SPANS)

    targets = torch.cat([one.flatten() for _, one in evaluator.dataloader])
    predicted = targets[targets != small_gpt.IGNORED].tolist()

    text = small_gpt.tokenizer(vocabulary).decode(predicted)
    assert text == "".join(small_gpt.spans("test", SPANS))


@pytest.mark.parametrize("vocabulary", [256, 300])
def test_a_model_that_knows_nothing_needs_the_same_nats_for_a_byte(vocabulary):
    trainer = trained(lr=0.0, embedding_lr=0.0, vocabulary=vocabulary)

    tokens = small_gpt.tokenizer(vocabulary).encode
    spans = small_gpt.spans("test", SPANS)
    count = sum(len(tokens(one).ids) for one in spans)
    size = sum(map(len, spans))
    expected = torch.tensor(float(vocabulary)).log() * count / size
    assert float(trainer.state.metrics["test"]["nats_per_byte"]) == pytest.approx(float(expected))


# --- the model ---


@pytest.mark.parametrize("name", ["positions", "initialization"])
def test_an_unknown_choice_is_refused(name):
    with pytest.raises(ValueError, match=f"'{name}' must be in"):
        built(**{name: "other"})


def test_the_output_is_zero_at_first():
    x = torch.arange(16).reshape(1, 16)

    assert not built(initialization="fan-in").state.model(x).any()
    assert built(initialization="gpt2").state.model(x).any()


# --- training ---


def test_hidden_matrices_and_other_parameters_have_their_own_rates():
    (optimizer,) = built(lr=0.5, embedding_lr=0.25).state.optimizers

    rates = {
        parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]
    }
    model = built(lr=0.5, embedding_lr=0.25).state.model
    shapes = {tuple(one.shape): rate for one, rate in rates.items()}
    assert len(rates) == len(list(model.parameters()))
    assert shapes[128, 32] == 0.5
    assert shapes[300, 32] == 0.25
    assert shapes[32,] == 0.25


class Lengths(Callback):
    """Records the lengths of the sequences of training and of evaluation."""

    def __init__(self):
        self.trained, self.evaluated = set(), set()

    def batch_end(self, state, logger):
        self.trained.add(state.batch[0].shape[1])

    def eval_batch_end(self, state, logger):
        self.evaluated.add(state.batch[0].shape[1])


def test_a_longer_context_is_evaluated_than_trained():
    trainer, lengths = built([Alibi(64, 1.0)], evaluated_context=64), Lengths()
    trainer.add_callback(lengths)

    trainer.fit()

    assert (lengths.trained, lengths.evaluated) == ({16}, {64})


def test_muon_updates_the_hidden_matrices():
    def muon(parameters):
        return Muon(parameters, lr=0.01, adamw_lr=0.01)

    (optimizer,) = built(optimizers=muon).state.optimizers

    groups = {group["name"]: len(group["params"]) for group in optimizer.param_groups}
    assert groups["matrices"] == 6


def test_the_loss_ignores_what_is_beyond_the_end():
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, 2, 3], [4, small_gpt.IGNORED, small_gpt.IGNORED]])

    kept = cross_entropy(logits.flatten(0, 1)[:4], targets.flatten()[:4])

    assert torch.isclose(small_gpt.loss_of(logits, targets), kept)


def test_a_text_is_continued():
    model = trained().state.model

    text = small_gpt.complete(model, "def add(", 300, count=5)

    assert text.startswith("def add(")
    assert len(text) > len("def add(")
    assert text == small_gpt.complete(model, "def add(", 300, count=5)
