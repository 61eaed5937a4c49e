"""Importing the package is cheap and changes nothing."""

import importlib
import inspect
import json
import pickle
import subprocess
import sys
import textwrap

import pytest

import composable


def run(script):
    """Run a script in a new process, and return the JSON that it prints."""
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
        import composable.checkpoint, composable.integrations, composable.plan, composable.runs
        for package in [sys.modules[n] for n in list(sys.modules) if n.startswith("composable")]:
            for name in getattr(package, "__all__", ()):
                getattr(package, name)
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


PACKAGES = [
    "composable",
    "composable.algorithms",
    "composable.callbacks",
    "composable.checkpoint",
    "composable.data",
    "composable.functional",
    "composable.functional.images",
    "composable.functional.layers",
    "composable.integrations",
    "composable.loggers",
    "composable.optim",
    "composable.plan",
    "composable.runs",
    "composable.testing",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_that_is_offered_exists(name):
    package = importlib.import_module(name)

    members = dict(inspect.getmembers(package))

    assert set(package.__all__) <= set(members)
    assert list(members) == dir(package)


# The strategies of `composable.testing` are made by a decorator of Hypothesis.
@pytest.mark.parametrize("name", [name for name in PACKAGES if name != "composable.testing"])
def test_exported_values_are_no_modules_and_can_be_pickled(name):
    package = importlib.import_module(name)

    for exported in package.__all__:
        value = getattr(package, exported)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert pickle.loads(pickle.dumps(value)) is value
        assert not inspect.ismodule(value)


def test_dir_lists_what_a_user_may_use_and_nothing_else():
    names = set(dir(composable)) - set(composable.__all__)

    assert names == {
        "__version__",
        "algorithms",
        "callbacks",
        "checkpoint",
        "data",
        "functional",
        "integrations",
        "loggers",
        "metrics",
        "optim",
        "runs",
        "testing",
        "utils",
    }


def test_importing_the_package_imports_nothing_else():
    assert (
        run(
            """
        import json, sys
        import composable, composable.algorithms, composable.functional, composable.callbacks
        print(json.dumps([name for name in sys.modules if name in ("torch", "attrs")]))
        """
        )
        == []
    )


def test_one_method_imports_no_other():
    new = run(
        """
        import json, sys
        from composable import Trainer
        from composable.algorithms import MixUp
        print(json.dumps([name for name in sys.modules if name.startswith("composable.")]))
        """
    )

    algorithms = [name for name in new if name.startswith("composable.algorithms.")]
    assert [name for name in algorithms if "._" not in name] == ["composable.algorithms.mixup"]
    assert not {"composable.checkpoint.files", "composable.plan.timeline", "composable.replay"} & {
        *new
    }


def test_a_function_is_not_replaced_by_its_module():
    assert (
        run(
            """
        import json
        import composable, composable.functional.mixup, composable.replay
        from composable.functional import mixup
        values = [mixup, composable.functional.mixup, composable.replay]
        print(json.dumps([type(value).__name__ for value in values]))
        """
        )
        == ["function"] * 3
    )


def test_threads_import_the_same_names():
    assert run(
        """
        import json, threading
        import composable
        barrier, found = threading.Barrier(8), []

        def use():
            barrier.wait()
            found.append((composable.functional.cutmix, composable.replay, composable.Trainer))

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(json.dumps([len(found), len(set(found))]))
        """
    ) == [8, 1]


@pytest.mark.compile
def test_a_compiled_function_uses_names_before_they_are_imported():
    assert run(
        """
        import json, sys
        import torch
        import composable
        import composable.functional as F

        def short(x):
            return composable.functional.set_sequence_length({"input_ids": x}, 2)["input_ids"]

        def mixed(x, y, draw):
            return F.apply_mixup(x, y, draw).inputs

        x, y = torch.rand(4, 3), torch.rand(4, 3)
        draw = F.draw_mixup(4)
        unused = "composable.functional.set_sequence_length" not in sys.modules
        compiled = torch.compile(short, fullgraph=True, backend="aot_eager")(x)
        mix = torch.compile(mixed, fullgraph=True, backend="aot_eager")(x, y, draw)
        same = torch.equal(compiled, x[:, :2]), torch.equal(mix, mixed(x, y, draw))
        print(json.dumps([unused, *same]))
        """
    ) == [True, True, True]


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'composable' has no attribute 'Trainr'"):
        getattr(composable, "Trainr")  # noqa: B009


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
