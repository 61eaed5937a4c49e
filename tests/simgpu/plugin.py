"""Plugin of pytest: `pytest -p tests.simgpu.plugin FILES` runs them with two simulated GPUs."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.simgpu.build import UnavailableError

try:
    from tests.simgpu import device
except UnavailableError as error:
    device, why = None, str(error)  # type: ignore[assignment]
else:
    why = ""


def pytest_report_header() -> str:
    """Say which devices there are, or why there are none."""
    if why:
        return f"simulated GPU: SKIPPED ALL TESTS: {why}"
    return f"simulated GPU: {device.KIND}:0 and {device.KIND}:1"


def pytest_ignore_collect() -> bool | None:
    """Collect nothing where there are none."""
    return True if why else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a run without tests pass, if there are no devices."""
    if why and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say it again at the end, also with -q."""
    if why:
        terminalreporter.write_line(pytest_report_header())


@pytest.fixture(autouse=True)
def _counts_of_this_test() -> Iterator[None]:
    device.reset()
    yield
    device.core.forbid_waits(False)
