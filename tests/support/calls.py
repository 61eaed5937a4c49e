"""A valid call of every public callable: what `tools/fuzz_arguments.py` changes one argument of."""

import importlib
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import composable
from composable import functional as F
from composable.batches.spec import BatchSpec
from composable.checkpoint.errors import CheckpointError
from tests.report.folders import write_run
from tests.support import models
from tests.support.cases import ROOT, all_cases
from tests.support.data import batches, examples
from tests.support.hugging_face import llama
from tests.support.observers import Asks
from tests.support.runs import make_trainer, sgd

PACKAGES = (
    *("composable", "composable.callbacks", "composable.checkpoint", "composable.batches.batch"),
    *("composable.losses.mean", "composable.core.time", "composable.data"),
    *("composable.distributed", "composable.functional"),
    *("composable.algorithms", "composable.integrations", "composable.loggers"),
    *("composable.metrics", "composable.models", "composable.optim", "composable.plan"),
    *("composable.recipes", "composable.report", "composable.runs", "composable.storage"),
    *("composable.testing", "composable.utils.reproducibility"),
)
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@attrs.frozen(eq=False)
class PublicCall:
    """A public callable with valid arguments.

    Args:
        name: How it is shown.
        function: The callable.
        valid: Builds valid arguments, by name.
        errors: Errors of its own that say what is wrong with a value, such as a missing file.
        passed_on: Arguments with which code of the caller is called, whose errors are its own.
        called: Arguments that are called if they can be; the same holds for their errors.
    """

    name: str
    function: Callable[..., Any]
    valid: Callable[[], dict[str, Any]] = dict
    errors: tuple[type[Exception], ...] = ()
    passed_on: frozenset[str] = frozenset()
    called: frozenset[str] = frozenset()

    @property
    def arguments(self) -> list[str]:
        """The names of the arguments, without `**options`."""
        parameters = inspect.signature(self.function).parameters.values()
        given = self.valid()
        return [p.name for p in parameters if p.kind not in VARIABLE or p.name in given]

    def passes_on(self, argument: str, value: Any) -> bool:
        """Return whether errors with this value may be those of the caller's own code."""
        return argument in self.passed_on or (argument in self.called and callable(value))

    def run(self, arguments: Mapping[str, Any]) -> Any:
        """Call it, with the arguments by name and those of `*others` by position."""
        kinds = {p.name: p.kind for p in inspect.signature(self.function).parameters.values()}
        variable = [
            name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL
        ]
        if not variable or variable[0] not in arguments:
            return self.function(**arguments)
        others = arguments[variable[0]]
        before = [arguments[n] for n in kinds if n in arguments and kinds[n] is _EITHER]
        named = {n: v for n, v in arguments.items() if kinds.get(n) not in (*VARIABLE, _EITHER)}
        return self.function(*before, *(others if isinstance(others, tuple) else [others]), **named)


_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD


def public_calls() -> Iterator[PublicCall]:
    """List the methods, from their cases, and everything else.

    What needs only arguments that have a value by their name, and raises no errors of its own, is
    not in a list.
    """
    seen = set()
    for case in all_cases():
        for one in case.functions:
            if one.function not in seen:
                seen.add(one.function)
                name = one.function.__name__
                yield PublicCall(name, one.function, one.valid, (), *_passed_on(name))
        if case.algorithm:
            seen.add(case.algorithm.kind)
            yield PublicCall(
                case.algorithm.kind.__name__, case.algorithm.kind, case.algorithm.valid
            )
    for function, valid, *errors in OTHERS:
        seen.add(function)
        name = getattr(function, "__qualname__", None) or function.func.__qualname__
        yield PublicCall(name, function, valid, tuple(errors), *_passed_on(name))
    for thing in dict.fromkeys(exported().values()):
        values = {name: BY_NAME.get(name) for name in _required(thing)}
        if thing not in seen and None not in values.values():
            name = thing.__qualname__
            yield PublicCall(name, thing, given(**values), (), *_passed_on(name))


def _required(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in VARIABLE]


@contextmanager
def unchanged_registries() -> Iterator[None]:
    """Remove the classes that are registered in a block."""
    before = [dict(registry.entries) for registry in _registries()]
    try:
        yield
    finally:
        for registry, entries in zip(_registries(), before, strict=True):
            registry.entries = entries


@cache
def _registries() -> list[Any]:
    list(public_calls())  # imports every module
    modules = [
        one for name, one in sys.modules.items() if name.startswith("composable.functional.")
    ]
    return [one.REGISTRY for one in modules if hasattr(one, "REGISTRY")]


def _passed_on(name: str) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(PASSED_ON.get(name, ())), frozenset(CALLED.get(name, ()))


def uncalled() -> list[str]:
    """List the public callables that have neither a call nor a reason why not."""
    called = {call.function for call in public_calls()}
    called |= {registered.__wrapped__, composable.metrics.perplexity}
    return [name for name, thing in exported().items() if thing not in called]


@cache
def exported() -> dict[str, Any]:
    """Return the public callables that may be called, by their full names."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", None) or _documented(package):
            thing = getattr(module, name)
            error = isinstance(thing, type) and issubclass(thing, (Exception, Warning))
            if callable(thing) and not error and name not in NOT_CALLED:
                found[f"{package}.{name}"] = thing
    return found


def _documented(module: str) -> list[str]:
    """Return the names of a module that the reference shows."""
    pages = "".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    return re.findall(rf"automodule:: {re.escape(module)}\n   :members: (.+)", pages)[0].split(", ")


# --- valid arguments ---


def a_trainer(**options: Any) -> composable.Trainer:
    """Build a Trainer that stops after one batch, however long it is to train."""
    stop = Asks(composable.Event.BATCH_END, 0, composable.Control.STOP)
    return make_trainer(**{"max_duration": "2ba", "callbacks": [stop], **options})


def a_folder() -> Path:
    """Make a folder of its own."""
    return Path(tempfile.mkdtemp(dir="."))


def token_files() -> list[Path]:
    """Write a file of tokens."""
    return [composable.data.write_token_file(a_folder() / "tokens.bin", torch.arange(8))]


def a_checkpoint() -> Path:
    """Write a checkpoint of one tensor."""
    packed = composable.checkpoint.pack({"state": {"model": {"weights": {"x": torch.ones(2)}}}})
    return composable.checkpoint.write(a_folder() / "checkpoint", *packed)


def a_weights_file() -> dict[str, Any]:
    """Write weights of a linear layer."""
    path = a_folder() / "weights.pt"
    torch.save(nn.Linear(2, 2).state_dict(), path)
    return {"model": nn.Linear(2, 2), "path": path, "strict": True, "ignore": (), "key": None}


def a_file() -> Path:
    """Name a file in a folder of its own."""
    return a_folder() / "metrics.jsonl"


def a_page() -> Path:
    """Name a page in a folder of its own."""
    return a_folder() / "report.html"


def a_run() -> Path:
    """Record a run, and return its folder."""
    return write_run(a_folder(), [2.0, 1.0])


def a_write() -> dict[str, Any]:
    """Make arguments to write a checkpoint."""
    return {
        "folder": a_folder() / "c",
        "tensors": {"x": torch.ones(2)},
        "data": {"a": 1},
        "overwrite": False,
    }


def a_copy() -> dict[str, Any]:
    """Make arguments to copy a checkpoint."""
    return {"folder": a_checkpoint(), "out": a_folder() / "copy"}


def an_export() -> dict[str, Any]:
    """Make arguments to import a checkpoint."""
    exported = composable.checkpoint.export_dcp(**a_copy())
    return {"folder": exported, "out": a_folder() / "copy", "ignore": (), "overwrite": False}


def a_packed_tree() -> dict[str, Any]:
    """Pack a tree with a tensor."""
    tensors, data = composable.checkpoint.pack({"a": torch.ones(2)})
    return {"tensors": tensors, "data": data}


def some_states() -> list[torch.Tensor]:
    """Return the states of the generators of a loader."""
    return composable.data.get_generator_states(a_loader())


def a_loader() -> DataLoader[Any]:
    """Build a DataLoader with a generator."""
    data = TensorDataset(*examples(8))
    return DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator())


def trainer_arguments() -> dict[str, Any]:
    """Make arguments of a Trainer."""
    return {
        "model": models.mlp(),
        "train_dataloader": batches(8),
        "eval_dataloader": batches(4),
        "loss_fn": cross_entropy,
        "optimizers": sgd,
        "schedulers": (),
        "max_duration": "2ba",
        "algorithms": [composable.algorithms.LabelSmoothing(0.1)],
        "callbacks": [],
        "loggers": [],
        "seed": 3,
        "device": "cpu",
        "progress_bar": False,
    }


def a_timestamp() -> composable.Timestamp:
    """Make a timestamp in the first epoch."""
    return composable.Timestamp(batch=2, batch_in_epoch=2, sample=8, sample_in_epoch=8)


def a_plan() -> composable.Plan:
    """Compile a plan of one algorithm."""
    return composable.Plan.compile([composable.algorithms.LabelSmoothing(0.1)])


def a_clock() -> composable.Clock:
    """Make a clock in the first epoch of two."""
    return composable.Clock(a_timestamp(), "2ep", 4)


def a_replay() -> dict[str, Any]:
    """Record a run, and make arguments to replay its second batch."""
    folder = a_folder()

    def train() -> composable.State:
        return a_trainer(save_folder=folder, save_interval="1ba", callbacks=[]).fit()

    train()
    return {"train": train, "run": folder, "batch": 1}


@attrs.frozen
class Fresh:
    """A value that is built for each call."""

    build: Callable[[], Any]


def given(**values: Any) -> Callable[[], dict[str, Any]]:
    """Build a function that returns these values, of which `Fresh` ones are built at each call."""

    def build() -> dict[str, Any]:
        return {n: v.build() if isinstance(v, Fresh) else v for n, v in values.items()}

    return build


def method(build: Callable[[], Any], name: str) -> Callable[..., Any]:
    """Return a method as a function that calls it on a new object."""

    def call(*others: Any, **arguments: Any) -> Any:
        return getattr(build(), name)(*others, **arguments)

    bound = getattr(build(), name)
    call.__signature__ = inspect.signature(bound)  # type: ignore[attr-defined]
    call.__qualname__ = bound.__qualname__
    return call


@wraps(composable.register_global_callback)
def registered(callback: Any) -> None:
    """Register a callback, and remove it."""
    composable.register_global_callback(callback).remove()


SMOOTH = composable.algorithms.LabelSmoothing
MODEL, LOADER, FOLDER = Fresh(models.mlp), Fresh(a_loader), Fresh(a_folder)
OPTIMIZER = Fresh(lambda: torch.optim.AdamW(models.mlp().parameters()))
CLOCK, BATCHES = Fresh(a_clock), Fresh(lambda: batches(8))
BATCH = Fresh(lambda: batches(4)[0])
FILES = (OSError, CheckpointError)
BY_NAME: dict[str, Any] = {
    "batch_size": 4,
    "dataloader": LOADER,
    "dataset": 10,
    "epoch": 1,
    "gamma": 0.5,
    "lr": 0.1,
    "milestones": ["0.5dur"],
    "model": MODEL,
    "module": MODEL,
    "monitor": "loss",
    "optimizer": OPTIMIZER,
    "outputs": torch.zeros(4, 3),
    "params": [nn.Parameter(torch.ones(2))],
    "power": 2.0,
    "seed": 3,
    "step": 1,
    "step_size": "2ep",
    "t_warmup": "1ep",
    "targets": torch.zeros(4).long(),
    "threshold": 0.5,
}
"""Valid values of required arguments, by name."""

data, checkpoint, loggers = composable.data, composable.checkpoint, composable.loggers
report = composable.report
optim, rng = composable.optim, composable.utils.reproducibility
batch, time = composable.batches.batch, composable.core.time
callbacks, metrics = composable.callbacks, composable.metrics
OTHERS: list[Any] = [
    (composable.Trainer, trainer_arguments, *FILES, ImportError),  # DeepSpeed is not in all extras
    (method(a_trainer, "fit"), given(duration="1ba")),
    (method(a_trainer, "eval"), given(eval_dataloader=BATCHES)),
    (method(a_trainer, "predict"), given(dataloader=BATCHES, to=FOLDER), OSError),
    (method(a_trainer, "predict_each"), given(dataloader=BATCHES)),
    (method(a_trainer, "add_callback"), given(callback=Fresh(composable.Callback))),
    (method(a_trainer, "save_checkpoint"), given(path=FOLDER, overwrite=True), *FILES),
    (composable.Precision, given(name="amp_fp16")),
    (composable.Clock, given(timestamp=Fresh(a_timestamp), max_duration="2ep", epoch_length=4)),
    (
        composable.Update,
        given(name="all", loss=composable.identity, optimizer=sgd, every=2, times=2),
    ),
    (composable.Evaluator, given(label="test", dataloader=BATCHES)),
    (method(lambda: composable.Key(3), "fold"), given(data=("x", 3))),
    (method(lambda: composable.Key(3), "generator"), given(device="cpu")),
    (composable.Plan.compile, given(algorithms=[SMOOTH(0.1)], callbacks=[], loggers=[])),
    (method(a_plan, "timeline"), given(max_duration="2ep", epoch_length=4)),
    (method(a_timestamp, "get"), given(unit="ep")),
    (method(lambda: composable.State(models.linear()), "reached"), given(time="1ep")),
    (method(loggers.InMemoryLogger, "series"), given(name="loss")),
    (composable.Time, given(value=3, unit="ep")),
    (composable.Logger, given(destinations=[loggers.InMemoryLogger()])),
    (composable.anneal, given(kind=SMOOTH, smoothing=lambda state: 0.1)),
    (composable.chain, given(algorithms=(SMOOTH(0.1),))),
    (composable.choose, given(algorithms=[SMOOTH(0.1), SMOOTH(0.2)], weights=[1, 2])),
    (composable.during, given(start="1ba", end="3ba", algorithm=SMOOTH(0.1))),
    (composable.every, given(interval="2ba", algorithm=SMOOTH(0.1))),
    (composable.when, given(predicate=composable.always, algorithm=SMOOTH(0.1))),
    (registered, given(callback=composable.Callback())),
    (composable.replay, a_replay, *FILES),
    (callbacks.CheckpointSaver, given(folder=FOLDER, overwrite=False), OSError),
    (callbacks.PruneTrial, given(trial=None, monitor="loss")),
    (callbacks.Generate, given(prompts=torch.tensor([[1, 2]]))),
    (callbacks.ExportForInference, given(path=Fresh(lambda: "model.pt2"))),
    (callbacks.MemorySnapshot, given(folder=FOLDER), OSError),
    (callbacks.MixtureMonitor, given(mixture=data.Mixture({"a": DataLoader([1])}))),
    (callbacks.OOMObserver, given(folder=FOLDER), OSError),
    (callbacks.Profiler, given(folder=FOLDER), OSError),
    (loggers.JSONLinesLogger, given(path=Fresh(a_file), overwrite=False, append=False), OSError),
    (loggers.CSVLogger, given(path=Fresh(a_file), overwrite=False), OSError),
    (loggers.WandBLogger, given(mode="offline")),
    (loggers.CometLogger, given(mode="offline")),
    (loggers.AzureMLLogger, given(), ModuleNotFoundError),  # its package is not in all extras
    (optim.by_role, given(optimizers={"head": {"lr": 0.1}}, default=sgd)),
    (optim.MultiOptimizer, given(optimizers=[sgd([nn.Parameter(torch.ones(2))])])),
    (optim.role_groups, given(model=MODEL, roles={"head": ["0.weight"]})),
    (optim.find_lr, given(trainer=Fresh(make_trainer), num_steps=2)),
    (optim.per_option, given(schedules={"lr": optim.linear()})),
    (optim.scaling_rule, given(size=len, base=2)),
    (optim.cosine_restarts, given(period="2ep")),
    (optim.Muon, given(params=MODEL, lr=0.1)),
    (
        optim.muon_groups,
        given(model=MODEL, matrices=["0.weight"], others=[], stacked=None, split_attention=None),
    ),
    (optim.per_group, given(schedules={"head": optim.linear()})),
    (optim.scale_schedule, given(schedule=optim.cosine(warmup="2ep"), ratio=0.5)),
    (
        data.BatchSizeWarmupSampler,
        given(dataset=10, batch_size=4, min_batch_size=2, duration=20, seed=3, shuffle=True),
    ),
    (optim.CosineAnnealingWarmRestartsScheduler, given(t_0="1ep")),
    (data.InfoBatch, given(sampler=data.InfoBatchSampler(4, batch_size=2, seed=3))),
    (data.Indexed, given(dataset=[1, 2])),
    (
        data.LengthGroupedBatchSampler,
        given(lengths=[3, 1, 2, 4, 5], batch_size=2, seed=3, shuffle=True),
    ),
    (data.Mixture, given(loaders={"a": DataLoader([1, 2])}, weights={"a": 1}, mode="longest")),
    (data.PackedDocuments, given(documents=[torch.arange(5)], length=2, seed=3, shuffle=True)),
    (data.PerExample, given(dataset=[1, 2], seed=3)),
    (data.TokenFiles, given(paths=Fresh(token_files), length=2, rows=3), OSError),
    (data.WorkerShard, given(dataset=[1, 2], batch_size=2)),
    (data.write_token_file, given(path=Fresh(a_file), tokens=torch.arange(4)), OSError),
    (data.set_generator_states, given(dataloader=LOADER, states=Fresh(some_states))),
    (metrics.OfLoss, given(function=torch.exp)),
    (metrics.OfAll, given(function=torch.add)),
    (method(lambda: metrics.OfAll, "compute_metrics"), given(function=dict)),
    (
        method(lambda: metrics.OfAll(torch.add), "__call__"),
        given(outputs=torch.zeros(2), targets=torch.zeros(2)),
    ),
    (method(lambda: metrics.perplexity, "__call__"), given(loss=torch.tensor(1.0))),
    (composable.models.AuxiliaryLoss, given(loss_fn=cross_entropy, weight=0.4)),
    (composable.models.Ensemble, given(members=Fresh(lambda: [models.mlp()]))),
    (composable.recipes.lora, given(full_lr=1e-4)),
    (composable.models.lora_config, given(rank=2, alpha=4), ModuleNotFoundError),
    (composable.models.with_liger_kernels, given(model=Fresh(llama)), ModuleNotFoundError),
    (checkpoint.Region, given(offsets=(0, 2), sizes=(1, 2))),
    (checkpoint.TensorShard, given(tensor=torch.ones(2), shape=(4,), offsets=(2,))),
    (checkpoint.consolidate, lambda: {**a_copy(), "overwrite": False}, *FILES),
    (checkpoint.export_dcp, lambda: {**a_copy(), "key": None, "prefix": ""}, *FILES),
    (checkpoint.import_dcp, an_export, *FILES),
    (checkpoint.find, given(folder=FOLDER, thorough=False), *FILES),
    (checkpoint.load_weights, a_weights_file, *FILES),
    (checkpoint.pack, given(tree={"a": 1})),
    (
        checkpoint.read_shards,
        lambda: {"folder": a_checkpoint(), "like": {}, "verify": True},
        *FILES,
    ),
    (checkpoint.read, given(folder=Fresh(a_checkpoint)), *FILES),
    (checkpoint.unpack, a_packed_tree, CheckpointError),
    (checkpoint.verify, given(folder=Fresh(a_checkpoint)), *FILES),
    (checkpoint.write, a_write, *FILES),
    (report.RecordedRun, given(folder=Fresh(a_run)), *FILES),
    (report.write_report, given(runs=Fresh(a_run), path=Fresh(a_page), title="Two"), *FILES),
    (composable.runs.RunRecorder, given(folder=FOLDER, weights=False), OSError),
    (
        composable.integrations.adapt_loop,
        given(algorithms=[SMOOTH(0.1)], model=MODEL, loss_fn=cross_entropy, max_duration="2ep"),
    ),
    (rng.load_rng_state, given(state=Fresh(rng.get_rng_state))),
    (BatchSpec, given()),
    (batch.count_examples, given(inputs=torch.zeros(4, 3))),
    (batch.map_tensors, given(function=torch.neg, tree=[torch.ones(2)])),
    (
        composable.batches.batch.select_examples,
        given(batch=BATCH, indices=torch.tensor([0, 2]), count=4),
    ),
    (batch.split_batch, given(batch=BATCH, sizes=[2, 2])),
    (composable.losses.mean.count_loss_tokens, given(targets=torch.tensor([1, -100]))),
    (
        composable.core.time.crossed,
        given(before=CLOCK, after=CLOCK, interval=composable.Time("1ep")),
    ),
    (time.elapsed, given(clock=CLOCK)),
    (composable.distributed.Shards, given(count=4, processes=composable.distributed.Processes())),
    (composable.storage.RemoteFolder, given(url="memory://runs/a", local_folder=FOLDER), OSError),
    (F.GyroDropoutLayer, given(p=0.5, sigma=4, tau=2, stay=2)),
    (F.SqueezeExcitation, given(channels=4)),
    (F.ResidualBlock, given(kind=nn.Linear)),
]

PASSED_ON = {
    "OfAll.__call__": ("outputs", "targets"),
    "cached_gradients": ("parts",),
    "recompute_batch_norm_statistics": ("model", "batches"),
    "map_tensors": ("tree",),
    "seeded_batches": ("dataloader",),
    "Trainer.check": ("batches",),
    "Trainer.eval": ("eval_dataloader",),
    "Trainer.predict": ("dataloader",),
    "Trainer.predict_each": ("dataloader",),
    "Trainer.summary": ("batches",),
}
"""Arguments with which a model or a function of the caller is called."""

CALLED = {
    "cached_gradients": ("forward", "loss_fn"),
    "replace_modules": ("rule",),
    "map_tensors": ("function",),
    "adapt_loop": ("algorithms",),
    "Trainer": ("algorithms", "callbacks", "optimizers", "schedulers"),
    "Trainer.add_callback": ("callback",),
    "replay": ("train",),
}
"""Arguments that are called if they can be."""

RESULT = "The library builds it; it is read, not constructed."
NAMES = "An enumeration."
BASE = "A base class or a protocol without arguments of its own."
LAYER = "Its arguments are those of the layer of torch that it replaces."
LONG = "It trains for long in each call; its arguments have tests of their own."
NOT_CALLED = {
    **dict.fromkeys(
        ("AugMixDraw", "ColOutDraw", "CutMixDraw", "CutOutDraw", "MixUpDraw", "RandAugmentDraw",
         "ResizeDraw", "FrozenLayers", "MixedBatch", "MixedTargets", "ResizedBatch", "Broken",
         "Pruning", "Contents", "FileRecord", "Found", "LoadedWeights", "Manifest", "Caveat",
         "Timeline", "LoopAdapter", "AlgorithmReport", "Answer", "FunctionReport",
         "FactorizedLayer", "ModelLoss", "NGramEmbedding", "Replacement", "TargetLoss",
         "WholeGradients"),
        RESULT,
    ),
    **dict.fromkeys(("Control", "Event", "Stage", "TimeUnit"), NAMES),
    **dict.fromkeys(
        ("Algorithm", "Callback", "LoggerDestination", "InMemoryLogger", "HasTime", "IdleModel",
         "NoSync", "always", "never", "identity", "events", "seeds", "register_torch",
         "accelerator", "configure_deterministic_mode", "get_random_seed", "get_rng_state",
         "preserve_rng"),
        BASE,
    ),
    **dict.fromkeys(
        ("BlurConv1d", "BlurConv2d", "BlurConv3d", "BlurMaxPool1d", "BlurMaxPool2d",
         "BlurMaxPool3d", "GhostBatchNorm1d", "GhostBatchNorm2d", "GhostBatchNorm3d",
         "LowPrecisionGroupNormLayer", "LowPrecisionLayerNormLayer", "LowPrecisionRMSNormLayer",
         "SquaredReLU", "StandardizedWeight"),
        LAYER,
    ),
    **dict.fromkeys(("check_algorithm", "check_function", "compare"), LONG),
    "loss_module": "Its argument is a loss that the Trainer has built.",
    "check_loss": "Its argument is the result of loss_fn, which its messages name.",
}  # fmt: skip
"""Public callables that are not fuzzed, each with the reason."""
