"""States of earlier versions, in the current format."""

from collections.abc import Mapping
from typing import Any

__all__ = ["is_old", "split_averages", "upgraded"]


def is_old(saved: Mapping[str, Any]) -> bool:
    """Return whether an earlier version wrote a state: its model has the training weights."""
    return not {"averages", "raw", "weights"} & saved.keys()


def upgraded(saved: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return a state in the current format.

    Earlier versions kept averages in the memory, and did not record the first batch.

    Args:
        saved: The state in a checkpoint, of this or an earlier version, whose `model` had the
            weights that are trained.
        names: The algorithms that average weights.
    """
    if isinstance(saved.get("data"), Mapping):
        saved = {**saved, "data": {"first_batch": None, **saved["data"]}}
    if not is_old(saved):
        return dict(saved)
    new: dict[str, Any] = {
        "averages": {},
        "raw": {"model": {}, "loss_fn": {}},
        "weights": {"best": None},
        "loss_shares": {"unit": None},
    }
    return {**saved, **new, **split_averages(saved.get("memory"), names)}


def split_averages(memory: Any, names: set[str]) -> dict[str, Any]:
    """Return the memory and the averages of a state whose memory has both."""
    if not isinstance(memory, Mapping):
        return {}
    rest, averages = dict(memory), {}
    for name in names & rest.keys():
        if isinstance(rest[name], Mapping) and "average" in rest[name]:
            kept = dict(rest.pop(name))
            averages[name] = kept.pop("average")
            rest |= {name: kept} if kept else {}
    return {"memory": rest, "averages": averages}
