"""The examples of updates train, and their pages have their code."""

import ast
import re

import pytest
import torch

from examples import gan, pinn, target_network
from tests.support.cases import ROOT

PAGES = {
    "updates": (gan, {"GAN", "noise_like", "discriminator_loss", "generator_loss"}),
    "differential_equations": (
        pinn,
        {"Heat", "heat_loss", "exact", "points", "relative_error", "one_after_the_other"},
    ),
    "target_networks": (target_network, {"teacher_loss"}),
}


# The runs are short.
pytestmark = pytest.mark.filterwarnings("ignore:.*, so the average is largely one of early weights")


def definitions(source):
    """Return the functions and classes of a file, without docstrings and annotations."""
    found = {}
    for one in ast.parse(source).body:
        if not isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            continue
        for part in ast.walk(one):
            if isinstance(part, ast.arg):
                part.annotation = None
            if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
                part.body = part.body[ast.get_docstring(part) is not None :]
                part.returns = None
        found[one.name] = ast.unparse(one)
    return found


def shown(page):
    """Return the code of a page."""
    text = (ROOT / f"docs/{page}.md").read_text()
    return "\n".join(line for line in re.findall(r"^(?:>>>|\.\.\.) ?(.*)$", text, re.M))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_code_of_its_example(page):
    example, names = PAGES[page]
    ours, theirs = definitions((ROOT / example.__file__).read_text()), definitions(shown(page))

    assert names <= ours.keys() & theirs.keys()
    assert {name: theirs[name] for name in names} == {name: ours[name] for name in names}


def test_the_gan_trains_and_draws_samples_of_the_averaged_generator(tmp_path):
    torch.manual_seed(1)
    trainer = gan.build(torch.rand(128, 1, 8, 8) * 2 - 1, max_duration="6ba")

    state = trainer.fit()
    images = gan.samples(trainer, 20)
    gan.draw([images, images], tmp_path / "samples.png")

    assert images.shape == (20, 1, 8, 8)
    assert images.abs().max() <= 1
    assert not torch.equal(images[0], images[1])
    assert {name.split(".")[0] for name in state.averages["generator/EMA"]} == {"generator"}
    assert (tmp_path / "samples.png").stat().st_size > 1000


def test_the_scans_are_between_the_bounds_of_the_generator():
    scans = gan.scans()

    assert (len(scans), scans.min(), scans.max()) == (1797, -1, 1)


def test_lbfgs_is_closer_to_the_exact_solution_than_adam_in_as_many_batches():
    each = {name: updates for name, (updates, _) in pinn.runs().items()}

    errors = {
        name: pinn.build(each[name], "5ba").fit().metrics["grid"]["error"]
        for name in ("Adam", "LBFGS")
    }

    assert errors["LBFGS"] < 0.05 < errors["Adam"]


def test_adam_is_followed_by_lbfgs():
    trainer = pinn.build(pinn.one_after_the_other(2), "2ba")

    assert sorted(trainer.fit().losses) == ["adam", "adam/edges", "adam/equation", "adam/start"]
    assert "lbfgs" in trainer.fit(duration="1ba").losses


def test_the_exact_solution_has_no_loss():
    class Exact(torch.nn.Module):
        forward = staticmethod(pinn.exact)

    loss = pinn.heat_loss(Exact(), pinn.points(0))["loss"]

    assert loss.item() == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize("arm", ["alone", "averaged", "taught"])
def test_the_mean_teacher_trains(arm):
    update, algorithms = target_network.arms()[arm]

    trainer = target_network.build(update, algorithms, max_duration="4ba")
    state = trainer.fit()

    assert ("student/consistency" in state.losses) == (arm == "taught")
    assert ("teacher" in state.averages) == (arm != "alone")
    assert 0 <= state.metrics["test"]["accuracy"] <= 1


def test_known_digits_are_few_and_no_test_scan_is_trained_on():
    data = target_network.digits()
    known, digits, scans = data["train"].tensors
    tested = {bytes(one.numpy()) for one in data["test"].tensors[0]}

    assert len({bytes(one.numpy()) for one in known}) == target_network.LABELS
    assert len(digits.unique()) == 10
    assert not tested & {bytes(one.numpy()) for one in (*known, *scans)}
