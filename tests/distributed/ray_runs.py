"""Runs that Ray Train starts: `make ray`. Its workers are a group when they build the Trainer."""

import hashlib
import os
from pathlib import Path

import pytest
import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train(config):
    """Train, and write the batch of the start and a digest of the weights for each rank."""
    import torch
    from torch import nn

    from composable import Callback, Trainer
    from composable.distributed import Processes

    class Die(Callback):
        def batch_end(self, state, logger):
            if state.timestamp.batch == config["dies_after"] and not Path("died").exists():
                Path("died").touch()
                os._exit(1)

    os.chdir(config["folder"])
    torch.manual_seed(0)
    data = [(torch.randn(8), torch.tensor(i % 4)) for i in range(64)]
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    trainer = Trainer(
        model=model,
        train_dataloader=torch.utils.data.DataLoader(data, batch_size=8, shuffle=True),
        max_duration="12ba",
        loss_fn=nn.functional.cross_entropy,
        optimizers=torch.optim.SGD(model.parameters(), 0.1),
        seed=0,
        save_folder="run",
        save_interval="1ba",
        autoresume=True,
        callbacks=[Die()] if Processes.current().rank == 1 else [],
    )
    start = trainer.state.timestamp.batch
    trainer.fit()
    weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    text = f"{Processes.current().size} {start > 0} {hashlib.sha256(weights).hexdigest()}"
    Path(f"rank{Processes.current().rank}").write_text(text)


@pytest.fixture(scope="module")
def cluster():
    variables = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": variables})
    yield
    ray.shutdown()


def fit(folder, dies_after):
    folder.mkdir()
    TorchTrainer(
        train,
        train_loop_config={"folder": str(folder), "dies_after": dies_after},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
    return [(folder / f"rank{rank}").read_text().split() for rank in range(2)]


def test_trainer_runs_in_workers_of_ray_and_resumes_when_ray_replaces_one(cluster, tmp_path):
    whole = fit(tmp_path / "whole", dies_after=0)
    assert whole == [["2", "False", whole[0][2]]] * 2
    assert fit(tmp_path / "died", dies_after=5) == [["2", "True", whole[0][2]]] * 2
    assert (tmp_path / "died" / "died").exists()
