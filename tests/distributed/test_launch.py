"""`composable launch`: exit statuses, tracebacks, logs and signals of several processes."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import MagicMock as Mock

import pytest

from composable.cli import main
from tests.support.commands import LIMIT, Command
from tests.support.processes import free_port, is_alive, wait_until


def script(folder, *lines, name="script.py"):
    """Write a script, which has `rank` and `restart`."""
    head = """
        import os, signal, sys, time
        rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    """
    path = folder / name
    path.write_text(textwrap.dedent(head) + "\n".join(lines) + "\n")
    return name


def launch(folder, *arguments, limit=LIMIT, **variables):
    """Run the command to its end, and return its result."""
    process = start(folder, *arguments, **variables)
    return subprocess.CompletedProcess(process, *process.finish(limit))


def start(folder, *arguments, **variables):
    """Start the command, with the signals of a terminal."""
    kept = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "LOGLEVEL")}
    variables = {**kept, "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    return Command(folder, ["launch", *map(str, arguments)], variables)


def wait_for(*paths):
    wait_until(lambda: all(path.exists() for path in paths))


# A script that waits until every rank is there, and then for the failure of another.
MEET = (
    "open(f'here{rank}', 'w').close()",
    "while len([n for n in os.listdir() if n.startswith('here')]) < 2: time.sleep(0.01)",
)
WAIT = "time.sleep(600)"
ENDINGS = {
    "exception": ("raise ValueError('no such label: 7')", 1, "ValueError: no such label: 7"),
    "status": ("sys.exit(7)", 7, "exit status 7"),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL"),
    "SIGSEGV": ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "Segmentation fault"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", 143, "stopped by SIGTERM"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_failure_of_one_rank_ends_all(ending, tmp_path):
    line, status, message = ENDINGS[ending]
    name = script(tmp_path, *MEET, f"if rank == 1: {line}", WAIT)
    done = launch(tmp_path, "-n", 2, name)
    assert done.returncode == status, done.stderr
    assert "rank 1 ended first" in done.stderr
    assert message in done.stderr


def test_first_failure_is_reported_although_other_ranks_fail_at_once(tmp_path):
    lines = [
        "if rank == 1: raise ValueError('the cause')",
        "while 'cause' not in os.listdir(): time.sleep(0.001)",
        "raise ConnectionError('connection closed by peer')",
    ]
    cause = "import atexit; atexit.register(lambda: (open('cause', 'w').close(), time.sleep(0.3)))"
    name = script(tmp_path, *MEET, f"if rank == 1:\n    {cause}", *lines)
    done = launch(tmp_path, "-n", 2, name)
    assert done.returncode == 1
    report = done.stderr.partition("composable launch: ")[2]
    assert report.startswith("rank 1 ended first")
    assert "ValueError: the cause" in report
    assert "ConnectionError" not in report


def test_traceback_begins_in_the_script(tmp_path):
    name = script(tmp_path, "def train(): raise ValueError('no')", "train()")
    report = launch(tmp_path, "-n", 1, name).stderr
    files = [line for line in report.splitlines() if line.strip().startswith("File ")]
    assert len(files) == 4  # two frames, on the console and in the report
    assert all(name in line for line in files)


def test_arguments_arrive_unchanged_and_the_script_is_the_main_module(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "beside.py").write_text("value = 5\n")
    lines = ["import beside", "print(sys.argv[1:], __name__, beside.value, 'torch' in sys.modules)"]
    name = script(tmp_path / "sub", *lines)
    given = ["-n", "3", "--lr=1", "-h", "$HOME ${local_rank} $$", "--", "--", "last"]
    done = launch(tmp_path, "-n", 1, f"sub/{name}", *given)
    assert done.stdout == f"{given} __main__ 5 False\n", done.stderr
    assert done.returncode == 0


def test_modules_and_commands(tmp_path):
    (tmp_path / "package").mkdir()
    script(tmp_path / "package", "print(__name__, __package__, sys.argv[1:])", name="train.py")
    module = launch(tmp_path, "-n", 2, "-m", "package.train", "x")
    assert module.stdout == "__main__ package ['x']\n", module.stderr
    command = launch(tmp_path, "-n", 2, "-c", "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE"')
    assert command.stdout == "rank 0 of 2\n", command.stderr


@pytest.mark.parametrize(
    ("console", "shown"),
    [("all", {"out 0", "[rank 1] out 1"}), ("none", set())],
)
def test_ranks_on_the_console_and_in_files(console, shown, tmp_path):
    name = script(tmp_path, "print('out', rank)", "print('error', rank, file=sys.stderr)")
    logs = ["--log-dir", "logs", "--stderr", "err/{rank}-of-{world_size}-{node_rank}.txt"]
    done = launch(tmp_path, "-n", 2, "--console", console, *logs, name)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == shown
    assert (tmp_path / "logs" / "rank1.stdout.log").read_text() == "out 1\n"
    assert (tmp_path / "err" / "1-of-2-0.txt").read_text() == "error 1\n"
    assert (tmp_path / "logs" / "rank0.stdout.log").exists() == (console == "none")


def test_threads_are_the_usable_cores_divided_by_the_processes(monkeypatch):
    from composable.launch import launch as module

    def threads(nproc, given=None):
        for name in ("OMP_NUM_THREADS", "PYTHONFAULTHANDLER", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"):
            monkeypatch.delenv(name, raising=False)
        if given:
            monkeypatch.setenv("OMP_NUM_THREADS", given)
        module._set_environment(None, Mock(nproc=nproc, machines=1))
        return os.environ["OMP_NUM_THREADS"]

    monkeypatch.setattr(os, "environ", dict(os.environ))  # whatever is set is forgotten
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(12), raising=False)
    monkeypatch.setattr(Path, "read_text", lambda _: "max 100000")
    assert [threads(n) for n in (1, 2, 5, 24)] == ["12", "6", "2", "1"]
    monkeypatch.setattr(Path, "read_text", lambda _: "800000 100000")  # the quota of a container
    assert [threads(n) for n in (1, 2, 5, 24)] == ["8", "4", "1", "1"]
    assert threads(2, given="3") == "3"


@pytest.mark.skipif(sys.platform != "linux", reason="of the interfaces of Linux")
def test_several_machines_use_the_interface_by_which_they_are_reached(monkeypatch, capsys):
    import psutil

    from composable.distributed import network
    from composable.launch.launch import _report_unknown

    named = {"lo": "127.0.0.1", "eth0": "10.0.0.1", "eth1": "10.0.1.1"}
    routes = {"10.0.1.9": "10.0.1.1", "127.0.1.1": "127.0.0.1", network._ELSEWHERE: "10.0.0.1"}
    kinds = {one: psutil.net_if_addrs()[one] for one in psutil.net_if_addrs()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name, address in network._addresses(probe):
            assert address in [one.address for one in kinds[name]]
    probe = Mock(getsockname=lambda: [routes[probe.connect.call_args[0][0][0]]])
    probe.__enter__ = lambda _: probe
    probe.__exit__ = lambda *_: None
    monkeypatch.setattr(network.socket, "socket", lambda *_: probe)
    monkeypatch.setattr(network, "_addresses", lambda _: iter(named.items()))
    assert network.interface_to("10.0.1.9") == ("eth1", "10.0.1.1")
    assert network.interface_to("127.0.1.1") == ("eth0", "10.0.0.1")  # the first machine, on itself
    probe.connect.side_effect = OSError("no route")
    assert network.interface_to("10.0.1.9") is None  # one of two
    del named["eth1"]
    assert network.interface_to("10.0.1.9") == ("eth0", "10.0.0.1")

    monkeypatch.setattr(os, "environ", {"NCCL_SOCKET_IFNAME": "ib0"})
    network.set_interface("no-such-name.invalid")
    _report_unknown("no-such-name.invalid")
    assert os.environ == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "ib0"}
    assert "'no-such-name.invalid' has no address on" in capsys.readouterr().err


def test_a_job_is_named_by_what_all_of_its_machines_have_the_same():
    from composable.launch.launch import _job_of
    from composable.launch.options import Launch, ProcessLayout

    def job(nproc=1, machine=0, **options):
        given = Launch("train.py", master_addr="node0", node_rank=machine, **options)
        return _job_of(given, ProcessLayout(nproc, 2, machine))

    same, *others = job(), job(nproc=2), job(arguments=("--lr", "1")), job(master_port=29501)
    assert same == job(machine=1)
    assert len({same, *others, job(job_id="7"), job(nproc=2, job_id="7")}) == 6
    ports = [Launch("a", job_id=one).port for one in (None, "7", "7", "8")]
    assert ports == [29500, 21346, 21346, 26291]


def test_several_machines_can_restart_with_those_that_are_left(tmp_path):
    from composable.launch.launch import _config
    from composable.launch.options import Launch, ProcessLayout

    def config(**options):
        target = tmp_path / "a.py"
        target.touch()
        options = {"nproc": 2, "node_rank": 1, "master_addr": "node0", "job_id": "7", **options}
        given = Launch(str(target), **options)
        found = _config(given, ProcessLayout.of(given), None, "10.0.0.2")
        return found.min_nodes, found.max_nodes, found.rdzv_backend, found.local_addr

    assert config(world_size=4) == (2, 2, "static", None)
    assert config(nnodes="2") == (2, 2, "static", None)
    assert config(nnodes="1:3", max_restarts=1) == (1, 3, "c10d", "10.0.0.2")
    assert config(world_size=4, max_restarts=1) == (2, 2, "c10d", "10.0.0.2")


def test_restart_repeats_all_ranks_with_log_files_of_their_own(tmp_path):
    lines = ["print('restart', restart, flush=True)", "if rank == 1 and restart == 0: sys.exit(3)"]
    rest = "if restart == 0: time.sleep(600)"
    name = script(tmp_path, *MEET, *lines, rest)
    done = launch(tmp_path, "-n", 2, "--max_restarts", 1, "--stdout", "{rank}.log", name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "restart 0\nrestart 1\n"
    assert (tmp_path / "1.log").read_text() == "restart 0\n"
    assert (tmp_path / "1.log.1").read_text() == "restart 1\n"


# ------------------------------------------------------------------------------------------------
# Signals

SAVES = (
    "def save(number, frame):",
    "    open(f'saved{rank}', 'w').close()",
    "    sys.exit(128 + number)",
    "signal.signal(signal.SIGTERM, save)",
    "signal.signal(signal.SIGINT, save)",
    "open(f'pid{rank}', 'w').write(str(os.getpid()))",
    "os.rename(f'pid{rank}', f'ready{rank}')",
    "time.sleep(600)",
)


@pytest.mark.parametrize(("sent", "status"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 143)])
def test_signal_reaches_every_rank(sent, status, tmp_path):
    process = start(tmp_path, "-n", 2, script(tmp_path, *SAVES))
    wait_for(tmp_path / "ready0", tmp_path / "ready1")
    os.kill(process.pid, getattr(signal, sent))
    assert process.finish()[0] == status
    assert (tmp_path / "saved0").exists()
    assert (tmp_path / "saved1").exists()


def test_rank_that_ignores_a_signal_is_killed_after_the_grace_period(tmp_path):
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    ready = "open(f'p{rank}', 'w').write(str(os.getpid())); os.rename(f'p{rank}', f'ready{rank}')"
    process = start(tmp_path, "-n", 2, "--grace", 1, script(tmp_path, ignore, ready, WAIT))
    wait_for(tmp_path / "ready0", tmp_path / "ready1")
    pids = [int((tmp_path / f"ready{rank}").read_text()) for rank in (0, 1)]
    process.terminate()
    assert process.finish()[0] == 143
    assert not any(map(is_alive, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux sends the signal")
def test_ranks_end_with_a_launcher_that_is_killed(tmp_path):
    process = start(tmp_path, "-n", 2, script(tmp_path, *SAVES))
    wait_for(tmp_path / "ready0", tmp_path / "ready1")
    process.kill()
    assert process.finish()[0] == -signal.SIGKILL
    wait_for(tmp_path / "saved0", tmp_path / "saved1")


# ------------------------------------------------------------------------------------------------
# Several machines, which are launchers on this one


def test_two_launchers_form_one_group(tmp_path):
    lines = [
        "import torch, torch.distributed as dist",
        "dist.init_process_group('gloo')",
        "total = torch.tensor(float(rank)); dist.all_reduce(total)",
        "print(rank, os.environ['LOCAL_RANK'], total.item())",
        "dist.barrier(); dist.destroy_process_group()",
    ]
    where = ["-n", 1, "--world_size", 2, "--master_addr", "127.0.0.1"]
    where += ["--master_port", free_port()]
    name = script(tmp_path, *lines)
    second = start(tmp_path, *where, "--base_rank", 1, name)
    first = start(tmp_path, *where, "--node_rank", 0, name)
    assert first.finish()[:2] == (0, "0 0 1.0\n")
    assert second.finish()[:2] == (0, "1 0 1.0\n")


def test_machine_without_the_others_ends_with_an_error(tmp_path):
    where = ["--world_size", 2, "--node_rank", 1, "--master_addr", "127.0.0.1"]
    where += ["--master_port", free_port(), "--timeout", 2]
    done = launch(tmp_path, "-n", 1, *where, script(tmp_path))
    assert done.returncode == 2
    assert "the 2 machines did not connect within timeout=2 s" in done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------------
# Invalid options

TWO = ["-n", 1, "--world_size", 2]
INVALID = {
    "no such file": (["absent.py"], "script='absent.py' does not exist"),
    "no such command": (["-c", "absent-command"], "command='absent-command' is not an executable"),
    "no processes": (["-n", 0, "script.py"], "nproc=0 must be at least 1"),
    "not a number": (["-n", "two", "script.py"], "invalid int value: 'two'"),
    "no script": (["-n", 2], "SCRIPT"),
    "odd world": (["-n", 2, "--world_size", 3, "script.py"], "must be a multiple of nproc=2"),
    "no rank": ([*TWO, "script.py"], "node_rank=None must be the number of this machine"),
    "rank": ([*TWO, "--node_rank", 2, "script.py"], "node_rank=2 must be from 0 to 1"),
    "two ranks": (
        [*TWO, "--node_rank", 0, "--base_rank", 1, "script.py"],
        "base_rank=1 must be node_rank times nproc=1, and node_rank=0 is given",
    ),
    "no address": ([*TWO, "--node_rank", 1, "script.py"], "must be the address of machine 0"),
    "no number": (["--nnodes", "2-3", "script.py"], "nnodes='2-3' must be a number of machines"),
    "fewest of all": (
        ["--nnodes", "3:2", "script.py"],
        "nnodes='3:2' must be a number of machines",
    ),
    "two worlds": ([*TWO, "--nnodes", 3, "script.py"], "means 3 processes, and world_size=2; pass"),
    "no restart": (["--nnodes", "1:2", "script.py"], "nnodes='1:2' needs --max_restarts"),
    "negative": (["--max_restarts", -1, "script.py"], "max_restarts=-1 must be at least 0"),
    "one file": (
        ["-n", 2, "--stdout", "log.txt", "script.py"],
        "stdout='log.txt' must contain {rank} or {local_rank}",
    ),
    "placeholder": (["--stdout", "{user}", "script.py"], "must contain no placeholders except"),
    "brace": (["--stderr", "{rank", "script.py"], "is an invalid template"),
    "port": (["--master_port", 70000, "script.py"], "master_port=70000 must be from 1 to 65535"),
    "folder": (["--log_dir", "script.py", "script.py"], "log_dir='script.py' cannot be written"),
}


@pytest.fixture
def refused(tmp_path, capsys, monkeypatch):
    """Return a function that launches with options that are refused, and returns the message."""
    monkeypatch.chdir(tmp_path)
    script(tmp_path, "open('started', 'w')")

    def launch(*arguments):
        try:
            status = main(["launch", *map(str, arguments)])
        except SystemExit as end:  # raised by argparse
            status = end.code
        assert status == 2
        assert not (tmp_path / "started").exists()
        return capsys.readouterr().err

    return launch


@pytest.mark.parametrize("mistake", INVALID)
def test_invalid_option_is_an_error_before_any_process_starts(mistake, refused):
    arguments, message = INVALID[mistake]
    assert message in refused(*arguments)


def test_port_in_use_is_an_error(refused):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = refused("--master_port", port, "script.py")
    assert f"master_port={port} cannot be used on this machine" in message


def test_more_processes_than_gpus_is_an_error(refused, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert "nproc=8 exceeds the 4 GPUs" in refused("-n", 8, "script.py")


def test_launch_inside_a_launch_is_an_error(refused, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "launch")
    assert "use one launcher only" in refused("script.py")
