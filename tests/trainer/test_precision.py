"""The precision of a Trainer."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Precision
from composable.algorithms import EMA, SAM, GradientClipping, LowPrecisionLayerNorm
from composable.core.event import Event
from composable.engines.scaled import GradientOverflowError
from composable.loggers import InMemoryLogger
from composable.trainer.guards import NonFiniteLossError, NonFiniteLossWarning
from tests.support.data import batches
from tests.support.models import linear, seeded, weights
from tests.support.observers import Watch
from tests.support.runs import adam, make_trainer, sgd


class Dtypes(nn.Module):
    """Records the dtypes that it computes in."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = seeded(lambda: nn.Linear(4, 3)), []

    def forward(self, inputs):
        outputs = self.layer(inputs)
        self.seen.append((inputs.dtype, self.layer.weight.dtype, outputs.dtype))
        return outputs


LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("call", ["fit", "eval", "predict"])
def test_autocast_computes_in_16_bits_with_float32_weights(low, call):
    model = Dtypes()
    losses = []

    def loss_fn(outputs, targets):
        losses.append((outputs.dtype, torch.is_autocast_enabled("cpu")))
        return cross_entropy(outputs, targets)

    trainer = make_trainer(
        model, loss_fn=loss_fn, precision=f"amp_{low}", eval_dataloader=batches(4)
    )
    outputs = getattr(trainer, call)(*[batches(4)] * (call == "predict"))

    assert set(model.seen) == {(torch.float32, torch.float32, LOW[low])}
    assert set(losses) == (set() if call == "predict" else {(LOW[low], True)})
    if call == "predict":
        assert outputs[0].dtype is LOW[low]


@pytest.mark.parametrize("low", LOW)
def test_weights_in_16_bits_take_inputs_of_their_dtype_and_give_the_loss_float32(low):
    model, losses = Dtypes(), []

    def loss_fn(outputs, targets):
        losses.append(outputs.dtype)
        return cross_entropy(outputs, targets)

    state = make_trainer(model, loss_fn=loss_fn, precision=low, algorithms=[EMA("2ba")]).fit()

    assert set(model.seen) == {(LOW[low],) * 3}
    assert set(losses) == {torch.float32}
    assert {one.dtype for one in state.averages["EMA"].values()} == {torch.float32}


class OwnLoss(Dtypes):
    """A model that computes its loss with its own weights."""

    def forward(self, batch):
        return super().forward(batch[0])

    def loss(self, outputs, batch):
        return cross_entropy(outputs + self.layer.bias, batch[1])


@pytest.mark.parametrize("low", ["amp_bf16", "amp_fp16", "bf16", "fp16"])
def test_a_model_with_its_own_loss_trains_in_each_precision(low):
    state = make_trainer(OwnLoss(), loss_fn=None, precision=low).fit()

    assert state.loss.isfinite()


def test_fp32_composes_nothing_in():
    run = make_trainer()._run

    assert run.engine.forward.outputs is type(run.state).forward
    assert run.state.precision == Precision("fp32")


class Overflowing(nn.Linear):
    """A layer whose gradients overflow in some batches, while the loss stays finite."""

    def __init__(self, at, value=torch.inf):
        super().__init__(4, 3)
        self.at, self.value, self.step = at, value, -1

    def forward(self, inputs):
        self.step += self.training
        outputs = super().forward(inputs)
        if self.step in self.at and outputs.requires_grad:
            outputs.register_hook(lambda gradient: gradient * self.value)
        return outputs


def overflowing(at, value=torch.inf, **options):
    logger, model = InMemoryLogger(), seeded(lambda: Overflowing(at, value))
    options = {"precision": "amp_fp16", "loggers": [logger], "nonfinite_loss": "skip"} | options
    return make_trainer(model, **options), logger


@pytest.mark.parametrize("algorithms", [[], [SAM(0.1)], [GradientClipping("norm", 0.1)]])
def test_step_whose_gradients_overflow_is_skipped_counted_and_logged(algorithms):
    fired = Watch(Event.BATCH_START, read=lambda s: (s.timestamp.batch, weights(s.model)))
    steps = Watch(Event.BEFORE_OPTIMIZER_STEP, read=lambda s: s.timestamp.batch)
    trainer, logger = overflowing({1}, algorithms=algorithms, callbacks=[fired, steps])
    state = trainer.fit()

    # With SAM, the second pass of batch 0 overflows, and batch 1 is trained on.
    skipped = 0 if algorithms and isinstance(algorithms[0], SAM) else 1
    before, after = (dict(fired.values)[batch] for batch in (skipped, skipped + 1))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert steps.values == [batch for batch in range(6) if batch != skipped]
    assert trainer._run.loss_scaler.num_skipped == 1
    assert trainer._run.guard.num_skipped == 0
    assert logger.series("precision/skipped") == [1]
    assert logger.series("precision/loss_scale") == [32768.0]
    assert logger.series("loss/train")[skipped] < 10  # the loss without its scale
    assert state.loss.isfinite()
    assert not any(parameter.grad is not None for parameter in state.model.parameters())


def test_a_skipped_second_pass_keeps_the_statistics_of_the_first():
    def model(at):
        return seeded(lambda: nn.Sequential(nn.BatchNorm1d(4), Overflowing(at)))

    def statistics(model, algorithms):
        state = make_trainer(
            model, precision="amp_fp16", algorithms=algorithms, max_duration="1ba"
        ).fit()
        return dict(state.model.named_buffers())

    found, expected = statistics(model({1}), [SAM(0.1)]), statistics(model({0}), [])
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("device_waits", [True, False])
def test_a_loss_that_is_not_finite_is_left_to_the_guard(device_waits):
    def loss_fn(outputs, targets):
        return cross_entropy(outputs, targets) * torch.nan

    options = {"loss_fn": loss_fn, "precision": "amp_fp16"}
    trainer = make_trainer(**options)
    trainer._run.guard.immediate = device_waits
    before = weights(trainer.state.model)
    with pytest.raises(NonFiniteLossError, match="batch 0 was nan"):
        trainer.fit()
    after = weights(trainer.state.model)
    assert all(torch.equal(before[name], after[name]) for name in before)

    trainer = make_trainer(**options, nonfinite_loss="skip", max_duration="2ba")
    with pytest.warns(NonFiniteLossWarning):
        trainer.fit()
    assert (trainer._run.guard.num_skipped, trainer._run.loss_scaler.num_skipped) == (2, 0)
    assert trainer._run.loss_scaler.scale == 65536

    trainer = make_trainer(**options, nonfinite_loss="ignore", max_duration="2ba")
    trainer.fit()
    assert trainer._run.loss_scaler.num_skipped == 2


def test_gradients_that_are_never_finite_end_the_run():
    trainer, _ = overflowing(range(100), torch.nan, max_duration="100ba")
    with pytest.raises(GradientOverflowError, match="batch 26 are not finite, even with a loss sc"):
        trainer.fit()


@pytest.mark.parametrize("precision", ["amp_fp16", "fp32"])
def test_torch_schedulers_step_after_a_first_step_that_is_skipped(precision):
    schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=2)
    options = {"schedulers": schedule, "step_schedulers_every_batch": True, "precision": precision}
    if precision == "amp_fp16":
        trainer, _ = overflowing({0}, **options)
        trainer.fit()
    else:
        data = [(torch.full((4, 4), torch.nan), torch.zeros(4).long()), *batches(8)]
        trainer = make_trainer(loader=data, nonfinite_loss="skip", max_duration="1ep", **options)
        with pytest.warns(NonFiniteLossWarning):
            trainer.fit()
    assert trainer.state.optimizers[0].param_groups[0]["lr"] < 0.1


# --- checkpoints ---


def test_another_precision_of_float32_weights_resumes_and_is_reported(tmp_path):
    make_trainer(save_folder=tmp_path).fit()
    with pytest.warns(UserWarning, match=r"precision.*'fp32'.*'amp_fp16'"):
        trainer = make_trainer(
            save_folder=tmp_path, autoresume=True, max_duration="3ep", precision="amp_fp16"
        )
    trainer.fit()

    assert trainer._run.loss_scaler.scale == 65536
    with pytest.warns(UserWarning, match="precision"):
        make_trainer(save_folder=tmp_path, autoresume=True, max_duration="4ep").fit()


def test_weights_of_another_precision_load(tmp_path):
    whole = make_trainer()
    whole.fit()
    path = whole.save_checkpoint(tmp_path / "weights", weights_only=True)
    trainer = make_trainer(linear(seed=1), precision="bf16", load_path=path, load_weights_only=True)

    assert trainer.state.model.weight.dtype is torch.bfloat16
    assert torch.equal(trainer.state.model.weight, whole.state.model.weight.bfloat16())


# --- norms in low precision ---


@pytest.mark.parametrize("precision", ["amp_bf16", "bf16"])
def test_low_precision_norms_act_without_a_word(precision, recwarn):
    model = seeded(lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)))
    dtypes = []
    trainer = make_trainer(model, precision=precision, algorithms=[LowPrecisionLayerNorm()])
    trainer.state.model[0].register_forward_hook(lambda m, i, out: dtypes.append(out.dtype))
    trainer.fit()

    assert set(dtypes) == {torch.bfloat16}
    assert not recwarn.list


# --- arguments ---


def test_an_epsilon_that_is_0_in_float16_is_refused():
    with pytest.raises(ValueError, match=r"eps=1e-08 is 0 in torch.float16.*pass eps=1e-4"):
        make_trainer(optimizers=adam, precision="fp16")
    make_trainer(optimizers=sgd, precision="fp16")
    make_trainer(optimizers=adam, precision="bf16")


def test_complex_weights_are_not_converted():
    model = nn.Linear(4, 3)
    model.phase = nn.Parameter(torch.zeros(1, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"'bf16' can't convert the complex tensor 'phase'"):
        make_trainer(model, precision="bf16")


class Recurrent(nn.Linear):
    """A model that is like `nn.LSTM` on most CPUs, which have no float16 for it."""

    def forward(self, inputs):
        outputs = super().forward(inputs)
        if outputs.dtype is torch.float16:
            raise RuntimeError("could not create a primitive descriptor")
        return outputs


def test_an_operation_without_float16_on_the_cpu_is_explained():
    with pytest.raises(RuntimeError) as caught:
        make_trainer(Recurrent(4, 3), precision="amp_fp16").fit()
    assert "with 'amp_bf16' it does" in caught.value.__notes__[-1]
    assert make_trainer(Recurrent(4, 3), precision="amp_bf16").fit().loss.isfinite()


def test_amp_is_the_autocast_of_the_device():
    assert make_trainer(precision="amp").state.precision.name == "amp_bf16"


def let_gpu_be(monkeypatch, major):
    """Answer as a GPU of a compute capability."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")


@pytest.mark.parametrize("name", ["tf32", "amp_bf16", "bf16"])
def test_an_old_gpu_is_told_what_it_can_do(name, monkeypatch):
    let_gpu_be(monkeypatch, 7)
    with pytest.raises(ValueError, match=f"'{name}' needs a GPU of compute capability 8.0, and T"):
        Precision(name).on(torch.device("cuda"))
    let_gpu_be(monkeypatch, 8)
    assert Precision(name).on(torch.device("cuda")).name == name
    assert Precision("amp").on(torch.device("cuda")).name == "amp_fp16"


def test_tf32_is_allowed_within_a_call_alone():
    def settings():
        cudnn = torch.backends.cudnn
        if hasattr(cudnn, "conv"):
            return torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision
        return torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32

    before = settings()
    with Precision("tf32").backend_settings():
        assert set(settings()) <= {"tf32", True}
    assert settings() == before
