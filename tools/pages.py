"""The generated parts of the documentation: tables of methods, properties, pairs and loops.

Everything comes from the cases in `tests/cases`, but for the answers in the matrix of properties:
those come from a run, and are kept on its page.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.gpu.status import status_lines
from composable.testing import FunctionReport
from composable.testing.properties import PROPERTIES
from tests.support.algorithm_cases import PAIRS
from tests.support.algorithms import six_algorithms
from tests.support.cases import (
    GROUPS,
    METHODS,
    ROOT,
    Case,
    FunctionCase,
    Overview,
    all_cases,
    all_function_cases,
)
from tests.support.compiled import GRAPHS, USUAL_GRAPHS
from tests.support.integrations import LOOPS, REASONS, SIX
from tests.support.integrations import PAGE as INTEGRATIONS
from tests.support.other_trainers import NAMES
from tests.support.parallel_algorithms import ALGORITHMS, REFUSED_BY_FSDP2
from tools import (
    architectures,
    evidence,
    front,
    gallery,
    hooks,
    laws,
    migration,
    parts,
    quality,
    recipes,
    reference,
    trainers,
    versions,
)
from tools.trainer_arguments import argument_tables

MATRIX = METHODS / "matrix.md"
INDEX = METHODS / "index.md"
README = ROOT / "README.md"
LAWS, LAW_FILES = laws.PAGE, ROOT / "property_tests/README.md"
PARALLEL = ROOT / "docs/parallel.md"
DOES_IT_PAY = ROOT / "docs/evidence.md"
RECIPES = ROOT / "docs/recipes.md"
STATUS = ROOT / "docs/status.md"
MIGRATE = ROOT / "docs/migrate"
COMPILATION = ROOT / "docs/compilation.md"
HOOKS = ROOT / "docs/hooks.md"
MODELS = ROOT / "docs/models.md"
GALLERY = ROOT / "docs/gallery.md"
TRAINER = ROOT / "docs/api/trainer.md"
YOUR_TRAINER = ROOT / "docs/your_trainer.md"

REFERENCE: dict[str, dict[str, Callable[[], list[str]]]] = {
    "callbacks": {"callbacks": reference.callback_table},
    "clusters": {"options": reference.launch_table},
    "events": {"events": reference.event_table, "state": reference.state_table},
    "reliability": {
        "saving": partial(reference.argument_table, reference.SAVING),
        "loading": partial(reference.argument_table, reference.LOADING),
    },
}
"""The tables that come from docstrings, by page and name."""

REWRITE = "the page is out of date: rewrite it with `python -m tools.write_pages`"

FEATURED = ("mixup", "set_sequence_length", "linear_cross_entropy", "blurpool", "ema", "rotary")
"""The methods that the README shows."""

FIRST_SIX = {type(one).__name__ for one in six_algorithms()}

COLUMNS = {
    "pure": "pure",
    "generator": "generator",
    "global_generators": "global RNG",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float64": "float64",
    "channels_last": "channels last",
    "compile": "compile",
    "vmap": "vmap",
    "gradients": "gradients",
    "no_sync": "no sync",
    "batch_of_one": "batch of 1",
    "empty_batch": "batch of 0",
}
"""The properties, and the heading of the column of each."""

SHOWN = {"yes": "yes", "no": "no", "not applicable": "–"}

EVIDENCE = ["wide", "paper", "disputed", "practice"]
"""From the best on."""

Answers = Mapping[str, tuple[str, ...]]
"""The answer for each property, as it is shown, by the name of a function case."""


def pages(answers: Answers) -> dict[Path, Callable[[], str]]:
    """Return a function for every page that has a generated part, which renders it."""
    renderers: dict[Path, Callable[[], str]] = {
        README: readme_page,
        YOUR_TRAINER: lambda: with_generated(YOUR_TRAINER, "answers", trainers.detail_table()),
        LAWS: laws_page,
        LAW_FILES: lambda: with_generated(LAW_FILES, "files", laws.file_table()),
        HOOKS: hooks_page,
        INTEGRATIONS: lambda: with_generated(INTEGRATIONS, "loops", loops_table()),
        PARALLEL: lambda: with_generated(PARALLEL, "algorithms", parallel_table()),
        MATRIX: lambda: with_generated(MATRIX, "matrix", matrix_table(answers)),
        INDEX: index_page,
        DOES_IT_PAY: evidence_page,
        STATUS: status_page,
        GALLERY: lambda: with_generated(
            GALLERY, "gallery", gallery.lines(card(c) for c in methods())
        ),
        TRAINER: lambda: with_generated(TRAINER, "arguments", argument_tables()),
        RECIPES: lambda: with_generated(RECIPES, "recipes", recipes.recipe_table()),
        COMPILATION: lambda: with_generated(COMPILATION, "graphs", graphs_table()),
        MODELS: lambda: with_generated(MODELS, "architectures", architectures.architecture_table()),
    }
    guides = {MIGRATE / f"{library}.md": partial(guide_page, library) for library in NAMES}
    references = {ROOT / f"docs/{page}.md": partial(reference_page, page) for page in REFERENCE}
    cards = {card(case): partial(card_page, case, answers) for case in methods()}
    return renderers | guides | references | cards


def readme_page() -> str:
    """Render the tables of methods and trainers, and the claims."""
    text = with_generated(README, "methods", readme_table())
    text = _between(text, "trainers", trainers.answer_table(), README)
    return _between(text, "claims", [front.claim_sentence("docs/evidence.md")], README)


def status_page() -> str:
    """Render the tables of the runs on GPUs, and of the versions."""
    text = with_generated(STATUS, "gpu", status_lines(ROOT / "docs/evidence/gpu"))
    text = _between(text, "runs", versions.run_table(), STATUS)
    return _between(text, "packages", versions.package_table(), STATUS)


def reference_page(page: str) -> str:
    """Render the tables of a page that come from docstrings."""
    path = ROOT / f"docs/{page}.md"
    text = path.read_text()
    for name, table in REFERENCE[page].items():
        text = _between(text, name, table(), path)
    return text


def graphs_table() -> list[str]:
    """Render how many graphs of a compiled model each method needs."""
    rows = ["| method | graphs | remarks |", "|---|---:|---|"]
    for case in sorted(all_cases(), key=lambda case: case.name):
        if case.algorithm:
            graphs, remark = GRAPHS.get(case.name, (USUAL_GRAPHS, ""))
            rows.append(_row(f"[`{case.name}`](methods/{case.name}.md)", [str(graphs), remark]))
    return rows


def guide_page(library: str) -> str:
    """Render the guide for users of another trainer."""
    return with_generated(MIGRATE / f"{library}.md", "names", migration.tables(library))


def parallel_table() -> list[str]:
    """Return what each algorithm does on several processes; tests/distributed checks it."""
    rows = ["| algorithm | `DDP` | `FSDP2` | draws |", "|---|---|---|---|"]
    for case in sorted(ALGORITHMS, key=lambda case: case.name):
        refusal = REFUSED_BY_FSDP2.get(case.name)
        sharded = "to rounding" if refusal is None else f"refused: {refusal}"
        draws = "for each shard" if "key" in case.example.reads else "–"
        rows.append(f"| `{case.name}` | same bits | {sharded} | {draws} |")
    return rows


def with_generated(path: Path, name: str, lines: Iterable[str]) -> str:
    """Return the text of a page with these lines between its marks.

    Raises:
        ValueError: The page has no such marks.
    """
    return _between(path.read_text(), name, lines, path)


def _between(text: str, name: str, lines: Iterable[str], path: Path) -> str:
    begin, end = f"<!-- {name}: written by tools/write_pages.py -->\n", f"<!-- end of {name} -->\n"
    if begin not in text or end not in text:
        raise ValueError(f"{path.relative_to(ROOT)} has no lines {begin.strip()} and {end.strip()}")
    before, rest = text.split(begin)
    shown = "\n".join(lines)
    return f"{before}{begin}\n{shown}\n\n{end}{rest.split(end)[1]}"


# --- the methods ---


def methods() -> list[Case]:
    """List the methods: by group, the better evidence first, among equals the cheaper first."""
    return sorted((case for case in all_cases() if case.overview), key=lambda case: _order(case))


def _order(case: Case) -> tuple[int, int, float, str]:
    overview = _overview(case)
    return GROUPS.index(overview.group), strength(overview), _cost(overview.cost), case.name


def _overview(case: Case) -> Overview:
    assert case.overview is not None
    return case.overview


def _algorithm(case: Case) -> str:
    return f"`{case.algorithm}`" if case.algorithm else "–"


def strength(overview: Overview) -> int:
    """Rank the evidence for a method, 0 for the best."""
    return EVIDENCE.index(re.split(r"\W", overview.evidence)[0])


def _cost(words: str) -> float:
    """Read the time of a step, relative to one without the method, from words about it."""
    if match := re.match(r"\+([\d.]+) %", words):
        return 1 + float(match[1]) / 100
    match = re.match(r"× ([\d.]+)", words.replace("half", "× 0.5"))
    return float(match[1]) if match else float("inf")


def card(case: Case) -> Path:
    """Return the path of a method's card.

    Raises:
        FileNotFoundError: It isn't written.
    """
    path = METHODS / f"{case.name}.md"
    if not path.is_file():
        raise FileNotFoundError(
            f"{case.name} has no card: write {path.relative_to(ROOT)} (docs/contributing.md, "
            "step 5)"
        )
    return path


def readme_table() -> list[str]:
    """Render the table of six methods in the README."""
    shown = {case.name: case for case in methods()}
    return [
        "| function | algorithm | what it does |",
        "|---|---|---|",
        *(
            _row(
                f"[`{name}`](docs/methods/{name}.md)",
                [_algorithm(shown[name]), _overview(shown[name]).summary],
            )
            for name in FEATURED
        ),
    ]


def index_page() -> str:
    """Render the overview of the methods."""
    lines: list[str] = []
    for group in GROUPS:
        shown = [case for case in methods() if _overview(case).group == group]
        lines += [f"### {group}", ""] * bool(shown)
        lines += [
            "| method | algorithm | changes | a step | measured here | in papers | use it for |",
            "|---|---|---|---|---|---|---|",
        ] * bool(shown)
        for case in shown:
            o = _overview(case)
            measured = [_algorithm(case), o.changes, o.cost, evidence.grade(case)]
            cells = [*measured, o.evidence, o.use_for]
            lines.append(_row(f"[`{case.name}`]({case.name}.md)", cells))
        lines += [""] * bool(shown)
    contents = ["```{toctree}", ":hidden:", "", "matrix", *(c.name for c in methods()), "```"]
    text = with_generated(INDEX, "methods", lines[:-1])
    text = _between(text, "parts", parts.part_lines(), INDEX)
    return _between(text, "contents", contents, INDEX)


def evidence_page() -> str:
    """Render the page about evidence."""
    text = with_generated(DOES_IT_PAY, "studies", evidence_sections())
    text = _between(text, "front", front.front_lines(), DOES_IT_PAY)
    return _between(text, "quality", quality.quality_lines(), DOES_IT_PAY)


def evidence_sections() -> list[str]:
    """Render the studies on the page about evidence."""
    every = [line for study in evidence.STUDIES for line in (*evidence.page_lines(study), "")]
    return every[:-1]


def hooks_page() -> str:
    """Render the tables on the page of hooks."""
    text = HOOKS.read_text()
    for library in hooks.LIBRARIES:
        text = _between(text, f"hooks of {library}", hooks.hook_table(library), HOOKS)
    return text


def laws_page() -> str:
    """Render the tables on the page of laws."""
    text = with_generated(LAWS, "pairs", pairs_table())
    for topic in laws.laws():
        text = _between(text, f"laws of {topic}", laws.law_table(topic), LAWS)
    return text


def pairs_table() -> list[str]:
    """Render the table of pairs whose order in a chain matters."""
    return [
        "| pair | on | differs | why |",
        "|---|---|---|---|",
        *(
            _row(f"`{p.first}`, `{p.second}`", [" and ".join(p.on), p.how, p.why])
            for p in sorted(PAIRS, key=lambda pair: (pair.how, pair.why, pair.first, pair.second))
        ),
    ]


def loops_table() -> list[str]:
    """Render the table of the loops in which the algorithms work."""
    algorithms = sorted((c.algorithm for c in all_cases() if c.algorithm), key=repr)
    rows = [_row(f"`{a.name}`", [_cell(a.refused.get(loop)) for loop in LOOPS]) for a in algorithms]
    together = [a.refused for a in algorithms if a.name in FIRST_SIX]
    refused = {
        loop: min(found, key=REASONS.index)
        for loop in LOOPS
        if (found := [one[loop] for one in together if loop in one])
    }
    rows.append(_row(SIX, [_cell(refused.get(loop)) for loop in LOOPS]))
    reasons = [f"{number}. {reason}" for number, reason in enumerate(REASONS, 1)]
    return [_row("", LOOPS), "|---" * (len(LOOPS) + 1) + "|", *rows, "", *reasons]


def _cell(reason: str | None) -> str:
    return "yes" if reason is None else f"no ({REASONS.index(reason) + 1})"


# --- the matrix of properties ---


def shown_answers(report: FunctionReport) -> tuple[str, ...]:
    """Return the answers of a run, as they are shown."""
    return tuple(SHOWN[report.answers[asked].verdict] for asked in PROPERTIES)


def recorded_answers() -> Answers:
    """Read the answers from the page of the matrix."""
    table = MATRIX.read_text().partition("<!-- matrix:")[2].partition("<!-- end of matrix")[0]
    rows = re.findall(r"^\| \[?(`[^|]*?)(?:\]\(\w+\.md\))? \| (.*) \|$", table, re.M)
    return {name: tuple(c.split()[0] for c in cells.split(" | ")) for name, cells in rows}


def ask(cases: Iterable[FunctionCase]) -> Answers:
    """Check the properties of functions in a run.

    Raises:
        PropertyViolation: One fails without a reason, or has a reason and doesn't fail.
    """
    return {
        case.name: shown_answers(case.report().require(except_=case.expected_failures))
        for case in cases
    }


def matrix_table(answers: Answers) -> list[str]:
    """Render the matrix, and the reason of each *no*."""
    every = list(all_function_cases())
    reasons = list(
        dict.fromkeys(reason for _, case in every for reason in case.expected_failures.values())
    )
    lines = _head("function")
    for case, row in every:
        failures = row.expected_failures
        cells = [
            f"no ({reasons.index(failures[asked]) + 1})" if asked in failures else cell
            for asked, cell in zip(PROPERTIES, answers[row.name], strict=True)
        ]
        lines.append(_row(f"[{row.name}]({case.name}.md)" if case.overview else row.name, cells))
    numbered = [f"{number}. {_sentence(reason)}" for number, reason in enumerate(reasons, 1)]
    return [*lines, "", "Reasons for each *no*:", "", *numbered]


def card_page(case: Case, answers: Answers) -> str:
    """Render a card: the generated sections are added at its end if it has none yet."""
    text = card(case).read_text()
    for name, heading in (("evidence", "Evidence"), ("matrix", "Properties")):
        if f"<!-- {name}:" not in text:
            marks = f"<!-- {name}: written by tools/write_pages.py -->\n<!-- end of {name} -->\n"
            text = f"{text.rstrip()}\n\n## {heading}\n\n{marks}"
    claim = evidence.card_lines(case, _overview(case).evidence)
    text = _between(text, "evidence", claim, card(case))
    shown = [row for row in case.functions if not row.no_row]
    failures: dict[tuple[str, str], list[str]] = {}
    for row in shown:
        for reason in dict.fromkeys(row.expected_failures.values()):
            lacked = " and ".join(
                COLUMNS[asked] for asked, why in row.expected_failures.items() if why == reason
            )
            failures.setdefault((lacked, reason), []).append(row.name)
    why = [
        f"- No {lacked}: {', '.join(names)}. {_sentence(reason)}"
        for (lacked, reason), names in failures.items()
    ]
    lines = [*_head(""), *(_row(row.name, answers[row.name]) for row in shown), ""]
    return _between(text, "matrix", [*lines, *why, *[""] * bool(why), MEANING], card(case))


MEANING = "See the [property matrix](matrix.md) for definitions and for all functions."


def _head(first: str) -> list[str]:
    return [_row(first, COLUMNS.values()), "|---" * (len(COLUMNS) + 1) + "|"]


def _row(first: str, cells: Iterable[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}."
