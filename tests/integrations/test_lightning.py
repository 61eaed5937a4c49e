"""Lightning's Trainer: its evaluations and files, and what it refuses."""

import copy

import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from torch.nn.functional import cross_entropy

from composable.algorithms import EMA, BlurPool, GradientClipping
from composable.integrations.lightning import TRAINING_WEIGHTS, LoopAdapterCallback
from tests.integrations.lightning_loop import Composed, Plain, fit, train, trainer_of
from tests.integrations.loops import Run, trained
from tests.integrations.table import dense_net, image_net
from tests.support.models import same, weights

RUN = Run([EMA("2ba")], examples=10, evaluates=True)


def begin(kind=Plain, run=RUN):
    t = run.adapter(run.net())
    return t, kind(t, run)


def test_averaged_weights_are_used_for_tests_only():
    t, module = begin()
    trainer = trainer_of(RUN, LoopAdapterCallback(t))
    fit(trainer, module)
    before = weights(t.model)

    trainer.test(module, RUN.loader(), verbose=False)

    with t.evaluating() as model:
        assert torch.equal(RUN.seen[-1], model(RUN.probe()))
    assert same(weights(t.model), before)
    assert torch.equal(t.model[0].weight, t.state.averages["EMA"]["0.weight"])


def test_model_has_the_average_after_an_exception_in_evaluation():
    class Fails(Plain):
        def validation_step(self, batch, batch_idx):
            if not self.trainer.sanity_checking:
                raise KeyError

    t, module = begin(Fails)
    with pytest.raises(KeyError):
        fit(trainer_of(RUN, LoopAdapterCallback(t)), module)

    average = t.state.averages["EMA"]["0.weight"]
    assert torch.equal(t.model[0].weight, average)  # as after any training
    assert t.state_dict()  # which is refused in an evaluation
    t.state = t.weights.remove(t.state)
    assert not torch.equal(t.model[0].weight, average)
    assert torch.is_grad_enabled()


def test_averages_of_bfloat16_weights_are_kept_in_float32():
    t = train(Run([EMA("2ba")], dense_net), mixin=False, precision="bf16-true")

    assert {x.dtype for x in weights(t.model).values()} == {torch.bfloat16}
    assert {x.dtype for x in t.state.averages["EMA"].values()} == {torch.float32}


# --- files ---


class Scored(Composed):
    """Logs what its evaluation measures."""

    def validation_step(self, batch, batch_idx):
        self.log("score", cross_entropy(self.net(batch[0]), batch[1]))


def score_of(net):
    net = copy.deepcopy(net).eval()
    with torch.no_grad():
        sizes, losses = zip(
            *((len(y), cross_entropy(net(x), y) * len(y)) for x, y in RUN.loader()), strict=True
        )
    return (sum(losses) / sum(sizes)).item()


@pytest.mark.parametrize("weights_only", [False, True])
def test_every_file_has_the_weights_that_were_scored(weights_only, tmp_path):
    _, module = begin(Scored)
    saver = ModelCheckpoint(
        tmp_path, "{epoch}", monitor="score", mode="max", save_weights_only=weights_only
    )
    trainer = trainer_of(RUN, saver)
    fit(trainer, module)

    best = torch.load(saver.best_model_path)
    _, fresh = begin(Scored)
    fresh.load_state_dict(best["state_dict"])
    assert score_of(fresh.net) == pytest.approx(saver.best_model_score.item())
    assert (TRAINING_WEIGHTS in best) is not weights_only
    assert score_of(module.net) == pytest.approx(trainer.callback_metrics["score"].item())


@pytest.mark.parametrize("kind", [Plain, Composed])
def test_files_of_epochs_and_of_trainings_continue_them(kind, tmp_path):
    def run(epochs, path=None, *callbacks):
        t, module = begin(kind)
        own = [LoopAdapterCallback(t)] if kind is Plain else []
        trainer = trainer_of(RUN, *own, *callbacks, max_epochs=epochs)
        fit(trainer, module, path)
        return t, trainer

    whole, _ = run(3)
    saver = ModelCheckpoint(tmp_path, filename="epoch", save_on_train_epoch_end=True)
    first, trainer = run(1, None, saver)
    trainer.save_checkpoint(path := tmp_path / "training.ckpt")
    assert torch.equal(torch.load(path)["state_dict"]["net.0.weight"], first.model[0].weight)

    for one in (path, tmp_path / "epoch.ckpt"):
        assert same(trained(run(3, one)[0]), trained(whole))


def test_weights_alone_need_the_mixin(tmp_path):
    saver = ModelCheckpoint(tmp_path, save_weights_only=True)

    with pytest.raises(ValueError, match=r"would save the training weights.*LoopAdapterMixin"):
        train(RUN, mixin=False, callbacks=[saver])


def test_rejects_a_resume_without_the_state(tmp_path):
    _, module = begin()
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=2, filename="{step}")
    fit(trainer_of(RUN, saver, max_epochs=1), module)

    with pytest.raises(RuntimeError, match="resumes at step 2, and the algorithms are at batch 0"):
        train(RUN, tmp_path, resume=2, mixin=False)


# --- what is refused ---


def test_rejects_manual_optimization():
    class Manual(Plain):
        automatic_optimization = False

    with pytest.raises(ValueError, match="automatic_optimization=False is not supported"):
        train(RUN, mixin=False, kind=Manual)


def test_rejects_accumulation_that_changes():
    with pytest.raises(ValueError, match="accumulate_grad_batches=2 must not change"):
        train(RUN, mixin=False, callbacks=[GradientAccumulationScheduler({1: 2})])


def test_rejects_the_model_before_surgery():
    t = Run([BlurPool(min_channels=0)]).adapter(net := image_net())

    with pytest.raises(ValueError, match=r"Plain has no module of t\.model"):
        fit(trainer_of(RUN, LoopAdapterCallback(t)), Plain(t, RUN, net))


def test_rejects_mixin_without_its_callback():
    class Module(Composed):
        def configure_callbacks(self):
            return []

    with pytest.raises(ValueError, match=r"LoopAdapterCallback does so: add it, or the mixin"):
        train(RUN, mixin=True, kind=Module)


def test_rejects_two_callbacks():
    class Another(LoopAdapterCallback):
        state_key = "another"

    t, module = begin(run=Run([GradientClipping("norm", 1.0)]))

    with pytest.raises(RuntimeError, match=r"before_step\(\) was called twice"):
        fit(trainer_of(RUN, LoopAdapterCallback(t), Another(t)), module)
