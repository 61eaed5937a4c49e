"""The simulated devices compute as the CPU does, refuse what CUDA refuses, and count what waits."""

import os
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, dropout, mse_loss, one_hot, smooth_l1_loss

from tests.simgpu import build, device
from tests.support.models import conv_net, language_model, same, weights
from tests.support.runs import adam, sgd

KIND = device.KIND
FIRST, SECOND = (torch.device(KIND, i) for i in (0, 1))


# --- the same bits ---

INPUTS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
OPERATIONS = {
    "views": lambda x: x.t()[1:, ::2].unsqueeze(-1).expand(-1, -1, 3).sum((0, 2)),
    "in place": lambda x: x.clone().mul_(2).t_().clamp_(min=0),
    "resized": lambda x: torch.cat((x, x), out=torch.empty(0, device=x.device)),
    "lists": lambda x: torch.stack(torch._foreach_add(list(x.unbind()), 1.0)),
    "several results": lambda x: torch.cat((x.sort().values, x.topk(2).values), 1),
    "linear algebra": lambda x: torch.linalg.svd(x).S,
    "complex": lambda x: torch.fft.rfft(x).conj().imag,
    "indices": lambda x: x[torch.tensor([2, 0], device=x.device)].index_fill_(1, one(x), 0.5),
    "losses": lambda x: mse_loss(x, x.flip(0)) + smooth_l1_loss(x, x.flip(0), reduction="none"),
    "a mask": lambda x: x[x > 0],
    "numbers": lambda x: one_hot((x > 0).long(), 2) + x[0, 0],
    "drawn": lambda x: dropout(x) + torch.rand_like(x) + torch.randn(6, device=x.device),
    "nested": lambda x: torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))(x),
}


def one(x):
    return torch.ones(1, dtype=torch.long, device=x.device)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_the_bits_of_the_cpu(name):
    def run(x):
        torch.manual_seed(3)
        return OPERATIONS[name](x)

    found = run(INPUTS.to(SECOND))
    assert found.device == SECOND
    assert torch.equal(found.cpu(), run(INPUTS))


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("build_model", [conv_net, language_model])
def test_a_loop_of_any_one_trains_the_weights_of_the_cpu(build_model, make):
    inputs = torch.rand(4, 2, 8, 8) if build_model is conv_net else torch.arange(10).view(2, 5) % 7

    def train(where):
        torch.manual_seed(3)
        model = build_model().to(where)
        optimizer = make(model.parameters())
        for _ in range(3):
            outputs = model(inputs.to(where))
            cross_entropy(outputs, outputs.detach().argmax(1)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(model)

    with sdpa_kernel(SDPBackend.MATH):  # the CPU has a fused kernel, which rounds otherwise
        assert same(train("cpu"), train(FIRST))


def test_each_device_has_a_generator_of_its_own():
    def drawn(where):
        return dropout(torch.ones(50, device=where)).tolist()

    torch.manual_seed(3)
    of_cpu = torch.get_rng_state()
    first = drawn(FIRST)
    assert drawn(FIRST) != first
    assert drawn(SECOND) == first
    assert torch.equal(torch.get_rng_state(), of_cpu)
    torch.manual_seed(3)
    assert drawn(FIRST) == first == drawn("cpu")


# --- what is refused ---


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: torch.ones(2, device=FIRST) + torch.ones(2), "at least two devices"),
        (lambda: torch.ones(2, device=FIRST) + torch.ones(2, device=SECOND), "at least two"),
        (lambda: nn.Linear(2, 2)(torch.ones(1, 2, device=FIRST)), "at least two devices"),
        (lambda: torch.ones(2).add_(torch.ones((), device=FIRST)), "at least two devices"),
        (lambda: torch.rand(2, device=FIRST, generator=torch.Generator()), "device type"),
        (lambda: torch.rand(2, device=FIRST, generator=torch.Generator(SECOND)), "of device 0"),
        (lambda: torch.ones(2, device=torch.device(KIND, 2)), "invalid device ordinal"),
        (lambda: torch.ones(2, device=FIRST).numpy(), "can't convert|Cannot convert"),
        (lambda: torch.ones(2, device=FIRST).to_sparse(), "has no layout"),
    ],
)
def test_what_a_gpu_refuses_is_refused(call, message):
    with pytest.raises((RuntimeError, TypeError, NotImplementedError), match=message):
        call()


def test_scalars_of_the_cpu_are_allowed_where_cuda_allows_them():
    x = torch.ones(2, device=FIRST)
    assert ((x + torch.tensor(1.0)) * torch.tensor(2)).tolist() == [4, 4]
    with pytest.raises(RuntimeError, match="at least two devices"):
        torch.cat((x, torch.tensor([1.0])))


# --- what waits ---

X = torch.ones(4, device=FIRST)
ROWS = torch.tensor([0, 1], device=FIRST)
WAITS = {
    "item": lambda: X.sum().item(),
    "bool": lambda: bool(X[0]),
    "to the CPU": lambda: X.cpu(),
    "from the CPU": lambda: torch.ones(4).to(FIRST),
    "from a number": lambda: torch.tensor(3.0, device=FIRST),
    "to pageable memory": lambda: torch.empty(4).copy_(X, non_blocking=True),
    "pinned, but blocking": lambda: torch.ones(4).pin_memory().to(FIRST),
    "nonzero": lambda: X.nonzero(),
    "mask": lambda: X[X > 0],
    "written by a mask": lambda: X.index_put((X > 0,), torch.ones(4, device=FIRST)),
    "indices of the CPU": lambda: X[torch.tensor([0])],
    "equal": lambda: torch.equal(X, X),
    "repeats": lambda: X.repeat_interleave(ROWS.repeat(2)),
    "synchronize": lambda: torch.accelerator.synchronize(),
}
GOES_ON = {
    "arithmetic": lambda: (X * 2 + 1).softmax(0),
    "indices": lambda: X[ROWS],
    "written by indices": lambda: X.clone().index_put_((ROWS,), X[:2]),
    "where": lambda: torch.where(X > 0, X, 0.0),
    "masked": lambda: X.masked_fill(X > 0, 2.0),
    "filled": lambda: torch.full((), 3.0, device=FIRST),
    "pinned": lambda: torch.ones(4).pin_memory().to(FIRST, non_blocking=True),
    "to the other device": lambda: X.to(SECOND),
    "drawn": lambda: torch.randperm(5, device=FIRST),
    "repeats of a known sum": lambda: X.repeat_interleave(2),
    "an event": lambda: torch.Event(KIND).record(),
}


@pytest.mark.parametrize("call", WAITS.values(), ids=WAITS)
def test_what_waits_is_counted_and_can_be_refused(call):
    call()
    assert device.waits()

    torch.get_device_module(KIND).set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchronizing"):
        call()


@pytest.mark.parametrize("call", GOES_ON.values(), ids=GOES_ON)
def test_what_does_not_wait_is_not_counted(call):
    torch.get_device_module(KIND).set_sync_debug_mode("error")
    call()
    assert device.waits() == {}


# --- streams ---


@pytest.mark.parametrize("waiting", ["stream", "event", "host", "nothing"])
@pytest.mark.parametrize("writes_second", [True, False])
def test_a_missing_wait_for_another_stream_is_a_race(waiting, writes_second):
    module = torch.get_device_module(KIND)
    main, side = module.current_stream(), module.Stream(device=FIRST)
    x = torch.ones(4, device=FIRST)
    side.wait_stream(main)
    torch.accelerator.set_stream(side)
    if not writes_second:
        x.mul_(2)
    y = x + 1
    y.record_stream(main)
    done = side.record_event()
    torch.accelerator.set_stream(main)
    if waiting == "stream":
        main.wait_stream(side)
    elif waiting == "event":
        main.wait_event(done)
    elif waiting == "host":
        side.synchronize()
    x.add_(1) if writes_second else x.sum()

    assert bool(device.races()) == (waiting == "nothing")


@pytest.mark.parametrize("recorded", [True, False])
def test_memory_that_another_stream_still_reads_must_be_recorded(recorded):
    module = torch.get_device_module(KIND)
    main, side = module.current_stream(), module.Stream(device=FIRST)
    x = torch.ones(4, device=FIRST)
    side.wait_stream(main)
    torch.accelerator.set_stream(side)
    x.sum()
    if recorded:
        x.record_stream(side)
    torch.accelerator.set_stream(main)
    del x
    assert device.races() == []
    torch.ones(4, device=FIRST)

    assert ["no record_stream" in race for race in device.races()] == [True] * (not recorded)


# --- memory ---


def test_a_full_memory_is_an_error_and_is_empty_afterwards():
    held = torch.ones(1000, device=SECOND)
    used = torch.accelerator.memory_allocated(1)
    before = device.full_memories(1)
    with device.memory_limit(10_000, device=1):
        assert torch.ones(2000, device=SECOND).sum() == 2000
        with pytest.raises(torch.OutOfMemoryError, match=r"out of memory. Tried to allocate 16384"):
            torch.ones(4000, device=SECOND)
        torch.ones(4000, device=FIRST)
    torch.ones(4000, device=SECOND)
    assert torch.accelerator.memory_allocated(1) == used >= held.nbytes
    assert torch.accelerator.max_memory_allocated(1) >= used + 16000
    assert device.full_memories(1) == before + 1


def test_one_allocation_fails_and_the_next_does_not():
    with device.fails_in(1):
        torch.ones(2, device=FIRST)
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(2, device=FIRST)
        torch.ones(2, device=FIRST)


def test_fresh_memory_can_be_poisoned():
    with device.poisoned():
        assert torch.empty(5, device=FIRST).isnan().all()
        assert torch.zeros(5, device=FIRST).tolist() == [0] * 5


# --- the build ---


def python(code, **environment):
    given = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True)


@pytest.mark.skipif(KIND != "cuda", reason="sim may be loaded at any time")
def test_an_import_after_torch_names_the_cure():
    done = python("import torch, tests.simgpu.device")
    assert "imported after torch" in done.stderr
    assert "-p tests.simgpu.plugin" in done.stderr


def test_a_started_process_has_the_devices_by_its_path_and_seeds_them_before_it_uses_them():
    path = os.pathsep.join([str(build.SOURCES.parent / "auto"), str(build.ROOT)])
    code = f"""import torch; from composable.utils.reproducibility import seed_all
seed_all(17); assert torch.cuda.is_initialized() is False, "used"
print(torch.rand(1, device='{KIND}').item())"""
    drawn = torch.rand(1, generator=torch.Generator().manual_seed(17)).item()
    assert python(code, PYTHONPATH=path).stdout == f"{drawn}\n"


@pytest.mark.skipif(KIND != "cuda", reason="the message is CUDA's")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_refused():
    torch.ones(1, device=FIRST)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        try:
            torch.ones(1, device=FIRST)
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"in forked subprocess" in os.read(read, 200)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Replace the compiler by a script, the cache by an empty folder, and torch by a version."""
    script = tmp_path / "compiler"
    script.write_text(
        "#!/bin/sh\nfor last; do :; done\nsleep 0.2\necho once >> $(dirname $0)/log\n"
        'touch "$last"\n[ ! -f $(dirname $0)/fail ] || { echo no member >&2; exit 1; }\n'
    )
    script.chmod(0o755)
    torch_folder = tmp_path / "torch"
    torch_folder.mkdir()

    def version(name, cuda=None):
        (torch_folder / "version.py").write_text(f"__version__ = {name!r}\ncuda = {cuda!r}\n")

    version(torch.__version__)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "torch_folder", lambda: torch_folder)
    return version


def test_two_processes_that_start_at_once_compile_once(fake, tmp_path):
    both = [threading.Thread(target=build.extension, args=("cuda",)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()

    path = build.extension("cuda")
    assert path.exists()
    assert (tmp_path / "log").read_text() == "once\n"
    assert build.extension("sim") != path
    fake(torch.__version__ + "1")  # of the build, such as +cpu
    assert build.extension("cuda") != path


def test_a_failed_build_leaves_nothing_and_shows_why(fake, tmp_path):
    (tmp_path / "fail").touch()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="does not compile:\nno member"):
            build.extension("cuda")
    assert not list(tmp_path.glob("cache/**/*.so"))


@pytest.mark.parametrize(
    ("version", "changes", "message"),
    [
        ((torch.__version__, "13.0"), {}, "built for GPUs.* install that .*PIP_EXTRA_INDEX_URL"),
        (("2.8.0+cpu",), {}, r"needs PyTorch \d.*, and 2.8.0 is installed"),
        ((torch.__version__,), {"CXX": "no-such-compiler"}, "no C.. compiler; install g"),
    ],
)
def test_a_machine_that_can_not_simulate_says_why(fake, monkeypatch, version, changes, message):
    fake(*version)
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(build.UnavailableError, match=message):
        build.extension("cuda")


def test_the_report_says_why_there_are_none(tmp_path):
    (tmp_path / "test_x.py").write_text("def test_x():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.simgpu.plugin", "--rootdir", "."]
    done = subprocess.run(
        [*command, "-c", os.devnull, str(tmp_path)],
        env={**os.environ, "CXX": "no-such-compiler", "PYTHONPATH": str(build.ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "SKIPPED ALL TESTS: there is no C++ compiler" in done.stdout
