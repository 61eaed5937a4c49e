"""`composable compare SCRIPT[:FUNCTION]`."""

import argparse
from typing import Any

__all__ = ["add_compare"]


def add_compare(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "compare",
        argument_default=argparse.SUPPRESS,  # the defaults are those of `compare`
        usage="%(prog)s [-h] --metric METRIC [options] SCRIPT[:FUNCTION]",
        help="compare methods on a model and data: which of them shorten training",
        description=(
            "Trains the arms of a comparison with several seeds and schedules, and reports which "
            "of them reach the same results in less time than the baseline. FUNCTION, by default "
            "'build', takes the algorithms, the seed and hyperparameters, and returns a Trainer. "
            "Or it takes an arm, a seed and a duration, trains, and yields steps and results. The "
            "arms are a mapping of the script, 'arms', or those of --arm and --recipe. The "
            "script is executed, except for the block of __name__ == '__main__'. The same command "
            "resumes an interrupted comparison."
        ),
    )
    parser.add_argument("script", metavar="SCRIPT[:FUNCTION]", help="a Python file")
    _arms(parser.add_argument_group("arms"))
    _measures(parser.add_argument_group("measures"))
    _extent(parser.add_argument_group("extent"))
    parser.set_defaults(run=_run)


def _arms(group: Any) -> None:
    group.add_argument(
        "--arms", metavar="NAME", help="a mapping of the script from names to arms; default: arms"
    )
    group.add_argument(
        "--arm",
        metavar="NAME=EXPRESSION",
        action="append",
        help="an arm, such as 'mixup=[MixUp(alpha=0.2)]': an expression with the names of the "
        "script, of composable.algorithms and of composable.recipes; repeatable",
    )
    group.add_argument(
        "--recipe",
        metavar="NAME",
        action="append",
        help="an arm that is a function of composable.recipes; repeatable",
    )
    group.add_argument(
        "--baseline", metavar="NAME", help="the arm to compare with; default: no algorithms"
    )
    group.add_argument(
        "--leave-one-out", action="store_true", help="add each arm without each of its algorithms"
    )
    group.add_argument(
        "--add-one-in", action="store_true", help="add the baseline with each algorithm alone"
    )
    group.add_argument(
        "--no-repeat",
        dest="repeat_baseline",
        action="store_false",
        help="drop the A/A arm: the baseline once more, with other seeds",
    )


def _measures(group: Any) -> None:
    group.add_argument("--metric", required=True, help="the reported result, such as test/accuracy")
    group.add_argument(
        "--mode",
        choices=("min", "max"),
        help="whether the lowest or the highest result is best; default: by the name of the metric",
    )
    group.add_argument(
        "--target",
        type=float,
        help="a result at which to measure; default: all that the baseline and an arm reach",
    )
    group.add_argument(
        "--tuning-metric",
        metavar="METRIC",
        help="the result that chooses settings; default: that of the other evaluator",
    )
    group.add_argument(
        "--split-evaluation",
        action="store_true",
        help="split the data of the only evaluator into 'validation' and 'test'",
    )


def _extent(group: Any) -> None:
    group.add_argument(
        "--durations",
        metavar="[ARM=]TIMES",
        action="append",
        help="the schedules, such as 2ep,4ep,8ep, for all arms or for one; repeatable. Default: a "
        "quarter, a half and the whole of the Trainer's max_duration, or those of the baseline",
    )
    group.add_argument(
        "--data-amounts",
        metavar="AMOUNTS",
        help="compare amounts of training data in the place of time, such as shares 0.1,0.3,1",
    )
    group.add_argument(
        "--tune",
        metavar="[ARM:]NAME=VALUES",
        action="append",
        help="values to try, such as lr=0.01,0.1, for all arms or for one; repeatable",
    )
    group.add_argument("--seeds", type=int, help="reported seeds; default: 5")
    group.add_argument("--tuning-seeds", type=int, help="tuning seeds; default: 2")
    group.add_argument(
        "--budget", metavar="TIME", help="a limit of the time, such as 10min; default: none"
    )
    group.add_argument(
        "--extend",
        action="store_true",
        help="train the schedules that the analysis names where results do not overlap",
    )
    group.add_argument("--workers", type=int, help="parallel trials; default: one for each core")
    group.add_argument("--threads", type=int, help="threads of a trial; default: 1")
    group.add_argument(
        "--folder", metavar="FOLDER", help="default: comparisons/ and the name of the script"
    )
    group.add_argument(
        "--data-version",
        metavar="TEXT",
        help="a text that changes with the data: trials of another version are not reused",
    )


def _run(options: argparse.Namespace) -> int:
    from composable.cli._comparison import run_comparison

    return run_comparison(options)
