"""A loop written by hand that saves and resumes, and that may end at any moment."""

import random
from functools import partial
from typing import Any

import attrs
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from composable.algorithms import EMA, GradientClipping, MixUp
from composable.callbacks import CheckpointSaver
from composable.integrations import adapt_loop
from tests.support.data import Stateful, batches, examples, noisy_loader, shuffling_loader, stream
from tests.support.outcomes import differences

MOMENTS = ("batch", "loss", "step", "end of batch", "end of epoch", "evaluation", "scheduler")
"""What a loop does, in this order."""


COUNT = 16


class KilledError(BaseException):
    """Ends a run at once, as SIGKILL does."""


LOADERS = {
    "list": partial(batches, COUNT),
    "shuffled": partial(shuffling_loader, COUNT),
    "noisy": partial(noisy_loader, COUNT),
    "generator": lambda: shuffling_loader(COUNT, generator=torch.Generator().manual_seed(3)),
    "stateful stream": lambda: DataLoader(Stateful(list(zip(*examples(COUNT), strict=True))), 4),
    "stream": partial(stream, COUNT),
    "workers": lambda: DataLoader(noisy_loader(COUNT).dataset, 4, shuffle=True, num_workers=1),
}


@attrs.frozen
class OwnRun:
    """A run of a loop written by hand: three epochs, with a scheduler and values of its own."""

    loader: str = "shuffled"
    algorithms: Any = (MixUp(), EMA("2ba"), GradientClipping("norm", 1.0))
    parts: int = 1
    """The batches of the loader for each step."""
    save_interval: str | None = "1ba"
    saves_epochs: bool = False
    """Whether the loop itself saves after each evaluation, with the result."""

    def train(
        self, folder: Any, kill: Any = None, note: Any = None, **options: Any
    ) -> dict[str, Any]:
        """Train, from the last checkpoint on if there is one, and return the outcome.

        Args:
            folder: Where to save.
            kill: A moment, and the how-manieth of it ends the run.
            note: Called often with the number of batches in the last checkpoint.
            options: Further options of the saver.
        """
        counts = dict.fromkeys(MOMENTS, 0)

        def at(moment: str) -> None:
            counts[moment] += 1
            if note is not None and saver.manager.latest is not None:
                note(int(saver.manager.latest.name.partition("ba")[2]))
            if kill is not None and kill == (moment, counts[moment]):
                raise KilledError

        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Dropout(), nn.Linear(5, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        own: dict[str, Any] = {"best": 0.0, "noise": [], "scheduler": StepLR(optimizer, 1, 0.5)}
        options = {"num_checkpoints_to_keep": 2, "metric": "loss", **options}
        saver = CheckpointSaver(folder, save_interval=self.save_interval, **options)
        t = adapt_loop(
            self.algorithms,
            model,
            optimizer,
            loss_fn=cross_entropy,
            seed=17,
            save_folder=saver,
            autoresume=True,
            extra=own,
        )
        loader = LOADERS[self.loader]()
        for _ in range(t.state.timestamp.epoch, 3):
            for i, (inputs, _) in enumerate(t.epoch(loader, accumulate_batches=self.parts), 1):
                at("batch")
                loss = t.loss(model(inputs)) / self.parts
                at("loss")
                loss.backward()
                if i % self.parts:
                    continue
                at("step")
                optimizer.step()
                optimizer.zero_grad()
                own["noise"].append(_noise())
                at("end of batch")
            at("end of epoch")
            with t.evaluating():
                result = float(model(examples(5)[0]).square().mean())
                at("evaluation")
            own["best"] = max(own["best"], result)
            own["scheduler"].step()
            own["noise"].append(_noise())
            at("scheduler")
            if self.saves_epochs:
                t.save(metrics={"loss": result})
        with t.evaluating():
            evaluated = [one.clone() for one in model.parameters()]
        return {
            "weights": [one.detach().clone() for one in model.parameters()],
            "evaluated": evaluated,
            "optimizer": optimizer.state_dict(),
            "own": {**own, "scheduler": own["scheduler"].state_dict()},
            "clock": attrs.astuple(t.state.timestamp)[:4],
            "best": None if t.best is None else (t.best.checkpoint.name, t.best.value),
        }

    def until_it_ends(self, folder: Any, kills: Any) -> dict[str, Any]:
        """Train, be killed at these moments, and start again each time."""
        for kill in kills:
            try:
                return self.train(folder, kill)
            except KilledError:
                pass
        return self.train(folder)


def _noise() -> list[float]:
    """Draw from each of the global generators."""
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002


def equal(one: Any, other: Any) -> bool:
    """Return whether two trees are equal, tensors bit for bit."""
    return not differences(one, other)
