"""The loops that the adapter supports, and the Trainer: each trains a run, for comparison."""

from contextlib import nullcontext
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from composable import Event, Precision, Trainer
from composable.integrations import LoopAdapter, adapt_loop
from tests.integrations.table import INDEXED, OPTIONS, SETS, SGD, dataset, image_net, net
from tests.support.models import weights
from tests.support.runs import training_weights

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
PER_BATCH = (Event.BEFORE_DATALOADER, Event.AFTER_DATALOADER, Event.BEFORE_TRAIN_BATCH)
"""The events of each batch of the loader; of a step, the Trainer prepares all of them first."""
KEYS = {"input_key": "pixel_values", "target_key": "labels", "loss_fn": None}
IMAGES = partial(dataset, "")


@attrs.frozen(eq=False)
class Run:
    """A training that every loop can do."""

    algorithms: Any = ()
    net: Any = image_net
    examples: int = 16
    batch_size: int = 4
    accumulate_batches: int = 1
    epochs: int = 2
    precision: str = "fp32"
    scale: float = 4.0
    """The first loss scale of fp16."""
    optimizer: Any = SGD
    loss_fn: Any = cross_entropy
    options: Any = attrs.field(factory=dict)
    """Further options of the adapter, and of the Trainer."""
    data: Any = IMAGES
    """Returns a number of inputs and targets."""
    keyed: bool = False
    """Whether batches are dictionaries, as in Hugging Face's Trainer."""
    batches: Any = None
    """Builds another loader."""
    processes: int = 1
    between: Any = None
    """What an own loop calls with the adapter, after each backward pass and each step."""
    evaluates: bool = False
    seen: list[Tensor] = attrs.field(factory=list)
    """The outputs in evaluations."""

    def __str__(self) -> str:
        names = [type(one).__name__ for one in self.algorithms]
        return " ".join([*names, self.precision, f"{self.accumulate_batches} to a step"])

    def loader(self) -> Any:
        if self.batches is not None:
            return self.batches()
        data = self.data(self.examples)
        return DataLoader(self.dicts(data) if self.keyed else TensorDataset(*data), self.batch_size)

    def dicts(self, data: Any) -> list[dict[str, Any]]:
        return [{"pixel_values": x, "labels": y} for x, y in zip(*data, strict=True)]

    def probe(self) -> Any:
        """Return the input of evaluations."""
        inputs, targets = self.data(5)
        return {"pixel_values": inputs, "labels": targets} if self.keyed else inputs

    def adapter(self, model: nn.Module, optimizer: Any = None, **options: Any) -> LoopAdapter:
        options = {**self._options(), "precision": self._amp(str), **options}
        return adapt_loop(self.algorithms, model, optimizer, **options)

    def autocast(self) -> Any:
        dtype = DTYPES.get(self.precision)
        return torch.autocast("cpu", dtype) if dtype else nullcontext()

    def scaler(self) -> GradScaler | None:
        return GradScaler("cpu", init_scale=self.scale) if self.precision == "fp16" else None

    def trainer(self, **options: Any) -> Trainer:
        defaults = {
            "train_dataloader": self.loader(),
            "optimizers": self.optimizer,
            "algorithms": self.algorithms,
            "accumulate_batches": self.accumulate_batches,
            "precision": self._amp(partial(Precision, initial_scale=self.scale)),
            "device": "cpu",
            "progress_bar": False,
        }
        return Trainer(self.net(), **{**defaults, **self._options(), **options})

    def by_trainer(self, **options: Any) -> list[Tensor]:
        """Train with the Trainer, and return what `trained` does."""
        trainer = self.trainer(**options)
        trainer.fit()
        if self.evaluates:
            probe = self.probe() if self.keyed else (self.probe(), None)
            self.seen.extend(trainer.predict([probe]))
        own, evaluated = training_weights(trainer), weights(trainer.state.model)
        return _result(own, evaluated, trainer.state.timestamp)

    def _amp(self, kind: Any) -> Any:
        return "fp32" if self.precision == "fp32" else kind(f"amp_{self.precision}")

    def _options(self) -> dict[str, Any]:
        given = KEYS if self.keyed else {"loss_fn": self.loss_fn}
        return {"max_duration": f"{self.epochs}ep", "seed": 17, **given, **self.options}


@cache
def row(name: str, *, keyed: bool = False, **changes: Any) -> Run:
    """Return the run of a row of the table, on models of Transformers if it is keyed."""
    build: Any = net
    algorithms = SETS[name]
    if keyed:
        from tests.integrations.huggingface_loop import keyed_net as build

        if name in INDEXED:  # it takes the labels for them
            algorithms = [attrs.evolve(one, index_key="labels") for one in algorithms]
    defaults = {
        "net": partial(build, name),
        "data": partial(dataset, name),
        "examples": 14 if keyed else 10,
        "batch_size": 5 if keyed else 4,
        "options": OPTIONS.get(name, {}),
        "keyed": keyed,
        "evaluates": True,
    }
    return Run(algorithms, **{**defaults, **changes})


def own_weights(t: LoopAdapter) -> dict[str, Tensor]:
    """Return the weights that are trained; after a training, the model has the evaluated ones."""
    if not t.weights.installed:
        return weights(t.model)
    t.state = t.weights.remove(t.state)
    own = weights(t.model)
    t.state = t.weights.install(t.state)
    return own


def trained(t: LoopAdapter) -> list[Tensor]:
    """Return the weights that a loop trains, those that it evaluates, and the clock."""
    with t.evaluating() as model:
        evaluated = weights(model)
    return _result(own_weights(t), evaluated, t.state.timestamp)


def _result(own: Any, evaluated: Any, now: Any) -> list[Tensor]:
    return [*own.values(), *evaluated.values(), torch.tensor([now.batch, now.epoch])]


# --- loops that are written by hand ---


@attrs.frozen
class _ByHand:
    """The epochs of a loop, from a step of a folder if there is one."""

    run: Run
    folder: Any = None
    resume: int | None = None

    def batches(self, t: LoopAdapter, loader: Any, *parts: Any) -> Any:
        """Iterate over the inputs, with whether a step follows; load the parts, or save them."""
        number, parts = self.run.accumulate_batches, (t, t.model, *filter(None, parts))
        if self.resume is not None:
            saved = torch.load(self.folder / f"{self.resume}", weights_only=True)
            for part, state in zip(parts, saved, strict=True):
                part.load_state_dict(state)
        for _ in range(t.state.timestamp.epoch, self.run.epochs):
            first = t.state.timestamp.batch_in_epoch * number + 1
            for i, batch in enumerate(t.epoch(loader, accumulate_batches=number), first):
                yield batch[0], (steps := i % number == 0 or i == len(loader))
                if steps and self.folder is not None and self.resume is None:
                    t.end_step()  # a scaler may have skipped it
                    saved = [part.state_dict() for part in parts]
                    torch.save(saved, self.folder / f"{t.state.timestamp.batch}")
        if self.run.evaluates:
            with t.evaluating() as model:
                self.run.seen.append(model(self.run.probe()))


def own_loop(run: Run, *place: Any, **resume: Any) -> LoopAdapter:
    model = run.net()
    optimizer = run.optimizer(model.parameters())
    scaler = run.scaler() or GradScaler("cpu", enabled=False)
    t = run.adapter(model, optimizer)
    wrapped, between = t.model, run.between or (lambda t: None)
    if run.processes > 1:
        wrapped = DistributedDataParallel(t.model, find_unused_parameters=True)
    batches = _ByHand(run, *place, **resume).batches(t, run.loader(), optimizer, scaler)
    for inputs, steps in batches:
        with nullcontext() if steps or wrapped is t.model else wrapped.no_sync():
            with run.autocast():
                loss = t.loss(wrapped(inputs)) / run.accumulate_batches
            scaler.scale(loss).backward()
        between(t)
        if steps:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            between(t)
    return t


def accelerate(run: Run, *place: Any, **resume: Any) -> LoopAdapter:
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # it is shared by the process
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="bf16" if run.precision == "bf16" else "no",
        gradient_accumulation_steps=run.accumulate_batches,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    accelerator.scaler = scaler = run.scaler()  # Accelerate creates one on a GPU only
    model = run.net()
    raw = run.optimizer(model.parameters())
    optimizer = accelerator.prepare(raw)
    t = run.adapter(model, optimizer)  # the page passes the optimizer without its wrapper
    model, loader = accelerator.prepare(t.model, run.loader())
    for inputs, _ in _ByHand(run, *place, **resume).batches(t, loader, raw, scaler):
        with accelerator.accumulate(model):
            with run.autocast() if run.precision == "fp16" else nullcontext():
                loss = t.loss(model(inputs))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return t


def fabric(run: Run, *place: Any, **resume: Any) -> LoopAdapter:
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    scaler = run.scaler()
    plugins = [MixedPrecision("16-mixed", "cpu", scaler)] if scaler else []
    precision = "bf16-mixed" if run.precision == "bf16" else None
    parallel = {"strategy": "ddp"} if run.processes > 1 else {}
    made = Fabric(
        accelerator="cpu", devices=run.processes, precision=precision, plugins=plugins, **parallel
    )
    made.launch()
    model = run.net()
    raw = run.optimizer(model.parameters())
    t = run.adapter(model, raw)
    model, optimizer = made.setup(t.model, raw)
    loader = made.setup_dataloaders(run.loader())
    for inputs, steps in _ByHand(run, *place, **resume).batches(t, loader, raw, scaler):
        with made.no_backward_sync(model, enabled=not steps):
            made.backward(t.loss(model(inputs)) / run.accumulate_batches)
        if steps:
            optimizer.step()
            optimizer.zero_grad()
    return t


# --- loops of other trainers ---


def _trainer(library: str, *args: Any, **options: Any) -> LoopAdapter:
    """Import the loop of a library, which takes seconds, and train."""
    if library == "lightning":
        from tests.integrations.lightning_loop import train
    else:
        from tests.integrations.huggingface_loop import train
    return train(*args, **options)


_OTHERS = {
    "Fabric": ("lightning", fabric),
    "Accelerate": ("accelerate", accelerate),
    "Lightning, mixin": ("lightning", partial(_trainer, "lightning", mixin=True)),
    "HF, mixin": ("transformers", partial(_trainer, "transformers", mixin=True)),
    "Lightning, callback": ("lightning", partial(_trainer, "lightning", mixin=False)),
    "HF, callback": ("transformers", partial(_trainer, "transformers", mixin=False)),
}
LOOPS: dict[str, Any] = {"own loop": own_loop}
"""By name: `loop(run, folder=None, resume=None)` trains, and saves after each step in the folder;
or resumes from the step in it. It returns the adapter."""
LOOPS |= {name: loop for name, (library, loop) in _OTHERS.items() if find_spec(library)}
FULL = [name for name in LOOPS if "callback" not in name]
"""The loops that call `start_batch` and `loss`."""
BY_HAND = [name for name in FULL if "mixin" not in name]
