"""Importing the package is cheap and changes nothing."""

import importlib
import inspect
import json
import pickle
import sys
import textwrap
from pathlib import Path

import pytest

import composable
from composable import callbacks, loggers
from composable._support import extras
from composable._support.extras import needs
from composable.models import lora_config
from composable.report import RecordedRun
from tests.report.folders import write_run
from tests.support.commands import run_python, run_script
from tools import exports


def run(*parts, fresh=False):
    """Run a script in a process that has imported torch, or nothing; return the JSON it prints."""
    script = "".join(map(textwrap.dedent, parts))
    output, _ = run_python("-c", script) if fresh else run_script(script)
    return json.loads(output)


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


# jaxtyping imports numpy.typing where there is NumPy.
ALLOWED = {"composable", "attr", "attrs", "einops", "jaxtyping", "numpy", "wadler_lindig"}


def others(modules):
    """Return the packages of modules that are neither dependencies nor the standard library."""
    return {m.partition(".")[0] for m in modules} - ALLOWED - set(sys.stdlib_module_names)


def test_importing_changes_no_global_state(seen):
    assert seen["changed"] == []


def test_imports_only_the_package_its_dependencies_and_the_standard_library(seen):
    assert others(seen["new"]) == set()  # nor does torch import more of itself


TRAIN = """
    import torch
    data = [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))]

    def train(**options):
        from composable import Trainer
        return Trainer(
            torch.nn.Linear(4, 3), train_dataloader=data, max_duration=1, device="cpu",
            loss_fn=torch.nn.functional.cross_entropy, progress_bar=False,
            optimizers=lambda p: torch.optim.SGD(p, lr=0.1), **options,
        ).fit().timestamp.batch
"""


def test_numpy_is_not_required():
    assert run(
        """
        import json, sys, warnings
        sys.modules["numpy"] = None  # importing it fails
        warnings.simplefilter("ignore")
        """,
        TRAIN,
        """
        from composable.utils.reproducibility import seed_all
        seed_all(17)
        print(json.dumps(train()))
        """,
        fresh=True,
    )


@pytest.fixture(scope="module")
def imported():
    """Return the modules after a plain loop, then a run, then a run with algorithms."""
    script = """
        import json, sys
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.zeros(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        modules = [list(sys.modules)]
        train()
        modules.append(list(sys.modules))
        from composable.algorithms import EMA, LabelSmoothing, MixUp
        train(algorithms=[EMA("2ba"), LabelSmoothing(), MixUp()], eval_dataloader=data)
        modules.append(list(sys.modules))
        print(json.dumps(modules))
    """
    return [set(modules) for modules in run(TRAIN, script)]


def test_a_run_without_a_progress_bar_imports_no_more_than_a_plain_loop(imported):
    assert others(imported[2] - imported[0]) == set()


def test_a_run_imports_what_it_needs_alone(imported):
    unused = (
        *("composable.checkpoint.tree", "composable.checkpoint.files", "composable.runs.recorder"),
        *("composable.loggers.", "composable.callbacks.checkpoint"),
        *(
            f"composable.resume.{name}"
            for name in ("best", "formats", "lock", "optimizers", "parts", "select", "verify")
        ),
        "cattrs",
    )
    new = imported[1] - imported[0]
    assert [name for name in new if name.startswith(unused)] == []
    assert "composable.trainer.loop" in new


PACKAGES = [
    "composable",
    *(
        f"composable.{name}"
        for name in (
            *("algorithms", "callbacks", "checkpoint", "comparison", "data", "functional"),
            *("functional.images", "functional.layers", "integrations", "loggers", "models"),
            *("optim", "plan", "recipes", "report", "resume", "runs", "testing"),
        )
    ),
]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_exported_name_exists_and_can_be_pickled(name):
    package = importlib.import_module(name)

    members = dict(inspect.getmembers(package))

    assert set(package.__all__) <= set(members)
    assert list(members) == dir(package)
    for value in (members[exported] for exported in package.__all__):
        assert not inspect.ismodule(value)
        # The strategies of `composable.testing` are made by a decorator of Hypothesis.
        if name != "composable.testing" and (inspect.isfunction(value) or inspect.isclass(value)):
            assert pickle.loads(pickle.dumps(value)) is value
    with pytest.raises(AttributeError, match=rf"module '{name}' has no attribute 'Trainr'"):
        getattr(package, "Trainr")  # noqa: B009


def test_private_modules_list_no_exports():
    root = Path(composable.__file__).parent
    private = [file for file in root.rglob("*.py") if "/_" in f"/{file.relative_to(root)}"]

    listing = [file for file in private if "\n__all__ =" in file.read_text()]
    assert [file for file in listing if file.name != "__init__.py"] == []


def test_modules_list_exports_only_where_the_exports_of_a_package_are_written_from_them():
    root = Path(composable.__file__).parent
    inside = [file for file in root.glob("*/**/*.py") if file.name != "__init__.py"]
    listing = [file.relative_to(root) for file in inside if "\n__all__ =" in file.read_text()]

    written = {*exports.PACKAGES, "testing"}
    assert {file.parts[0] for file in listing} <= written


def test_dir_lists_the_exports_and_the_packages():
    names = set(dir(composable)) - set(composable.__all__)

    public = {name.split(".")[1] for name in PACKAGES[1:]} - {"plan"}
    assert names == public | {"__version__", "metrics", "utils"}


def test_importing_a_package_or_a_method_imports_no_other():
    torch, new = run(
        """
        import json, sys
        import composable, composable.algorithms, composable.functional, composable.callbacks
        torch = [name for name in sys.modules if name in ("torch", "attrs")]
        from composable import Trainer
        from composable.algorithms import MixUp
        new = [name for name in sys.modules if name.startswith("composable.")]
        print(json.dumps([torch, new]))
        """,
        fresh=True,
    )

    assert torch == []
    algorithms = [name for name in new if name.startswith("composable.algorithms.")]
    assert [name for name in algorithms if "._" not in name] == ["composable.algorithms.mixup"]
    assert [name for name in new if name.startswith(UNUSED)] == []


# By a bare import: what builds a run, and what many runs never need.
UNUSED = (
    *("cattrs", "jaxtyping", "numpy.typing", "fsspec", "pandas", "matplotlib"),
    *(f"composable.{name}." for name in ("checkpoint", "resume", "runs", "callbacks", "loggers")),
    *("composable.integrations", "composable.comparison", "composable.report", "composable.replay"),
    *("composable.data.", "composable.optim."),
    *(f"composable.distributed.{name}" for name in ("deepspeed", "shards", "reduction", "buckets")),
    *(f"composable.plan.{name}" for name in ("dispatch", "explain", "spans", "timeline")),
    *(f"composable.trainer.{name}" for name in ("build", "loop", "run", "saving", "restoring")),
)
MOST = 82


def test_importing_the_trainer_imports_few_modules():
    new = run(
        """
        import json, sys
        import torch
        before = set(sys.modules)
        from composable import Trainer
        import composable.algorithms
        print(json.dumps(sorted(set(sys.modules) - before)))
        """
    )

    assert len(new) <= MOST
    assert [name for name in new if name.startswith(UNUSED)] == []


def test_threads_import_the_same_names_and_modules_do_not_hide_functions():
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
        import composable.functional.mixup, composable.replay
        from composable.functional import mixup
        values = [mixup, composable.functional.mixup, composable.replay]
        print(json.dumps([len(found), len(set(found)), *(type(v).__name__ for v in values)]))
        """,
        fresh=True,
    ) == [8, 1, *["function"] * 3]


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


def test_an_extra_that_is_broken_is_not_said_to_be_missing():
    said = r"needs scipy, which can't be imported \(no zeta\): pip"
    with pytest.raises(ImportError, match=said), needs("This", "compare"):
        raise ImportError("no zeta", name="scipy.special")


MISSING = [
    ("tensorboard", "tensorboard", loggers.TensorBoardLogger),
    ("wandb", "wandb", loggers.WandBLogger),
    ("mlflow", "mlflow", loggers.MLFlowLogger),
    ("comet_ml", "comet", loggers.CometLogger),
    ("trackio", "trackio", loggers.TrackioLogger),
    ("azureml", "azureml", loggers.AzureMLLogger),
    ("psutil", "system", callbacks.SystemMonitor),
    ("onnxruntime", "onnx", lambda: callbacks.ExportForInference("a.onnx")),
    ("onnxscript", "onnx", lambda: callbacks.ExportForInference("a.onnx")),
    ("cloudpickle", "compare", lambda: composable.compare(len, {"a": []}, metric="test/loss")),
    ("loky", "compare", lambda: composable.compare(len, {"a": []}, metric="test/loss")),
    ("peft", "finetuning", lora_config),
    ("pandas", "report", lambda: RecordedRun(write_run(Path("run"), [1.0])).to_pandas()),
]


@pytest.mark.parametrize(("package", "extra", "use"), MISSING)
def test_a_missing_package_is_named_with_what_to_type(package, extra, use, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)

    message = rf'needs {package}.*pip install "composable\[{extra}\]"'
    with pytest.raises(ModuleNotFoundError, match=message):
        use()


def test_a_module_without_its_extra_is_named_with_what_to_type():
    extras = {
        "composable.integrations.lightning": "composable[lightning]",
        "composable.integrations.huggingface": "composable[huggingface]",
        "examples.digits": ".[demo]",
        "examples.residual_net": ".[demo]",
    }
    said = run(
        f"modules = {list(extras)}",
        """
        import importlib, json, sys
        sys.modules.update(dict.fromkeys(["lightning", "transformers", "sklearn"]))
        said = {}
        for module in modules:
            try:
                importlib.import_module(module)
            except (ImportError, SystemExit) as error:
                said[module] = str(error)
        print(json.dumps(said))
        """,
    )

    for module, extra in extras.items():
        assert f'pip install "{extra}"' in said[module]


def import_of_an_extra():
    with needs("a test", "huggingface"):
        pass


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("attrs", lambda: composable.Trainer(1, 2, 3)),
        ("transformers", import_of_an_extra),
        ("wandb", loggers.WandBLogger),
    ],
)
def test_a_package_below_its_floor_is_named_with_one_cure(package, use, monkeypatch):
    version = extras.metadata.version
    monkeypatch.setattr(
        extras.metadata, "version", lambda name: "0.1" if name == package else version(name)
    )
    extras.check_floors.cache_clear()
    with pytest.raises(ImportError, match=rf"^{package} 0.1 is older than .* '{package}>="):
        use()
    extras.check_floors.cache_clear()
