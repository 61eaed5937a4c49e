"""The tutorials run from the first cell to the last, with less data and fewer steps.

`make site` runs them in full, in a Jupyter kernel. There, cells with the tag `full` check what the
text says of the results.
"""

import sys
from types import ModuleType

import pytest
from myst_nb.core.read import read_myst_markdown_notebook

import composable
from tests.support.cases import ROOT
from tests.support.comparison import work_in_threads

TINY = {
    "digits": {"EPOCHS": 1, "RATES": (0.1,), "SEEDS": range(1)},
    "fine_tuning": {
        "PRETRAINING": 2,
        "STEPS": 4,
        "FILES": 1,
        "LENGTH": 32,
        "SIZES": {
            **{"hidden_size": 16, "intermediate_size": 16},
            **{"num_hidden_layers": 1, "num_attention_heads": 2},
        },
    },
    "loops": {"EPOCHS": 1},
    "own_method": {"EPOCHS": [1, 2], "SEEDS": 1},
    "small_gpt": {"STEPS": 3, "VOCABULARY": 300, "WIDTH": 32, "FOLDERS": ("optim",)},
    "stream": {
        "PRETRAINING": 2,
        "STEPS": 6,
        "SAVED": 2,
        "KILLED": 5,
        "SIZES": {"n_positions": 32, "n_embd": 32, "n_layer": 1, "n_head": 2},
    },
}
"""For each tutorial, other values for the variables of its cell with the tag `parameters`."""

PAGES = sorted(ROOT.glob("docs/tutorials/*.md"))
TUTORIALS = [path for path in PAGES if path.stem != "index"]


def code_cells(path):
    notebook = read_myst_markdown_notebook(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell):
    return set(cell.metadata.get("tags", ()))


@pytest.fixture(autouse=True)
def comparisons_in_threads(monkeypatch):
    """Compare in a thread and by given costs: worker processes and measurements take a minute."""
    compare = composable.compare

    def compare_here(build, arms, **options):
        return compare(build, arms, cost=dict.fromkeys(["baseline", *arms], 1.0), **options)

    work_in_threads(monkeypatch)
    monkeypatch.setattr(composable, "compare", compare_here)


@pytest.mark.filterwarnings("ignore:EMA. half_life=.* times this run")  # the run is short
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    module = ModuleType("__main__")  # where worker processes and torch.compile look for names
    monkeypatch.setitem(sys.modules, "__main__", module)
    names = module.__dict__
    for number, cell in enumerate(code_cells(path), 1):
        if "full" in tags(cell):
            continue
        exec(compile(cell.source, f"{path.name}, cell {number}", "exec"), names)
        if "parameters" in tags(cell):
            assert names.keys() >= TINY[path.stem].keys()
            names.update(TINY[path.stem])


def test_the_index_lists_every_tutorial():
    index = (ROOT / "docs/tutorials/index.md").read_text(encoding="utf-8")

    assert all(f"({path.name})" in index for path in TUTORIALS)
