"""What a callback may ask of the run that it is attached to."""

from composable import Callback, Evaluator
from composable.callbacks import CheckpointSaver
from tests.support.data import batches
from tests.support.runs import make_trainer


class Asks(Callback):
    """Keeps the run, and what it offers in an evaluation."""

    def attach(self, run):
        self.run = run

    def eval_start(self, state, logger):
        self.seen = self.run.train_dataloader, self.run.evaluators, self.run.loss_scaler


def test_a_callback_gets_the_loaders_and_the_loss_scaler():
    loader, evaluated, asks = batches(12), batches(8), Asks()
    evaluator = Evaluator("test", evaluated)

    make_trainer(loader=loader, eval_dataloader=evaluator, callbacks=[asks]).fit()

    train_dataloader, evaluators, scaler = asks.seen
    assert train_dataloader is loader
    assert [one.label for one in evaluators] == ["test"]
    assert evaluators[0].dataloader is evaluated
    assert (scaler.scale.shape, scaler.num_skipped) == ((), 0)


def names(folder):
    return sorted(one.name for one in folder.iterdir())


def test_a_global_saver_writes_what_it_requests_within_its_block(tmp_path):
    trainer = make_trainer(loader=batches(4), max_duration="1ep")
    with CheckpointSaver(tmp_path):
        trainer.fit()
    assert names(tmp_path) == ["ep1-ba1"]

    trainer.fit(duration="1ep")
    assert names(tmp_path) == ["ep1-ba1"]


def test_each_call_attaches_a_callback_once(tmp_path):
    trainer = make_trainer(save_folder=tmp_path, loader=batches(4), max_duration="1ep")
    trainer.fit()
    trainer.fit(duration="1ep")

    run = trainer._run
    assert len(run.checkpoints.managers) == len(run.recorders) == 1
