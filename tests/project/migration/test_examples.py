"""The examples of other trainers' documentation run, with the edits that the guides list.

They are verbatim, in the `.txt` files. `...` in an example stands for your other arguments.
"""

import re
import shlex
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import composable
from composable import cli
from composable.models import Classifier
from tests.project.migration.test_guides import GUIDES, pairs

HERE = Path(__file__).parent
EXAMPLE = re.compile(r"^## ([^\n(]*?)(?: \(after ([^\n]*)\))?\n\n```\w+\n(.*?)\n```$", re.M | re.S)
EXAMPLES = {
    (library, name): (after, code)
    for library in ("composer", "cerebras", "huggingface")
    for name, after, code in EXAMPLE.findall((HERE / f"{library}.txt").read_text())
}
REWRITTEN = {  # the guide shows them in full: which of its scripts
    ("composer", "an algorithm"): 1,
    ("cerebras", "a scaled loss"): 0,
    ("huggingface", "a printer"): 1,
}
IMPORTS = {"from composer", "from cerebras.modelzoo.trainer", "from cerebras.modelzoo"}


def edits(library):
    """Return the edits that a guide lists: what to replace, and by what."""
    table = GUIDES[library].partition("| in your script |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return [tuple(re.search("`(.*?)`|$", cell)[1] or "" for cell in row) for row in rows]


EDITS = {library: [(*edit, "")[:2] for edit in edits(library)] for library, _ in EXAMPLES}
USED = set()


def edited(library, name):
    """Return an example with the edits of the guide."""
    if (library, name) in REWRITTEN:
        return pairs(library)[REWRITTEN[library, name]][1]
    _, code = EXAMPLES[library, name]
    for theirs, ours in EDITS[library]:
        adds = ours.partition("=")[0] + "=" if ours.endswith(theirs) else None
        if theirs in code and not (adds and adds in code):
            code = code.replace(theirs, ours)
            USED.add((library, name, theirs))
    return code


def network(*_, num_classes=10):
    hidden = [nn.Linear(4, 4) for _ in range(19)]
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        *hidden,
        nn.Linear(4, num_classes),
    )


def names(library, code):
    """Return what an example expects to be there."""
    torch.manual_seed(0)
    data = [(torch.rand(8, 3, 4, 4), torch.randint(10, (8,)))] * 4
    others = {
        "model": Classifier(network()),
        "train_dataloader": data,
        "optimizers": partial(torch.optim.SGD, lr=0.1),
        "max_duration": "2ba",
    }
    given = {"model": others["model"], "train_dataloader": data, "eval_dataloader": data}
    if library == "huggingface":
        others["callbacks"] = given["callbacks"] = ()
    return {
        **{one: getattr(composable, one) for one in composable.__all__},
        **given,
        "MyModel": lambda: Classifier(network()),
        "attrs": attrs,
        "others": {name: value for name, value in others.items() if f"{name}=" not in code},
        "partial": partial,
        "torch": torch,
    }


def filled(code):
    """Return an example with your other arguments in place of `...`, for a short run on a CPU."""
    code = re.sub(r"Trainer\(\s*\.\.\.", "Trainer(**others", code).replace("fit(...)", "fit()")
    code = re.sub(r"(?m)^\s*\.\.\.,?$", "", code).replace("'gpu'", "'cpu'")
    return re.sub(r"'\d+0ep'", "'3ep'", code)


def run(library, name):
    """Run an example, after the one that it needs; return its names."""
    after, _ = EXAMPLES[library, name]
    code = filled(edited(library, name))
    seen = {**(run(library, after) if after else {}), **names(library, code)}
    exec(code, seen)
    return seen


@pytest.fixture(autouse=True)
def _surroundings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    models = SimpleNamespace(resnet18=network, resnet50=network)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))


NOT_SCRIPTS = {("composer", "the launcher"), ("composer", "DeepSpeed")}


@pytest.mark.parametrize(("library", "name"), [one for one in EXAMPLES if one not in NOT_SCRIPTS])
def test_an_example_runs_and_trains(library, name, capsys):
    seen = run(library, name)

    trainer = seen.get("trainer")
    if trainer is not None and name != "reproducibility":  # it has a model only
        state = trainer.state if trainer.state.timestamp.batch else trainer.fit()
        assert state.timestamp.batch > 0
    if "MyCallback" in seen:
        assert capsys.readouterr().out.startswith("Starting training")


def test_the_launcher_starts_the_script(monkeypatch):
    started = []
    monkeypatch.setattr("composable.launch.launch.launch", lambda one: started.append(one))
    command, *arguments = shlex.split(edited("composer", "the launcher").removeprefix("$ "))

    cli.main(arguments)

    assert command == "composable"
    assert (started[0].nproc, started[0].target) == (8, "run_trainer.py")


def test_deepspeed_gets_the_configuration(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ImportError, match=r"composable\[deepspeed\]"):
        run("composer", "DeepSpeed")


@pytest.mark.parametrize(("library", "name"), REWRITTEN)
def test_what_a_guide_rewrites_does_its_work(library, name, capsys):
    seen = run(library, name)
    new = {
        "an algorithm": lambda: {"algorithms": seen["ShortenTraining"]()},
        "a scaled loss": lambda: {"algorithms": seen["ScaleLoss"](0.0), "check_effects": True},
        "a printer": lambda: {"loggers": seen["PrinterCallback"]()},
    }[name]()
    model = network()
    before = model[0].weight.clone()
    trainer = composable.Trainer(
        model,
        train_dataloader=[(torch.rand(8, 3, 4, 4), torch.randint(10, (8,)))],
        loss_fn=cross_entropy,
        optimizers=partial(torch.optim.SGD, lr=0.1),
        max_duration="4ep",
        progress_bar=False,
        **new,
    )
    state = trainer.fit()

    assert state.timestamp.epoch == (2 if name == "an algorithm" else 4)
    assert torch.equal(model[0].weight, before) == (name == "a scaled loss")
    assert ("loss/train" in capsys.readouterr().out) == (name == "a printer")


def test_every_edit_is_needed_and_the_guides_count_the_examples():
    for library, name in EXAMPLES:
        edited(library, name)

    used = {(library, theirs) for library, _, theirs in USED}
    assert {(library, theirs) for library, rows in EDITS.items() for theirs, _ in rows} == used

    edits = {(library, name) for library, name, theirs in USED if theirs not in IMPORTS}
    rewritten = len(REWRITTEN)
    others = len(EXAMPLES) - len(edits) - rewritten
    assert (
        f"Of {len(EXAMPLES)} examples of their documentation, {others} run with other imports, "
        f"{len(edits)} with the edits that a guide lists, and {rewritten} are rewritten there."
    ) in " ".join(GUIDES["index"].split())
