"""Documents: token ids, a tensor for each."""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import IterableDataset

from composable._support.checks import check_tensor, is_integer


def check_list(name: str, value: Any, of: str) -> None:
    """Raise an error unless the value is a sequence, of what `of` says."""
    if isinstance(value, IterableDataset):
        raise TypeError(
            f"{name}={type(value).__name__} is an iterable dataset, and must be a list of {of}: "
            f"pass list(...) of it where it fits into memory."
        )
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name}={value!r:.200} must be a list of {of}, such as list({name}).")


def check_document_list(documents: Any) -> None:
    """Raise an error unless these are one-dimensional tensors of one integer dtype and device."""
    check_list("documents", documents, "one-dimensional tensors")
    if not documents:
        raise ValueError("documents=[] must have at least one document.")
    for index, document in enumerate(documents):
        name = f"documents[{index}]"
        check_tensor(name, document, advice="torch.from_numpy makes one of an array")
        if document.ndim != 1 or not is_integer(document):
            raise ValueError(
                f"{name} must have one dimension and an integer dtype, not the shape "
                f"{tuple(document.shape)} and {document.dtype}."
            )
        if (document.dtype, document.device) != (documents[0].dtype, documents[0].device):
            raise ValueError(
                f"{name} must be {documents[0].dtype} on {documents[0].device}, as documents[0], "
                f"not {document.dtype} on {document.device}."
            )
