"""Folders in object stores: a run works in a local folder, which is copied to its URL."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.checkpoint.errors import TakenOverError as TakenOverError
    from composable.storage.remote_folder import RemoteFolder as RemoteFolder
else:
    export_lazily(__name__)
