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


images = partial(dataset, "")


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
    data: Any = images
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
        return " ".join(type(one).__name__ for one in self.algorithms)

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
        return adapt_loop(
            self.algorithms,
            model,
            optimizer,
            **{**self._options(), "precision": self._precision(), **options},
        )

    def autocast(self) -> Any:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast("cpu", DTYPES[self.precision])

    def scaler(self) -> GradScaler | None:
        return GradScaler("cpu", init_scale=self.scale) if self.precision == "fp16" else None

    def trainer(self, **options: Any) -> Trainer:
        amp = partial(Precision, initial_scale=self.scale)
        return Trainer(
            self.net(),
            train_dataloader=self.loader(),
            optimizers=self.optimizer,
            algorithms=self.algorithms,
            accumulate_batches=self.accumulate_batches,
            precision=self._precision() if self.precision == "fp32" else amp(self._precision()),
            device="cpu",
            progress_bar=False,
            **{**self._options(), **options},
        )

    def by_trainer(self, **options: Any) -> list[Tensor]:
        """Train with the Trainer, and return what `trained` does."""
        trainer = self.trainer(**options)
        trainer.fit()
        if self.evaluates:
            self.seen.extend(
                trainer.predict([self.probe() if self.keyed else (self.probe(), None)])
            )
        own = training_weights(trainer)
        return _result(own, trainer.state.model, trainer.state.timestamp)

    def _precision(self) -> str:
        return "fp32" if self.precision == "fp32" else f"amp_{self.precision}"

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
    evaluated = weights(evaluated) if isinstance(evaluated, nn.Module) else evaluated
    clock = torch.tensor([now.batch, now.epoch])
    return [*own.values(), *evaluated.values(), clock]


# --- loops that are written by hand ---


def _epochs(run: Run, t: LoopAdapter, loader: Any, parts: Any, folder: Any, resume: Any) -> Any:
    """Iterate over the inputs, with whether a step follows; save the parts, or resume from them."""
    if resume is not None:
        saved = torch.load(folder / f"{resume}", weights_only=True)
        for part, state in zip(parts, saved, strict=True):
            part.load_state_dict(state)
    for _ in range(t.state.timestamp.epoch, run.epochs):
        first = t.state.timestamp.batch_in_epoch * run.accumulate_batches + 1
        batches = t.epoch(loader, accumulate_batches=run.accumulate_batches)
        for i, batch in enumerate(batches, first):
            steps = i % run.accumulate_batches == 0 or i == len(loader)
            yield batch[0], steps
            if steps and folder is not None and resume is None:
                t.end_step()  # a scaler may have skipped it
                saved = [part.state_dict() for part in parts]
                torch.save(saved, folder / f"{t.state.timestamp.batch}")
    if run.evaluates:
        with t.evaluating() as model:
            run.seen.append(model(run.probe()))


def own_loop(run: Run, folder: Any = None, resume: int | None = None) -> LoopAdapter:
    model = run.net()
    optimizer, scaler = (
        run.optimizer(model.parameters()),
        run.scaler() or GradScaler("cpu", enabled=False),
    )
    t = run.adapter(model, optimizer)
    parts = t, t.model, optimizer, scaler
    wrapped = t.model
    if run.processes > 1:
        wrapped = DistributedDataParallel(t.model, find_unused_parameters=True)
    between = run.between or (lambda t: None)
    for inputs, steps in _epochs(run, t, run.loader(), parts, folder, resume):
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


def accelerate(run: Run, folder: Any = None, resume: int | None = None) -> LoopAdapter:
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
    parts = [t, t.model, raw, *([scaler] if scaler else [])]
    for inputs, _ in _epochs(run, t, loader, parts, folder, resume):
        with accelerator.accumulate(model):
            with run.autocast() if run.precision == "fp16" else nullcontext():
                loss = t.loss(model(inputs))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return t


def fabric(run: Run, folder: Any = None, resume: int | None = None) -> LoopAdapter:
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    scaler = run.scaler()
    plugins = [MixedPrecision("16-mixed", "cpu", scaler)] if scaler else []
    precision = "bf16-mixed" if run.precision == "bf16" else None
    made = Fabric(accelerator="cpu", devices=1, precision=precision, plugins=plugins)
    model = run.net()
    raw = run.optimizer(model.parameters())
    t = run.adapter(model, raw)
    model, optimizer = made.setup(t.model, raw)
    loader = made.setup_dataloaders(run.loader())
    parts = [t, t.model, raw, *([scaler] if scaler else [])]
    for inputs, steps in _epochs(run, t, loader, parts, folder, resume):
        with made.no_backward_sync(model, enabled=not steps):
            made.backward(t.loss(model(inputs)) / run.accumulate_batches)
        if steps:
            optimizer.step()
            optimizer.zero_grad()
    return t


# --- loops of other trainers ---


def lightning(*args: Any, **options: Any) -> LoopAdapter:
    from tests.integrations.lightning_loop import train  # the library takes seconds to import

    return train(*args, **options)


def hugging_face(*args: Any, **options: Any) -> LoopAdapter:
    from tests.integrations.huggingface_loop import train

    return train(*args, **options)


_OTHERS = {
    "Fabric": ("lightning", fabric),
    "Accelerate": ("accelerate", accelerate),
    "Lightning, mixin": ("lightning", partial(lightning, mixin=True)),
    "HF, mixin": ("transformers", partial(hugging_face, mixin=True)),
    "Lightning, callback": ("lightning", partial(lightning, mixin=False)),
    "HF, callback": ("transformers", partial(hugging_face, mixin=False)),
}
LOOPS: dict[str, Any] = {"own loop": own_loop}
"""By name: `loop(run, folder=None, resume=None)` trains, and saves after each step in the folder;
or resumes from the step in it. It returns the adapter."""
LOOPS |= {name: loop for name, (library, loop) in _OTHERS.items() if find_spec(library)}
FULL = [name for name in LOOPS if "callback" not in name]
"""The loops that call `start_batch` and `loss`."""
BY_HAND = [name for name in FULL if "mixin" not in name]
