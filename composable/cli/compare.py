"""`composable compare SCRIPT[:FUNCTION]`."""

import argparse
from typing import Any


def add_compare(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "compare",
        argument_default=argparse.SUPPRESS,  # `compare` has the defaults
        usage="%(prog)s [-h] --metric METRIC [options] SCRIPT[:FUNCTION]",
        help="compare methods on a model and data: which of them shorten training",
        description=(
            "Trains the arms of a comparison with several seeds and schedules, and reports which "
            "of them reach the same results in less time than the baseline. FUNCTION, by default "
            "'build', takes the algorithms, the seed and hyperparameters, and returns a Trainer. "
            "Or it takes an arm, a seed and a duration, trains, and yields steps and results. The "
            "arms are a mapping of the script, 'arms', or given by --arm. The "
            "script is executed, except for the block of __name__ == '__main__'. The same command "
            "resumes an interrupted comparison."
        ),
    )
    parser.add_argument("script", metavar="SCRIPT[:FUNCTION]", help="a Python file")
    for title, options in _OPTIONS.items():
        group = parser.add_argument_group(title)
        for usage, text in options.items():
            flag, _, metavar = usage.partition(" ")
            kind = {"metavar": metavar} if metavar else {"action": "store_true"}
            group.add_argument(flag, help=text, **{**kind, **_SETTINGS.get(flag, {})})
    parser.set_defaults(run=_run)


_OPTIONS = {
    "arms": {
        "--arms NAME": "a mapping of the script from names to arms; default: arms",
        "--arm NAME=EXPRESSION": "an arm, such as 'mixup=[MixUp(alpha=0.2)]': an expression with "
        "the names of the script, of composable.algorithms and of composable.recipes; repeatable",
        "--baseline NAME": "the arm to compare with; default: no algorithms",
        "--no-repeat": "drop the A/A arm: the baseline once more, with other seeds",
    },
    "measures": {
        "--metric METRIC": "the reported result, such as test/accuracy",
        "--mode {min,max}": "whether the lowest or the highest result is best; default: by the "
        "name of the metric",
        "--target TARGET": "a result at which to measure; default: all that the baseline and an "
        "arm reach",
        "--tuning-metric METRIC": "the result that chooses settings; default: the other "
        "evaluator's",
    },
    "extent": {
        "--durations [ARM=]TIMES": "the schedules, such as 2ep,4ep,8ep, for all arms or for one; "
        "repeatable. Default: a quarter, a half and the whole of the Trainer's max_duration, or "
        "the baseline's",
        "--data-amounts AMOUNTS": "compare amounts of training data in the place of time, such as "
        "shares 0.1,0.3,1, which FUNCTION takes as data_amount",
        "--tune [ARM:]NAME=VALUES": "values to try, such as lr=0.01,0.1, for all arms or for one; "
        "repeatable",
        "--seeds SEEDS": "reported seeds; default: 5",
        "--tuning-seeds TUNING_SEEDS": "tuning seeds; default: 2",
        "--workers WORKERS": "parallel trials; default: one for each core",
        "--threads THREADS": "threads of a trial; default: 1",
        "--folder FOLDER": "default: comparisons/ and the name of the script",
        "--data-version TEXT": "a text that changes with the data: trials of another version are "
        "not reused",
    },
}
"""What each option is, by its group; one without a value is a switch."""
_SETTINGS: dict[str, dict[str, Any]] = {
    **{one: {"action": "append"} for one in ("--arm", "--durations", "--tune")},
    **{one: {"type": int} for one in ("--seeds", "--tuning-seeds", "--workers", "--threads")},
    "--metric": {"required": True},
    "--mode": {"choices": ("min", "max")},
    "--target": {"type": float},
    "--no-repeat": {"dest": "repeat_baseline", "action": "store_false"},
}


def _run(options: argparse.Namespace) -> int:
    from composable.cli._comparison import run_comparison

    return run_comparison(options)
