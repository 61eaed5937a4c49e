"""Importing the package is cheap and changes nothing."""

import json
import subprocess
import sys
import textwrap

import pytest


def run(script):
    """What a script prints as JSON, run by itself."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def seen():
    return run(
        """
        import json, os, random, signal, sys, warnings
        import torch
        numpy = sys.modules.get("numpy")

        def everything():
            handlers = [str(signal.getsignal(s)) for s in sorted(signal.valid_signals())]
            return {
                "signals": handlers,
                "filters": [str(f) for f in warnings.filters],
                "showwarning": str(warnings.showwarning),
                "environment": dict(os.environ),
                "python": str(random.getstate()),
                "torch": torch.get_rng_state().tolist(),
                "numpy": str(numpy.random.get_state()) if numpy else None,
                "threads": torch.get_num_threads(),
                "dtype": str(torch.get_default_dtype()),
                "deterministic": torch.are_deterministic_algorithms_enabled(),
                "hook": str(sys.excepthook),
                "cuda": torch.cuda.is_initialized(),
            }

        before = everything()
        modules = set(sys.modules)
        import composable, composable.algorithms, composable.functional, composable.loggers
        import composable.callbacks, composable.optim, composable.data
        import composable.utils.reproducibility
        after = everything()
        print(json.dumps({
            "new": sorted(set(sys.modules) - modules),
            "changed": [name for name in before if before[name] != after[name]],
        }))
        """
    )


def test_nothing_is_touched(seen):
    assert seen["changed"] == []


HEAVY = [
    "accelerate",
    "deepspeed",
    "IPython",
    "ipywidgets",
    "lightning",
    "matplotlib",
    "pandas",
    "safetensors",
    "scipy",
    "sklearn",
    "timm",
    "torch._dynamo",
    "torch._inductor",
    "torchmetrics",
    "torchvision",
    "tqdm",
    "transformers",
    "wandb",
]


@pytest.mark.parametrize("name", HEAVY)
def test_nothing_heavy_is_imported(seen, name):
    assert [m for m in seen["new"] if m == name or m.startswith(f"{name}.")] == []


# jaxtyping imports numpy.typing where there is NumPy.
ALLOWED = {"composable", "attr", "attrs", "einops", "jaxtyping", "numpy", "wadler_lindig"}


def test_nothing_of_torch_is_imported_that_torch_does_not_import_itself(seen):
    assert [m for m in seen["new"] if m == "torch" or m.startswith("torch.")] == []


def test_what_is_imported_is_the_package_its_dependencies_and_the_standard_library(seen):
    names = {m.partition(".")[0] for m in seen["new"]}

    assert names - ALLOWED - set(sys.stdlib_module_names) == set()


def test_numpy_is_not_needed():
    assert (
        run(
            """
        import json, sys
        sys.modules["numpy"] = None  # importing it fails
        import warnings
        warnings.simplefilter("ignore")
        import torch
        from composable import Trainer
        from composable.utils.reproducibility import seed_all
        seed_all(17)
        data = [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))]
        trainer = Trainer(
            torch.nn.Linear(4, 3), train_dataloader=data, max_duration=1, device="cpu",
            loss_fn=torch.nn.functional.cross_entropy, progress_bar=False,
            optimizers=lambda p: torch.optim.SGD(p, lr=0.1),
        )
        print(json.dumps(trainer.fit().timestamp.batch))
        """
        )
        == 1
    )


def test_a_run_without_a_progress_bar_imports_no_more_than_a_plain_loop():
    new = run(
        """
        import json, sys
        import torch
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.zeros(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        modules = set(sys.modules)
        from composable import Trainer
        from composable.algorithms import EMA, LabelSmoothing, MixUp
        data = [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))]
        trainer = Trainer(
            torch.nn.Linear(4, 3), train_dataloader=data, max_duration=1, device="cpu",
            loss_fn=torch.nn.functional.cross_entropy, progress_bar=False,
            algorithms=[EMA("2ba"), LabelSmoothing(), MixUp()],
            optimizers=lambda p: torch.optim.SGD(p, lr=0.1), eval_dataloader=data,
        )
        trainer.fit()
        print(json.dumps(sorted(set(sys.modules) - modules)))
        """
    )

    assert {m.partition(".")[0] for m in new} - ALLOWED - set(sys.stdlib_module_names) == set()


def test_every_name_that_is_offered_exists():
    import composable
    import composable.algorithms
    import composable.data
    import composable.functional
    import composable.loggers
    import composable.optim

    for module in (
        composable,
        composable.algorithms,
        composable.data,
        composable.functional,
        composable.loggers,
        composable.optim,
    ):
        assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("composable.integrations.lightning", "lightning", "composable[lightning]"),
        ("composable.integrations.huggingface", "transformers", "composable[huggingface]"),
        ("examples.digits", "sklearn", ".[demo]"),
    ],
)
def test_a_missing_extra_is_named_with_what_to_type(module, package, extra):
    code = f"import sys; sys.modules[{package!r}] = None; import {module}"

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert ran.returncode
    assert f'pip install "{extra}"' in ran.stderr
