"""Run a script in one process of `composable launch`, and record the exception that ends it.

This file is run by its path and imports the standard library alone, because a script may set
environment variables that torch and its libraries read when they are imported.
"""

import ctypes
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

OWN_FILES = (__file__, runpy.__file__, "<frozen runpy>")


def run_rank(kind: str, target: str, arguments: list[str]) -> None:
    """Run a script or a module as Python would, and record its exception.

    Args:
        kind: "script" or "module".
        target: The path of a script, or the name of a module.
        arguments: The arguments of the script.
    """
    end_with_parent()
    # The agent signals process groups. The workers of a DataLoader, which are forked, are not in
    # the script's: it needs them to finish its batch.
    os.register_at_fork(after_in_child=os.setpgrp)
    sys.argv = [target, *arguments]
    try:
        if kind == "module":
            sys.path[0] = str(Path.cwd())
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            path = Path(target).absolute()
            sys.path[0] = str(path.resolve().parent)
            runpy.run_path(str(path), run_name="__main__")
    except Exception as error:
        error = error.with_traceback(frames_of_script(error.__traceback__))
        record_failure(error)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def end_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when the launcher dies, on Linux."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def frames_of_script(frames: TracebackType | None) -> TracebackType | None:
    """Remove the frames of this file and of runpy from a traceback."""
    while frames is not None and frames.tb_frame.f_code.co_filename in OWN_FILES:
        frames = frames.tb_next
    return frames


def record_failure(error: BaseException) -> None:
    """Write an exception to the error file of torch's elastic agent, unless there is one already.

    The file has the format of `torch.distributed.elastic.multiprocessing.errors.record`. It is
    complete or absent, since the agent cannot read half of one.
    """
    name = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not name or Path(name).exists():
        return
    shown = "".join(traceback.format_exception(error))
    extra = {"py_callstack": shown, "timestamp": str(int(time.time()))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    draft = Path(f"{name}.draft")
    draft.unlink(missing_ok=True)
    with draft.open("x") as file:  # this file imports nothing else that could open it
        file.write(json.dumps({"message": message}))
    draft.replace(name)


if __name__ == "__main__":
    run_rank(sys.argv[1], sys.argv[2], sys.argv[3:])
