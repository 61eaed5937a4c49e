"""Training on a simulated device is training on the CPU, to the bit, without waits and races."""

import copy
from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from composable import Callback, Control, Event, SplitLossError
from composable.algorithms import EMA, SAM, GradientClipping, MixUp
from composable.data.prefetch import CopyStream
from composable.loggers import InMemoryLogger, JSONLinesLogger
from composable.optim import AdamWScheduleFree, Muon, cosine
from tests.simgpu import device
from tests.simgpu.failing import Fails
from tests.support.algorithm_cases import cases_on
from tests.support.data import batches, examples, shuffling_loader
from tests.support.models import mlp, same, seeded
from tests.support.observers import Watch
from tests.support.runs import LANGUAGE, PROBLEMS, adam, make_trainer, training_weights

KIND = device.KIND


@pytest.fixture(autouse=True)
def _attention_by_its_formula():
    with sdpa_kernel(SDPBackend.MATH):  # the CPU has a fused kernel, which rounds otherwise
        yield


class Waits(Callback):
    """Counts what waits within steps, but for the first of an epoch, which may check a loss."""

    def __init__(self):
        self.found, self.before = Counter(), None

    def after_dataloader(self, state, logger):
        self.before = Counter(device.waits()) if state.timestamp.batch_in_epoch else None

    def batch_end(self, state, logger):
        if self.before is not None:
            self.found += Counter(device.waits()) - self.before


def run(where, build=make_trainer, waits=None, **options):
    """Train, and return the weights; nothing in a step may wait but what is given."""
    watch = Waits()
    options = {"loader": batches(24, 4), "max_duration": "1ep", **options}
    trainer = build(device=where, callbacks=[watch, *options.pop("callbacks", [])], **options)
    trainer.fit()
    assert watch.found == Counter(waits if torch.device(where).type == KIND else None)
    assert device.races() == []
    return training_weights(trainer)


def both(make_options):
    return run("cpu", **make_options()), run(KIND, **make_options())


# --- methods ---

ACTIVE = [(problem, case) for problem in PROBLEMS for case in cases_on(problem, extras=False)]
DIFFER = {
    "ChannelsLast": "group norm keeps this layout on the CPU alone, and rounds otherwise in it",
    "StochasticDepth": "it draws from the CPU's generator, from which dropout draws on the CPU too",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("problem", "case"), ACTIVE, ids=str)
def test_a_method_trains_the_weights_of_the_cpu(problem, case):
    def options():
        more = {"count_tokens": len} if problem is LANGUAGE else {}
        return {
            "build": problem.trainer,
            "model": problem.model(one_by_one=case.name in DIFFER),  # without dropout
            "loader": problem.batches(24, 4),
            "algorithms": [case.example],
            **more,
        }

    on_cpu, found = both(options)
    if case.name == "ChannelsLast":
        torch.testing.assert_close(found, on_cpu)
    else:
        assert same(on_cpu, found)


# On a GPU optimizers of PyTorch update all parameters at once, which rounds bfloat16 otherwise.
one_by_one = partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False)
OPTIONS = {
    "dropout": lambda: {"model": mlp(dropout=0.5)},
    "two epochs": lambda: {"max_duration": "2ep", "loader": shuffling_loader(24)},
    "microbatches": lambda: {"grad_accum": 2},
    "microbatches of tokens": lambda: {"grad_accum": 2, "loss_mean_over": "tokens"},
    "two means": lambda: {"grad_accum": 2, "loss_fn": two_means},
    "mixed losses": lambda: {"grad_accum": 2, "algorithms": [MixUp(interpolate_loss=True)]},
    "mixed, each": lambda: {"algorithms": [MixUp(per_sample=True, interpolate_loss=True)]},
    "clipped": lambda: {"algorithms": [GradientClipping("adaptive", 0.1)]},
    "schedule": lambda: {"schedulers": cosine(warmup="2ba")},
    "AdamW": lambda: {"optimizers": partial(torch.optim.AdamW, lr=0.01)},
    "fused AdamW": lambda: {"optimizers": partial(torch.optim.AdamW, lr=0.01, fused=True)},
    "Muon": lambda: {"model": hidden_layers(), "optimizers": partial(Muon, lr=0.01)},
    "schedule-free": lambda: {"optimizers": partial(AdamWScheduleFree, lr=0.01)},
    "bf16": lambda: {"precision": "bf16", "optimizers": one_by_one},
    "evaluation": lambda: {"eval_dataloader": batches(12, 4)},
    "pinned": lambda: {"loader": DataLoader(TensorDataset(*examples(24)), 4, pin_memory=True)},
    "compiled": lambda: {"compile": {"backend": "aot_eager"}},
}


def two_means(outputs, targets):
    losses = cross_entropy(outputs, targets, reduction="none")
    labeled = (targets >= 0).float()
    return cross_entropy(outputs, targets) + (losses.square() * labeled).sum() / labeled.sum()


def hidden_layers():
    return seeded(lambda: nn.Sequential(*(nn.Linear(4, n) for n in (4, 4, 3))))


@pytest.mark.compile
@pytest.mark.parametrize("make_options", OPTIONS.values(), ids=OPTIONS)
def test_an_option_trains_the_weights_of_the_cpu(make_options):
    assert same(*both(make_options))


def test_logging_waits_for_no_step(tmp_path):
    class Norm(Callback):
        def batch_end(self, state, logger):
            logger.log_metrics({"norm": state.loss.norm()})
            return Control.LOG

    memory = InMemoryLogger()
    file = JSONLinesLogger(tmp_path / "metrics.jsonl", flush_interval=1000)
    run(KIND, callbacks=[Norm()], loggers=[file, memory])
    assert len(memory.series("loss/train")) == 6
    assert len(file.path.read_text().splitlines()) == 12


def test_fresh_memory_is_never_read():
    with device.poisoned():
        weights = run(KIND, model=mlp(dropout=0.5), optimizers=adam, algorithms=[EMA("2ba")])
    assert all(tensor.isfinite().all() for tensor in weights.values())


# --- resume ---

PLACES = ["cpu", KIND, f"{KIND}:1"]


@pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
@pytest.mark.parametrize(
    ("saved_on", "resumed_on", "precision"),
    [
        *((a, b, "fp32") for a in PLACES for b in PLACES if {a, b} != {"cpu"}),
        (KIND, KIND, "amp_fp16"),
        (KIND, f"{KIND}:1", "amp_fp16"),
    ],
)
def test_a_run_resumes_on_another_device(saved_on, resumed_on, precision, tmp_path):
    def train(where, duration, **more):
        trainer = make_trainer(
            mlp(dropout=0.2),
            shuffling_loader(22),
            device=where,
            optimizers=adam,
            algorithms=[EMA("2ba")],
            precision=precision,
            max_duration=duration,
            **more,
        )
        trainer.fit()
        return trainer

    expected = train("cpu" if precision == "fp32" else KIND, "3ep")
    train(saved_on, "1ep", save_folder=tmp_path)
    resumed = train(resumed_on, "3ep", save_folder=tmp_path, autoresume=True)

    assert same(training_weights(resumed), training_weights(expected))
    state = resumed.state
    moments = [value for one in state.optimizers for value in one.state.values()]
    tensors = [*state.model.parameters(), *(one["exp_avg"] for one in moments)]
    assert {one.device for one in tensors} == {torch.zeros(0, device=state.device).device}
    assert device.races() == []


# --- memory ---


@pytest.mark.parametrize("more", [{}, {"accumulate_batches": 2}], ids=str)
@pytest.mark.parametrize("limit", [100_000, 300_000])
def test_microbatches_shrink_until_they_fit(limit, more):
    def build(size):
        model = seeded(lambda: nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 3)))
        loader, memory = batches([128, 100, 128, 128]), InMemoryLogger()
        options = {
            **more,
            "train_metrics": {"accuracy": accuracy},
            "loggers": [memory],
            "max_duration": "1ep",
        }
        trainer = make_trainer(model, loader, microbatch_size=size, device=KIND, **options)
        return trainer, memory

    (trainer, logged), before = build("auto"), device.full_memories()
    with device.memory_limit(limit):
        trainer.fit()

    size = trainer._run.microbatches.size
    assert size in (8, 16, 32, 64)
    assert device.full_memories() > before
    given, expected = build(size)
    given.fit()
    assert same(training_weights(trainer), training_weights(given))
    assert logged.latest == expected.latest


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).double()


def with_little_memory(model=None, size="auto", **options):
    """Build a Trainer of two batches of eight."""
    options = {"device": KIND, "optimizers": adam, "max_duration": "1ep", **options}
    return make_trainer(
        mlp() if model is None else model, batches(16, 8), microbatch_size=size, **options
    )


@pytest.mark.parametrize(
    ("at", "number", "algorithms"),
    [(0, 1, []), (5, 1, []), (12, 1, []), *((5, i, [SAM(interval=1)]) for i in range(4))],
)
def test_an_error_at_any_allocation_of_a_step_repeats_its_batch_in_halves(at, number, algorithms):
    def train(**options):
        trainer = with_little_memory(algorithms=copy.deepcopy(algorithms), **options)
        trainer.fit()
        return trainer

    before, seen = device.full_memories(), Watch(Event.BATCH_END, read=lambda s: s.timestamp.batch)
    trainer = train(callbacks=[Fails(at, number, most=4), seen])
    assert device.full_memories() == before + 1
    assert trainer._run.microbatches.size == 4
    assert seen.values == [1, 2]
    torch.testing.assert_close(training_weights(trainer), training_weights(train(size=None)))


@pytest.mark.parametrize(
    ("size", "note"), [("auto", "one example does not fit into memory"), (None, "")]
)
def test_memory_that_is_too_small_is_an_error(size, note):
    with pytest.raises(torch.OutOfMemoryError) as caught:
        with_little_memory(size=size, callbacks=[Fails()]).fit()
    assert note in "".join(getattr(caught.value, "__notes__", []))


def test_a_loss_that_can_not_be_split_is_refused_at_the_first_split():
    def root(outputs, targets):
        return cross_entropy(outputs, targets).sqrt()

    with_little_memory(loss_fn=root).fit()
    with pytest.raises(SplitLossError):
        with_little_memory(loss_fn=root, callbacks=[Fails(most=4)]).fit()


# --- copies ahead ---


BROKEN = [None, *(["wait_stream", "record_stream"] if KIND == "cuda" else [])]


def wait_for_itself(copies, batch, wait=CopyStream.wait):
    """Let the current stream wait for the current stream, which has no effect."""
    other, copies.stream = copies.stream, torch.accelerator.current_stream(copies.device)
    wait(copies, batch)
    copies.stream = other


@pytest.mark.parametrize("broken", BROKEN)
def test_copies_ahead_wait_and_hold_their_memory(broken, monkeypatch):
    if broken == "record_stream":
        monkeypatch.setattr(torch.Tensor, broken, lambda *arguments: None)
    elif broken:
        monkeypatch.setattr(CopyStream, "wait", wait_for_itself)
    make_trainer(loader=batches(24, 4), device=KIND).fit()

    assert bool(device.races()) == bool(broken)
    assert device.calls()["record_stream" if broken == "wait_stream" else "stream_wait_event"] > 6
