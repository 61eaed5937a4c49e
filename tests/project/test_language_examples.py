"""The byte-level and the small language model of the examples."""

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Event
from composable.algorithms import Alibi, GradientClipping, Rotary
from composable.optim import Muon
from examples import byte_gpt, small_gpt
from tests.support.observers import Watch

pytestmark = pytest.mark.usefixtures("short_texts")
SPANS = 3
SMALL = {
    "vocabulary": 300,
    "width": 32,
    "context": 16,
    "batch_tokens": 64,
    "evaluated_spans": SPANS,
}


@pytest.fixture
def short_bytes(monkeypatch):
    """Replace the standard library by few bytes."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(97, 123, (20 * byte_gpt.CONTEXT + 1,), generator=generator).byte()
    names = ("train", "validation", "test")
    monkeypatch.setattr(byte_gpt, "texts", lambda: dict.fromkeys(names, text))
    monkeypatch.setattr(byte_gpt, "EVALUATED", 2)


def built_of_bytes(algorithms=(), seed=0, **options):
    return byte_gpt.build(list(algorithms), seed, **{"max_duration": "2ba", **options})


def small(algorithms=(), seed=0, **options):
    return small_gpt.build(algorithms, seed, **{"max_duration": "2ba", **SMALL, **options})


def trained_small(*args, **options):
    trainer = small(*args, **options)
    trainer.fit()
    return trainer


@pytest.fixture(params=["byte_gpt", "small_gpt"])
def built(request, short_bytes):
    """Return the function that builds the Trainer of an example."""
    wide = partial(small, initialization="gpt2", width=64)
    return wide if request.param == "small_gpt" else built_of_bytes


# --- data ---


def test_validation_and_test_files_are_apart_from_those_of_training(tmp_path, monkeypatch):
    for number in range(24):
        (tmp_path / f"{number:02}.py").write_bytes(bytes([number + 40]) * 300)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "skipped.py").write_bytes(b"\x7e")
    (tmp_path / "notes.txt").write_bytes(b"\x7e")
    monkeypatch.setattr(byte_gpt.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})

    parts = {
        name: set(text.unique().tolist()) for name, text in byte_gpt.texts.__wrapped__().items()
    }

    assert parts["validation"] == {40, 52}
    assert parts["test"] == {46, 58}
    assert parts["train"] == set(range(40, 64)) - parts["validation"] - parts["test"]


def test_bytes_above_127_are_read_as_127(tmp_path, monkeypatch):
    for number in range(12):
        (tmp_path / f"{number:02}.py").write_text("é" * 300)
    monkeypatch.setattr(byte_gpt.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})

    assert set(byte_gpt.texts.__wrapped__()["train"].tolist()) == {127}


def test_a_standard_library_without_sources_is_an_error_that_says_so(tmp_path, monkeypatch):
    archive = tmp_path / "python.zip"
    monkeypatch.setattr(byte_gpt.sysconfig, "get_paths", lambda: {"stdlib": str(archive)})

    with pytest.raises(FileNotFoundError, match=r"python\.zip has no \.py files.*use a Python"):
        byte_gpt.texts.__wrapped__()


@pytest.mark.parametrize(
    ("windows", "first"),
    [
        (byte_gpt.Windows(torch.arange(600).clamp(max=127).byte()), 0),
        (small_gpt.Windows(torch.arange(600), 256), 256),
    ],
)
def test_a_window_is_followed_by_its_next_token(windows, first):
    inputs, targets = windows[first // 256]

    assert len(windows) == 2
    assert inputs.tolist()[:3] == [first, first + 1, first + 2]
    assert torch.equal(inputs[1:], targets[:-1])


# --- the model ---


@pytest.mark.parametrize("algorithms", [[], [Alibi(256, 1.0)], [Rotary()]])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_token_depends_on_no_later_one(algorithms, positions, built):
    if positions == "rotary" and algorithms == [Rotary()]:
        algorithms = []
    model = built(algorithms, positions=positions).state.model.eval()
    x = torch.randint(128, (1, 16), generator=torch.Generator().manual_seed(1))
    changed = x.clone()
    changed[0, 10] = (x[0, 10] + 1) % 128

    same = torch.isclose(model(x), model(changed), atol=1e-6).all(-1)[0]

    assert same[:10].all()
    assert not same[10:].any()


def test_rotary_positions_are_those_of_the_algorithm(built):
    by_option = built(positions="rotary").state.model
    by_algorithm = built([Rotary()], positions="learned").state.model
    by_algorithm.load_state_dict(
        dict(zip(by_algorithm.state_dict(), by_option.state_dict().values(), strict=True))
    )
    x = torch.arange(16).reshape(1, 16)

    assert torch.equal(by_option(x), by_algorithm(x))


def test_unknown_choices_are_refused(short_bytes):
    with pytest.raises(ValueError, match="positions='sine' must be 'learned' or 'rotary'"):
        byte_gpt.build([], 0, positions="sine")
    for name in ("positions", "initialization"):
        with pytest.raises(ValueError, match=f"'{name}' must be in"):
            small(**{name: "other"})


# --- training ---


def test_a_run_follows_from_its_seed(built):
    def weights(seed):
        model = built(seed=seed).fit().model
        return torch.cat([one.detach().flatten() for one in model.parameters()])

    first, again, other = map(weights, (1, 1, 2))

    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_both_evaluators_report_the_loss_in_nats(short_bytes):
    metrics = built_of_bytes().fit().metrics

    assert metrics["test"]["loss"] == pytest.approx(4.85, abs=0.3)  # ln 128
    assert set(metrics) == {"validation", "test"}


def test_the_loss_of_each_window_averages_to_the_loss():
    logits = torch.randn(3, 5, 128, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(15).reshape(3, 5)

    each = byte_gpt.loss_of(logits, targets, "none")

    assert each.shape == (3,)
    assert torch.isclose(each.mean(), byte_gpt.loss_of(logits, targets))


def test_gradients_are_clipped_once(built):
    def clipping(algorithms):
        plan = built(algorithms).plan
        return [one for one in plan.algorithms if isinstance(one, GradientClipping)]

    assert clipping([]) == [GradientClipping("norm", 1.0)]
    assert clipping([GradientClipping("value", 0.5)]) == [GradientClipping("value", 0.5)]


# --- the small one alone ---


def test_every_third_file_of_the_rest_trains(tmp_path):
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
    trainer = trained_small(lr=0.0, embedding_lr=0.0, vocabulary=vocabulary)

    tokens = small_gpt.tokenizer(vocabulary).encode
    spans = small_gpt.spans("test", SPANS)
    count = sum(len(tokens(one).ids) for one in spans)
    size = sum(map(len, spans))
    expected = torch.tensor(float(vocabulary)).log() * count / size
    assert float(trainer.state.metrics["test"]["nats_per_byte"]) == pytest.approx(float(expected))


def test_the_output_is_zero_at_first():
    x = torch.arange(16).reshape(1, 16)

    assert not small(initialization="fan-in").state.model(x).any()
    assert small(initialization="gpt2").state.model(x).any()


def test_hidden_matrices_and_other_parameters_have_their_own_rates():
    (optimizer,) = small(lr=0.5, embedding_lr=0.25).state.optimizers

    rates = {
        parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]
    }
    model = small(lr=0.5, embedding_lr=0.25).state.model
    shapes = {tuple(one.shape): rate for one, rate in rates.items()}
    assert len(rates) == len(list(model.parameters()))
    assert shapes[128, 32] == 0.5
    assert shapes[300, 32] == 0.25
    assert shapes[32,] == 0.25


def test_a_longer_context_is_evaluated_than_trained():
    trainer = small([Alibi(64, 1.0)], evaluated_context=64)
    lengths = Watch(
        Event.BATCH_END, Event.EVAL_BATCH_END, read=lambda state: state.batch[0].shape[1]
    )
    trainer.add_callback(lengths)

    trainer.fit()

    assert set(lengths.seen) == {(Event.BATCH_END, 16), (Event.EVAL_BATCH_END, 64)}


def test_muon_updates_the_hidden_matrices():
    def muon(parameters):
        return Muon(parameters, lr=0.01, adamw_lr=0.01)

    (optimizer,) = small(optimizers=muon).state.optimizers

    groups = {group["name"]: len(group["params"]) for group in optimizer.param_groups}
    assert groups["matrices"] == 6


def test_the_loss_ignores_what_is_beyond_the_end():
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, 2, 3], [4, small_gpt.IGNORED, small_gpt.IGNORED]])

    kept = cross_entropy(logits.flatten(0, 1)[:4], targets.flatten()[:4])

    assert torch.isclose(small_gpt.loss_of(logits, targets), kept)


def test_a_text_is_continued():
    model = trained_small().state.model

    text = small_gpt.complete(model, "def add(", 300, count=5)

    assert text.startswith("def add(")
    assert len(text) > len("def add(")
    assert text == small_gpt.complete(model, "def add(", 300, count=5)
