"""What identifies a state, as texts to show to a person."""

from typing import Any

__all__ = ["state_facts"]


def state_facts(state: Any) -> list[tuple[str, str]]:
    """Return names and texts: time, optimizers, device, results, memory and averages."""
    now, whole = state.timestamp, state.max_duration
    counts = [f"epoch {now.epoch}", f"batch {now.batch}"]
    counts += [f"{name} {n}" for name, n in (("sample", now.sample), ("token", now.token)) if n]
    done = "" if whole is None or not whole.value else f" ({state.elapsed:.0%} of {whole})"
    results = [
        (f"metrics/{label}/{name}", f"{value:.4g}" if isinstance(value, float) else str(value))
        for label, results in state.metrics.items()
        for name, value in results.items()
    ]
    return [
        ("time", ", ".join(counts) + done),
        ("optimizers", ", ".join(type(one).__name__ for one in state.optimizers) or "none"),
        ("device", f"{state.device}, precision {state.precision.name}, seed {state.key.seed}"),
        *results,
        ("memory", ", ".join(sorted(state.memory)) or "empty"),
        *((("averages", ", ".join(sorted(state.averages))),) if state.averages else ()),
    ]
