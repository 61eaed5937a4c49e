"""Write models to the Hugging Face Hub."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from composable._support.hub import HubPlace
from composable._support.object_stores import cache
from composable._support.secrets import redact
from composable.checkpoint.errors import UnwritableCheckpointError
from composable.checkpoint.export import CARD, CARD_MARK, SUFFIX
from composable.distributed import Processes


def publish(name: str, place: HubPlace, write: Callable[[Path], Any]) -> str:
    """Write a model to a repository, in one commit, and return its URL with the commit.

    A repository that is missing is created. Other files in it stay, and so does a card without the
    mark of this library. All processes call this together.

    Args:
        name: The name of the argument, for errors.
        place: A file of safetensors or a folder.
        write: Writes the file or the folder on this machine, and the card beside or in it.

    Raises:
        PathError: There is no token.
        UnwritableCheckpointError: It cannot be written.
    """
    processes, path = Processes.current(), Path(place.path)
    folder, file = (path.parent, path.name) if path.suffix == SUFFIX else (path, "")
    common: dict[str, Any] = {"repo_id": place.repository, "revision": place.revision}

    def start() -> bool:
        api, card = place.api(name, writes=True), (folder / CARD).as_posix()
        with _writing(place):
            api.create_repo(place.repository, exist_ok=True)
            if not api.file_exists(filename=card, **common):
                return False
            return CARD_MARK not in Path(api.hf_hub_download(filename=card, **common)).read_text()

    keeps_card = processes.on_main(start)
    with tempfile.TemporaryDirectory(dir=cache()) as aside:
        root = Path(aside, "model")
        write(root / file)

        def upload() -> str:
            with _writing(place):
                commit = place.api(name).upload_folder(
                    folder_path=root,
                    path_in_repo=folder.as_posix(),
                    commit_message="Export weights",
                    ignore_patterns=[CARD] if keeps_card else None,
                    **common,
                )
            return str(commit.oid)

        return str(attrs.evolve(place, revision=processes.on_main(upload)))


@contextmanager
def _writing(place: HubPlace) -> Iterator[None]:
    """Convert errors of the hub to errors of checkpoints."""
    try:
        yield
    except Exception as error:  # of any of the libraries below it
        why = redact(f"{type(error).__name__}: {error}")[:300]
        raise UnwritableCheckpointError(f"{place} cannot be written: {why}") from error
