"""Repositories of models on the Hugging Face Hub, which huggingface_hub reads and writes."""

import re
from hashlib import sha1
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import attrs

from composable._support.checks import PathError, StorageError
from composable._support.extras import needs
from composable._support.paths import hash_prefix
from composable._support.secrets import redact

_URL = re.compile(
    r"hf://(?:models/)?((?!(?:datasets|spaces|buckets)/)[\w.-]+/[\w.-]+)(?:@([^/]+))?/?(.*)"
)
_COMMIT = re.compile(r"/snapshots/([0-9a-f]{40})(?=/|$)")
_OTHER_FORMATS = ("*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.tflite")
"""Weights for other libraries, of which a repository may have many."""


@attrs.frozen
class HubPlace:
    """A repository, or a file or a folder in it.

    Example:
        >>> from composable._support.hub import HubPlace
        >>> HubPlace.parse("hf://me/model@main/model.safetensors")
        HubPlace(repository='me/model', revision='main', path='model.safetensors')
        >>> HubPlace.parse("hf://buckets/me/run")
    """

    repository: str
    revision: str | None
    path: str

    @classmethod
    def parse(cls, url: Any) -> "HubPlace | None":
        """Return the place of a URL, or None if it is not a repository of models."""
        found = _URL.fullmatch(url.rstrip("/")) if isinstance(url, str) else None
        if found is None:
            return None
        repository, revision, path = found.groups()
        return cls(repository, revision and unquote(revision), path)

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://{self.repository}{revision}/{self.path}".rstrip("/")

    def pinned(self, copy: Path) -> str:
        """Return the URL with the commit of a copy."""
        commit = _COMMIT.search(copy.as_posix())
        return str(attrs.evolve(self, revision=commit and commit[1]))

    def api(self, name: str, *, writes: bool = False) -> Any:
        """Return the client of the hub.

        Args:
            name: The name of the argument, for errors.
            writes: Whether a token is needed.

        Raises:
            ModuleNotFoundError: The package is not installed.
            PathError: There is no token.
        """
        with needs(f"{name}={str(self)!r}", "hub"):
            from huggingface_hub import HfApi, get_token
        if writes and get_token() is None:
            raise PathError(
                f"{name}={str(self)!r} needs a token that may write to the hub: run `hf auth "
                "login`, or set HF_TOKEN."
            )
        return HfApi()

    def copy(self, name: str) -> Path:
        """Return a copy in the cache of the hub, whose files have the hashes that the hub has.

        Args:
            name: The name of the argument, for errors.

        Raises:
            FileNotFoundError: There is nothing at this place.
            StorageError: It cannot be read, or a file differs from its hash.
        """
        api, only = self.api(name), [self.path, f"{self.path}/*"] if self.path else None
        try:
            snapshot = api.snapshot_download(
                self.repository,
                revision=self.revision,
                allow_patterns=only,
                ignore_patterns=None if only else list(_OTHER_FORMATS),
            )
        except Exception as error:  # of the libraries below it
            kind, why = type(error).__name__, redact(str(error))[:300]
            raise StorageError(f"{self} cannot be read: {kind}: {why}") from None
        found = Path(snapshot) / self.path
        files = [found] if found.is_file() else [one for one in found.rglob("*") if one.is_file()]
        if not files:
            raise FileNotFoundError(f"{name}={str(self)!r} does not exist, or is empty.")
        for file in files:
            self._verify(file)
        return found

    def _verify(self, file: Path) -> None:
        """Compare a file with its hash, by which the cache names it."""
        blob = file.resolve()
        if len(blob.name) == 64:
            digest = hash_prefix(blob, blob.stat().st_size).hexdigest()
        else:  # small files have the hash of Git
            content = blob.read_bytes()
            digest = sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        if digest != blob.name:
            raise StorageError(
                f"{file.name} of {self} differs from its hash on the hub, {blob.name}; delete "
                f"{blob} to download it again."
            )
