"""The weights that leave a run of several processes."""

from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader

from composable.algorithms import EMA
from composable.checkpoint import load_weights
from composable.distributed import DDP, FSDP2
from composable.optim import SGDScheduleFree
from tests.support import parallel_runs as runs
from tests.support.campaign import each_once
from tests.support.models import same, weights
from tests.support.processes import run
from tests.support.runs import make_trainer

AVERAGES = {
    "plain": {},
    "EMA": {"algorithms": [EMA("2ba")]},
    "schedule-free": {"optimizers": partial(SGDScheduleFree, lr=0.1)},
}


def leave(folder, parallel, name, best):
    """Train on two processes, and return what is said of the given model, and the results."""
    from composable.distributed.starting import join_processes

    join_processes()
    given = runs.plain_net()
    saves = {"save_folder": f"{folder}/run", "save_best": "loss", "save_best_mode": "max"}
    trainer = make_trainer(
        given,
        runs.loader("map", 44, 16),
        eval_dataloader=DataLoader(runs.images(44), 7),
        parallel=parallel,
        **{"optimizers": partial(torch.optim.SGD, lr=0.1), **AVERAGES[name]},
        **({**saves, "load_best_at_end": True} if best else {}),
    )
    said = ""
    trainer.fit()
    try:
        given.state_dict()
    except RuntimeError as error:
        said = str(error)
    outputs = [one.tolist() for one in trainer.predict(DataLoader(runs.images(44), 7))]
    trainer.export_weights(f"{folder}/model.safetensors")
    trainer.save_checkpoint(f"{folder}/saved")
    before = trainer.eval()["eval"]["loss"]
    trainer.fit(duration="1ep")
    return {"said": said, "outputs": outputs, "loss": before}


@pytest.mark.parametrize(("name", "best"), each_once(list(AVERAGES), [False, True]))
def test_files_of_a_divided_model_have_the_weights_that_were_evaluated(name, best, tmp_path):
    first, second = run(leave, 2, str(tmp_path), FSDP2(shards=2), name, best)

    assert first == second
    assert "trainer.export_weights(path), which all processes call" in first["said"]
    model, loaded = runs.plain_net(), runs.plain_net()
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    load_weights(loaded, tmp_path / "saved")
    assert same(weights(loaded), weights(model))
    expected = [torch.tensor(one) for one in first["outputs"]]
    with torch.no_grad():
        model.eval()
        outputs = [model(batch[0]) for batch in DataLoader(runs.images(44), 7)]
    torch.testing.assert_close(torch.cat(outputs), torch.cat(expected))


def test_whole_weights_are_those_of_the_given_model(tmp_path):
    first, second = run(leave, 2, str(tmp_path), DDP(shards=2), "EMA", False)

    assert first == second
    assert not first["said"]
