"""The byte-level language model of the examples, and what it shares with the small one."""

from functools import partial

import pytest
import torch

from composable.algorithms import Alibi, GradientClipping, Rotary
from examples import byte_gpt
from tests.project.test_small_gpt import built as built_small


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


@pytest.fixture(params=["byte_gpt", "small_gpt"])
def built(request, short_bytes, short_texts):
    """Return the function that builds the Trainer of an example."""
    small = partial(built_small, initialization="gpt2", width=64)
    return small if request.param == "small_gpt" else built_of_bytes


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


def test_a_window_is_followed_by_its_next_bytes():
    windows = byte_gpt.Windows(torch.arange(600).clamp(max=127).byte())

    inputs, targets = windows[0]

    assert len(windows) == 2
    assert inputs.tolist()[:3] == [0, 1, 2]
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


def test_unknown_positions_are_refused(short_bytes):
    with pytest.raises(ValueError, match="positions='sine' must be 'learned' or 'rotary'"):
        byte_gpt.build([], 0, positions="sine")


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
