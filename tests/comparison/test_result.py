"""A result says the same in text, Markdown, HTML and pictures, for every kind of study."""

import re
import sys
from importlib.resources import files

import attrs
import pytest
from jinja2 import UndefinedError
from matplotlib.backends.backend_agg import FigureCanvasAgg

from composable.comparison import Comparison, Verdict, table
from tests.comparison.synthetic import draw_data_study, edit, make_study, with_settings
from tests.support.campaign import FULL, drawn
from tests.support.commands import run_script
from tests.support.pages import Page

HOSTILE = "</style><script>alert(1)</script> | `a` *b* \x1b[2J"
LONG = "ALiBi on quarter-length sequences + Muon + sequence-length warm-up + EMA"
STUDIES = {
    "two arms": {},
    "eight arms": {
        "speedups": {
            "baseline": 1.0,
            **{f"arm {i}": s for i, s in enumerate([1.0, 0.8, 1.2, 2.0, 1.5, 1.1, 2.8, 0.5])},
        }
    },
    "target": {"target": 0.9},
    "target out of reach": {"target": 0.995},
    "easy target": {"target": 0.5},
    "one seed": {"seeds": 1},
    "one schedule": {"batches": (300,)},
    "long names": {"speedups": {"learned positions, AdamW": 1.0, LONG: 2.0, HOSTILE: 1.2}},
    "minimum": {"mode": "min"},
    "failures": {
        "speedups": {"baseline": 1.0, "Broken": 1.5, "Partly": 1.8},
        "failing": {"Broken": 5, "Partly": 2},
    },
    "a failed baseline run": {"failing": {"baseline": 1}},
    "no A/A arm, no tuning": {"repeated": None, "tuned": False},
    "a wide span of schedules": {"batches": (20, 100, 400)},
    "steps that take no time": {"step": 0.0},
    "schedules of one arm": {"batches": (300,), "own_batches": {"MuonClip": (40, 80, 160)}},
    "amounts of data": {"by_data": True},
}


def make(name):
    if "by_data" in STUDIES[name]:
        return Comparison(draw_data_study(0, {LONG: 2.0, HOSTILE: 30.0}, repeated=HOSTILE))
    return Comparison(make_study(**STUDIES[name]))


@pytest.fixture(params=STUDIES, scope="module")
def comparison(request):
    return make(request.param)


def html(comparison):
    return table.format_html(comparison.study, comparison.analysis, "<svg></svg>")


def test_the_table_has_at_most_100_columns_and_every_arm(comparison):
    text = comparison.table()
    assert repr(comparison) == text
    assert max(map(len, text.splitlines())) <= 100
    assert all(line == line.rstrip() for line in text.splitlines())
    assert "\x1b" not in text
    for arm in comparison.analysis.arms:
        assert re.sub(r"\W", "", arm.arm)[:12] in re.sub(r"\W", "", text)


def test_the_page_is_one_safe_file(comparison):
    text = html(comparison)
    page = Page(text)
    assert len(text.encode()) < 2_000_000
    assert "script" not in page.tags
    assert page.tags.index("svg") < page.tags.index("table")
    assert not [k for k, _ in page.attributes if k.startswith("on")]
    assert "\x1b" not in text


def test_a_misspelled_name_in_the_page_is_an_error(monkeypatch, tmp_path):
    comparison, template = make("two arms"), tmp_path / "page.html"
    page = (files("composable.comparison") / "page.html").read_text(encoding="utf-8")
    (tmp_path / "report.css").write_text("")
    monkeypatch.setattr(table, "files", lambda package: tmp_path)
    template.write_text(page, encoding="utf-8")
    assert html(comparison)

    template.write_text(page.replace("{{ title }}", "{{ heading }}"), encoding="utf-8")
    with pytest.raises(UndefinedError, match="'heading' is undefined"):
        html(comparison)


def test_tables_scroll_in_a_box_or_are_cards_on_a_phone(comparison):
    text = html(comparison)

    assert text.count("<table") == text.count('<div class="scroll"><table')
    arms = len(comparison.analysis.arms)
    assert text.count('<td class="name" data-column="arm">') >= arms
    assert text.count('class="cards"') == 2
    assert "..<" not in text  # a sentence has one full stop


PLOTTED = ["eight arms", "long names", "failures", "a wide span of schedules", "amounts of data"]


@pytest.mark.parametrize("comparison", STUDIES if FULL else PLOTTED, indirect=True)
def test_the_plot_names_every_arm_and_hides_no_label(comparison):
    figure = comparison.plot()
    text = " ".join(one.get_text() for axes in figure.axes for one in labels_of(axes))
    text = " ".join(text.split())
    arms = comparison.analysis.arms
    finished = [arm for arm in arms if any(one.mean is not None for one in arm.qualities)]
    named = [_start(arm.arm) in text for arm in finished if arm.role != "repeated"]
    drawn = [arm for arm in finished if arm.step_cost and arm.role != "repeated"]
    assert sum(named) == min(len(drawn), 5 + sum(arm.role == "baseline" for arm in arms))
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    whole = figure.bbox
    texts = [one for axes in figure.axes for one in (*axes.texts, *labels_of(axes))]
    texts += [*figure.texts, figure._suptitle, figure._supxlabel]
    for box in [one.get_window_extent(renderer) for one in texts if one.get_text()]:
        assert whole.x0 <= box.x0
        assert box.x1 <= whole.x1
        assert whole.y0 <= box.y0
        assert box.y1 <= whole.y1
    for axes in figure.axes:
        boxes = [one.get_window_extent(renderer) for one in labels_of(axes)]
        for i, one in enumerate(boxes):
            assert one.x0 > axes.bbox.x1
            assert not any(one.overlaps(other) for other in boxes[i + 1 :])


def labels_of(axes):
    return axes.get_legend().get_texts()


def _start(name):
    return re.sub(r"[^\w ].*", "", name).strip()


def test_the_speed_up_by_result_is_the_first_panel():
    comparison = make("two arms")
    speedups, results = comparison.plot().axes
    arm = comparison.analysis["MuonClip"]
    lines = [line for line in speedups.lines if len(line.get_xdata()) > 2]
    assert list(lines[0].get_ydata()) == [point.speedup.value for point in arm.curve]
    assert speedups.get_yscale() == results.get_xscale() == "log"
    ends = [comparison.analysis[one.get_text()].qualities[-1].mean for one in labels_of(results)]
    assert ends == sorted(ends, reverse=True)
    assert "better to the right" in speedups.get_xlabel()
    assert "better to the left" in make("minimum").plot().axes[0].get_xlabel()


def test_of_many_arms_the_plot_shows_those_with_the_clearest_effects():
    nulls = {f"null {i}": 1.0 for i in range(12)}
    speedups = {"baseline": 1.0, **nulls, "fast": 1.4, "slow": 0.6}
    figure = Comparison(make_study(speedups=speedups)).plot()
    labels = {one.get_text().split("\n")[0] for one in labels_of(figure.axes[1])}
    assert {"baseline", "fast", "slow"} <= labels
    assert sum(label.startswith("null") for label in labels) == 3
    assert "6 of 15 arms" in figure.get_supxlabel().replace("\n", " ")


@pytest.mark.parametrize("name", drawn(["long names", "failures", "one schedule"], 1))
def test_saving_and_loading_gives_the_same_result(name, tmp_path):
    comparison = make(name)
    folder = comparison.save(tmp_path / "a" / "b")
    names = {"study.json", "table.txt", "plot.png", "plot.svg", "report.html"}
    assert {file.name for file in folder.iterdir()} == names
    assert Comparison.load(folder) == comparison
    assert Comparison.load(folder / "study.json") == comparison
    assert (folder / "table.txt").read_text(encoding="utf-8") == comparison.table() + "\n"
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    assert "script" not in page.tags
    outside = [v for k, v in page.attributes if k in ("src", "href", "xlink:href")]
    assert all(value.startswith("#") for value in outside)
    # An id that occurs twice would take a clip path from elsewhere.
    ids = [value for key, value in page.attributes if key == "id"]
    assert len(ids) == len(set(ids)) > 0


def test_verdict_and_speedup_of_an_arm():
    comparison = make("two arms")
    assert comparison.verdict("MuonClip") is Verdict.PAYS
    assert comparison.verdict("baseline") is None
    assert comparison.speedup("baseline") is None
    assert comparison.speedup("MuonClip").value == pytest.approx(2.0, rel=0.1)
    with pytest.raises(ValueError, match=r"arm='EMA' must be one of \['baseline', 'MuonClip'"):
        comparison.verdict("EMA")
    with pytest.raises(ValueError, match="arm='EMA'"):
        comparison.speedup("EMA")


def page(name):
    return html(make(name))


def test_the_page_has_the_schedules_of_each_arm():
    assert "MuonClip: 40ba, 80ba, 160ba" in page("schedules of one arm")


def test_the_headline_is_the_finding():
    def first(name):
        return make(name).table().split("\n")[0]

    assert re.match(r"MuonClip trains at least 1\.\d\dx as fast as baseline\.", first("two arms"))
    assert re.match(r"MuonClip trains 2.*x \(.*\) as fast as baseline to .* 0.9\.", first("target"))
    assert first("one seed") == "No evidence that an arm trains faster than baseline."


def test_settings_at_the_edge_failures_and_protocol_notes_are_shown():
    study = make_study(failing={"MuonClip": 5})
    protocol = attrs.evolve(
        study.protocol, notes=("the budget ended",), command="composable compare `x`"
    )

    def at_the_edge(one):
        return with_settings(one, lr=4e-3) if one.trial.arm == "MuonClip" else one

    text = Comparison(edit(study, at_the_edge, protocol=protocol)).table()
    assert "he budget ended" in text
    assert "lr=0.004" in text
    assert "runs of 300ba did not finish (failed: RuntimeError: " in " ".join(text.split())


def test_failed_trials_are_listed_with_their_error():
    assert Page(page("failures")).texts["td"].count("expected 3 channels") == 21


def test_every_tuning_trial_is_listed_and_the_chosen_one_marked():
    texts = Page(page("two arms")).texts
    assert texts["td"].count("chosen") == 2 + 1  # and once as a field of the protocol
    assert texts["section"].count("lr=0.004") == 2


def test_the_format_of_a_plot_is_its_suffix(tmp_path):
    comparison = make("two arms")
    comparison.plot(tmp_path / "a.svg")
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()
    with pytest.raises(ValueError, match="'doc' is not supported"):
        comparison.plot(tmp_path / "a.doc")
    assert [file.name for file in tmp_path.iterdir()] == ["a.svg"]


def test_a_saved_plot_is_reproducible(tmp_path):
    for name in ("a.svg", "b.svg"):
        make("two arms").plot(tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_extras_are_imported_on_first_use_only():
    code = (
        "import sys; from composable.comparison import Comparison; "
        "print(*(n in sys.modules for n in ('matplotlib', 'scipy', 'jinja2')))"
    )
    output, _ = run_script(code)
    assert output.split() == ["False"] * 3


def missing(monkeypatch, package, module):
    """Make a package missing for a module that is imported again."""
    monkeypatch.delitem(sys.modules, f"composable.comparison.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)


def test_without_matplotlib_the_text_is_saved(monkeypatch, tmp_path):
    (tmp_path / "plot.png").touch()  # which is not that of the next study
    missing(monkeypatch, "matplotlib.figure", "plot")
    with pytest.raises(ImportError, match=r'pip install "composable\[compare\]"'):
        make("two arms").save(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"study.json", "table.txt"}


def test_a_missing_extra_is_named(monkeypatch):
    comparison = make("one seed")
    missing(monkeypatch, "jinja2", "table")
    with pytest.raises(ImportError, match=r'needs jinja2.*pip install "composable\[compare\]"'):
        comparison.table()
