"""The checker of logs of MLPerf."""

from pathlib import Path


def problems(path: Path, ruleset: str = "4.0.0") -> list[str]:
    """Return what the checker of the package says against a log."""
    from mlperf_logging.compliance_checker import mlp_compliance

    checker = mlp_compliance.make_checker("training", ruleset, quiet=False, werror=True)
    checker.check_file(str(path), f"training_{ruleset}/common.yaml")
    return [*checker.overwritable.values(), *checker.not_overwritable]
