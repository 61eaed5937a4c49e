"""What every test and every documented example gets.

In the process of the tests, but in none that they start, these differ from a user's process, each
for the reason in the comment of its line:

- Ctrl-C raises KeyboardInterrupt, also in a background job, and PyTorch has one thread;
- os.fsync syncs nothing, and the garbage collector never visits what it has frozen;
- the global generators, and the choice of deterministic algorithms, are restored after each test;
- for tests with the marker `compile`, compiled code is forgotten and guards are not profiled;
- Hypothesis takes the same examples in every run, and seeds PyTorch as it seeds Python;
- doctest ends an example at a fence of Markdown.

What is collected depends on the machine: ADAPTERS below needs packages, and tests/gpu a GPU.
"""

import doctest
import gc
import importlib.util
import logging
import os
import random
import re
import signal
import sys

import pytest
import torch
from hypothesis import register_random, settings

# What a shell starts in the background ignores Ctrl-C, and so does what that starts in turn; the
# tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Results on one thread and on two differ in the last bits.
torch.set_num_threads(1)

# A disk takes 10 ms to sync a file, and the tests write many thousands. None cuts the power.
# The processes that a test starts sync.
os.fsync = os.fstat  # which rejects the same descriptors

# Sphinx runs conf.py; pytest would import it in search of examples. The code of the guides runs in
# a copy of the tree: tests/project/test_five_steps.py.
collect_ignore = ["docs/conf.py", "docs/contributing.md", "docs/adding_a_gradient_method.md"]
collect_ignore += ["tests/distributed/ray_runs.py"]  # it needs Ray: `make ray`
# They need torchvision and timm: `make vision`
collect_ignore += ["tests/functional/augmentation_runs.py", "tests/models/vision_runs.py"]

# The adapters and their tests need the library that they adapt to. They are skipped where it is
# not installed, and the report begins with its name.
ADAPTERS = {
    "accelerate": [  # tests/integrations/loops.py looks for itself
        "property_tests/test_clock_of_loops.py",
        "composable/integrations/extras.py",
        "tests/integrations/test_foreign_checkpoints.py",
        "tests/integrations/test_own_checkpoints_of_libraries.py",
        "tests/integrations/test_table.py",
    ],
    "cloudpickle": [
        "tests/comparison/test_execution.py",
    ],
    "lightning": [
        "docs/compare.md",
        "composable/integrations/extras.py",
        "composable/integrations/lightning.py",
        "composable/integrations/lightning_checkpoints.py",
        "property_tests/test_clock_of_loops.py",
        "tests/integrations/lightning_loop.py",
        "tests/integrations/test_examples_of_the_page.py",
        "tests/integrations/test_foreign_checkpoints.py",
        "tests/integrations/test_own_checkpoints_of_libraries.py",
        "tests/integrations/test_lightning.py",
        "tests/integrations/test_killed_loops.py",
        "tests/integrations/test_lightning_checkpoints.py",
        "tests/integrations/test_misuse_of_adapters.py",
        "tests/integrations/test_table.py",
    ],
    "numba": [
        "composable/functional/images/_kernels.py",
        "tests/functional/test_compiled.py",
    ],
    "torchmetrics": [
        "tests/models/test_glue.py",
    ],
    "transformers": [
        "composable/integrations/huggingface.py",
        "composable/integrations/huggingface_checkpoints.py",
        "composable/models/huggingface.py",
        "docs/compare.md",
        "docs/models.md",
        "property_tests/test_clock_of_loops.py",
        "property_tests/test_own_losses.py",
        "tests/integrations/test_alibi_of_huggingface.py",
        "tests/integrations/test_encodings.py",
        "tests/integrations/test_examples_of_the_page.py",
        "tests/integrations/test_foreign_checkpoints.py",
        "tests/integrations/test_huggingface.py",
        "tests/integrations/test_huggingface_checkpoints.py",
        "tests/integrations/test_killed_loops.py",
        "tests/integrations/test_misuse_of_adapters.py",
        "tests/integrations/test_table.py",
        "tests/models/test_huggingface.py",
        "tests/trainer/test_huggingface_models.py",
    ],
}
ABSENT = [library for library in ADAPTERS if importlib.util.find_spec(library) is None]
collect_ignore += [path for library in ABSENT for path in ADAPTERS[library]]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let the garbage collector ignore the modules and the tests: it would visit them for long."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Refuse names that differ between processes; mark the files that touch other packages."""
    if named := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"{named[0]} has an address in its name; pass other ids=.")
    if "foreign" not in config.option.markexpr:
        return
    from tests.support.foreign import foreign_packages

    foreign = {path: foreign_packages(path) for path in {item.path for item in items}}
    for item in items:
        if foreign[item.path]:
            item.add_marker("foreign")


_frozen_for = None


# Hooks, not fixtures for every test: those of pytest take a tenth of the time of most tests.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """Prepare a test: ignore what others have left, compile afresh, and name what examples use."""
    global _frozen_for
    if item.path != _frozen_for:
        _frozen_for = item.path
        gc.collect()  # it took 0.2 s with what the files before have left
        gc.freeze()
    if item.get_closest_marker("compile"):  # whatever of the same code others have compiled
        torch.compiler.reset()
        # It empties the caches of the processor to log how long guards take: 10 % of a compilation.
        torch._dynamo.guards.profile_guard_manager = lambda *arguments: 0.0
    yield
    # The examples in docstrings may say `torch` and `F`; a page imports what it needs.
    if isinstance(item, pytest.DoctestItem) and item.path.suffix == ".py":
        # Imported here, not above: the check of shapes must be installed before the package is.
        import composable.functional

        item.dtest.globs.update(torch=torch, F=composable.functional)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    """Leave the global generators, and the choice of algorithms, as the test found them."""
    numpy = sys.modules.get("numpy")  # an optional dependency
    before = random.getstate(), torch_random.getstate(), numpy and numpy.random.get_state()
    deterministic = torch.are_deterministic_algorithms_enabled()
    result = yield
    if torch.are_deterministic_algorithms_enabled() != deterministic:
        torch.use_deterministic_algorithms(deterministic)
    random.setstate(before[0])
    torch_random.setstate(before[1])
    if before[2] is not None:
        numpy.random.set_state(before[2])
    return result


def pytest_report_header():
    """List what is not tested on this machine."""
    lines = [f"not installed, and so not tested: {library}" for library in ABSENT]
    if not torch.cuda.is_available():
        lines.append("no CUDA device: tests/gpu is left to `make simgpu`")
    return lines


class TorchRandom:
    """Torch's global generator, as Hypothesis wants to see it."""

    def seed(self, value: int) -> None:
        torch.default_generator.manual_seed(value)

    def getstate(self) -> torch.Tensor:
        return torch.default_generator.get_state()

    def setstate(self, state: torch.Tensor) -> None:
        torch.default_generator.set_state(state)


# Hypothesis seeds Python's generator and NumPy's, and the registered ones: here PyTorch's. It holds
# only a weak reference, so the name must stay.
torch_random = TorchRandom()
register_random(torch_random)

# The first call of many a torch function takes seconds, so no example has a deadline. The
# examples are the same in every run, except in "thorough", which looks for new ones. Laws whose
# examples train take fewer: tests/support/strategies.py.
settings.register_profile("ci", deadline=None, derandomize=True, database=None, max_examples=15)
settings.register_profile("thorough", deadline=None, max_examples=100, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# In Markdown a fence ends an example; doctest alone would take it for a line of the output.
_get_doctest = doctest.DocTestParser.get_doctest
doctest.DocTestParser.get_doctest = lambda self, string, *rest: _get_doctest(
    self, re.sub("^ *```.*$", "", string, flags=re.MULTILINE), *rest
)


@pytest.fixture
def logged():
    """Collect the messages that the library logs during a test."""
    messages, logger = [], logging.getLogger("composable")
    handler, level = logging.Handler(), logger.level
    handler.emit = lambda record: messages.append(record.getMessage())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield messages
    logger.removeHandler(handler)
    logger.setLevel(level)
