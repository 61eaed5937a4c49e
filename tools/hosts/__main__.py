"""The command line: see the package."""

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.hosts.campaign import Case, campaign, run
from tools.hosts.network import Hosts, remove, why_not

STAY = Path("/tmp/composable-hosts")
"""The disks of hosts that stay, in the namespaces of job 0."""


def main() -> int:
    """Run a command, and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.hosts")
    parser.add_argument("command", choices=["up", "in", "down", "run", "campaign"])
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    command, rest = vars(parser.parse_args()).values()
    if reason := why_not():
        print(f"skipped: {reason}")
        return int(command != "campaign")
    if command == "up":
        Hosts(int(rest[0]), STAY, job=0).up()
    elif command == "down":
        remove(left=True)  # no process has the number 0
    elif command == "in":
        inside = Hosts(1, STAY, job=0).command(int(rest[0]), rest[1:])
        return subprocess.run(inside, timeout=600, check=False).returncode
    else:
        with TemporaryDirectory() as folder:
            if command == "campaign":
                outcomes = campaign(int(rest[0]), Path(folder), *map(int, rest[1:]))
            else:
                with Hosts(2, Path(folder, "hosts")) as hosts:
                    outcomes = [run(hosts, Path(folder, "run"), Case(*rest))]
                for log in sorted(Path(folder, "run").glob("*.log")):
                    print(f"--- {log.name}\n{log.read_text(errors='replace')}")
                print(outcomes[0])
        wrong = Counter(text for one in outcomes for text in one.wrong)
        print(f"{len(outcomes)} runs, wrong: {dict(wrong)}")
        return int(bool(wrong))
    return 0


if __name__ == "__main__":
    sys.exit(main())
