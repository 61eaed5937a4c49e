"""A run in a folder of an object store."""

import re
from typing import Any

from composable import Trainer
from tests.support.data import shuffling_loader
from tests.support.models import conv_net, weights
from tests.support.models import same as same_weights
from tests.support.object_store import BUCKET, Server
from tests.support.observers import Raise
from tests.support.runs import adam, make_trainer

URL = f"s3://{BUCKET}/run"
OPTIONS = {
    "save_interval": "2ba",
    "autoresume": True,
    "save_num_checkpoints_to_keep": 2,
}


def run(folder: Any, stop: int | None = None, **options: Any) -> Trainer:
    """Train three epochs of three batches; an error at the start of a batch ends the process."""
    lost = Raise(KeyError("the machine is lost"), batch=-1 if stop is None else stop)
    saving = {} if folder is None else OPTIONS
    given = {"optimizers": adam, "max_duration": "3ep", "callbacks": [lost], **saving, **options}
    return make_trainer(conv_net(), shuffling_loader(images=True), save_folder=folder, **given)


def same(first: Trainer, second: Trainer) -> bool:
    return same_weights(weights(first.state.model), weights(second.state.model))


def saved(server: Server, place: str = f"{BUCKET}/run") -> list[int]:
    """Return the batches of the complete checkpoints in the bucket."""
    found = server.files.glob(f"{place}/*/manifest.json")
    batches = [re.search(r"-ba(\d+)", path.split("/")[-2]) for path in found]
    return sorted(int(one[1]) for one in batches if one)
