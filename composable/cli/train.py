"""Train with the settings of a file.

A Trainer is built from a file of YAML, by Hydra's instantiate. The keys are arguments of the
Trainer; _target_ names a class or a function, which is called with the keys beside it. So such a
file is code: train only with files that you trust.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from composable.cli._errors import SettingsError, refuse


def add_train(commands: Any) -> None:
    """Add the command to a parser."""
    what = "train with the settings of a file"
    add = (parser := commands.add_parser("train", help=what, description=__doc__)).add_argument
    add("settings", metavar="SETTINGS", help="a file of YAML")
    add("overrides", metavar="KEY=VALUE", nargs="*", default=[], help="a setting, such as seed=3")
    add("--check", action="store_true", help="build everything, run one batch, and train nothing")
    add("--resume", action="store_true", help="continue from the latest checkpoint, if any")
    add("--allow", metavar="PACKAGE", action="append", default=[], help="SETTINGS may call it")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from composable._support.extras import needs
    from composable.trainer.checking import CheckError

    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    overrides = options.overrides + ["autoresume=true"] * options.resume
    try:
        with needs("composable train", "config"):
            from composable.cli._settings import SettingsFile
        trainer = SettingsFile(options.settings, tuple(options.allow)).build(overrides)
        if options.check:
            print(trainer.check())
            return 0
    except (SettingsError, CheckError, ImportError) as error:
        return refuse(error)
    trainer.fit()
    return 0
