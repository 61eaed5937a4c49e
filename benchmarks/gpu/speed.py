"""Speed: steps as ratios to a plain compiled loop, interleaved in one process."""

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import composable.functional as F
from benchmarks.gpu.models import gpt, residual_net, resnet50, source_tokens
from benchmarks.gpu.setting import Case, Row, Setting, run_cases
from composable import Algorithm, Trainer
from composable.algorithms import (
    ActivationCheckpointing,
    Alibi,
    ChannelsLast,
    LowPrecisionLayerNorm,
    NGramEmbeddings,
    Rotary,
    SeqLengthWarmup,
)
from tests.support.runs import VISION

__all__ = ["augmentations", "method_costs", "models", "overhead", "peers"]

SGD = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=3e-4, fused=True)


class Turns:
    """A loader that lets another loop run a block of its own between two blocks.

    Times are taken with the device idle at both ends of a block.
    """

    def __init__(
        self,
        setting: Setting,
        batches: list[Any],
        other: Callable[[int], None],
        blocks: int,
        steps: int,
    ) -> None:
        self.setting, self.batches, self.other = setting, batches, other
        self.blocks, self.steps = blocks, steps
        self.ours: list[float] = []
        self.plain: list[float] = []

    def __len__(self) -> int:
        return self.blocks * self.steps

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.blocks):
            self.setting.synchronize()
            started = time.perf_counter()
            for i in range(self.steps):
                yield self.batches[i % len(self.batches)]
            self.setting.synchronize()
            between = time.perf_counter()
            self.other(self.steps)
            self.setting.synchronize()
            self.ours.append((between - started) / self.steps)
            self.plain.append((time.perf_counter() - between) / self.steps)

    def result(self) -> Row:
        """Return the times and ratios of the blocks after a fifth of them."""
        warm = max(1, len(self.ours) // 5)
        ours, plain = self.ours[warm:], self.plain[warm:]
        ratios = [a / b for a, b in zip(ours, plain, strict=True)]
        return {
            "status": "measured",
            "ms": 1e3 * statistics.median(ours),
            "plain_ms": 1e3 * statistics.median(plain),
            "ratio": statistics.median(ratios),
            "ratios": [min(ratios), max(ratios)],
        }


def compare(  # noqa: PLR0913 (what is compared)
    setting: Setting,
    model: nn.Module,
    batches: list[Any],
    optimizer: Callable[..., torch.optim.Optimizer],
    *,
    loss_fn: Callable[[Any, Any], Tensor] = cross_entropy,
    dtype: torch.dtype | None = None,
    compiled: bool = True,
    blocks: int | None = None,
    steps: int | None = None,
    **options: Any,
) -> Row:
    """Compare the Trainer with a plain loop: milliseconds of a step, their ratio, peak memory."""
    twin = copy.deepcopy(model).to(setting.device)
    if any(isinstance(one, ChannelsLast) for one in options.get("algorithms", ())):
        twin = twin.to(memory_format=torch.channels_last)
    # The loops have graphs of their own: the Trainer compiles the model that it is given.
    forward = torch.compile(twin) if compiled and not setting.is_tiny else twin
    stepped = optimizer(twin.parameters())
    moved = [(inputs.to(setting.device), targets.to(setting.device)) for inputs, targets in batches]

    def plain(count: int) -> None:
        for i in range(count):
            inputs, targets = moved[i % len(moved)]
            with torch.autocast(setting.device.type, dtype or torch.bfloat16, dtype is not None):
                loss = loss_fn(forward(inputs), targets)
            loss.backward()
            stepped.step()
            stepped.zero_grad()

    blocks = blocks or setting.choose(14, 3)
    steps = steps or setting.choose(20, 2)
    turns = Turns(setting, moved, plain, blocks, steps)
    if setting.is_cuda:
        torch.cuda.reset_peak_memory_stats(setting.device)
    Trainer(
        model,
        train_dataloader=turns,
        loss_fn=loss_fn,
        optimizers=optimizer,
        max_duration="1ep",
        device=setting.device,
        precision="fp32" if dtype is None else "amp_bf16",
        compile=compiled and not setting.is_tiny,
        seed=17,
        progress_bar=False,
        **options,
    ).fit()
    found = turns.result()
    if setting.is_cuda:
        found["peak_gb_of_both"] = torch.cuda.max_memory_allocated(setting.device) / 1e9
    return found


# --- real models ---


def _flops(model: nn.Module, batch: tuple[Tensor, Tensor], loss_fn: Any) -> float:
    """Count the floating-point operations of a step, in the forward and the backward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    counted = copy.deepcopy(model)
    with FlopCounterMode(display=False) as counter:
        loss_fn(counted(batch[0]), batch[1]).backward()
    return float(counter.get_total_flops())


def _image_model(setting: Setting) -> Row:
    torch.manual_seed(0)
    size, side = setting.choose((256, 224), (2, 32))
    model, one = resnet50(setting.choose(64, 4)), (torch.randn(2, 3, side, side), torch.arange(2))
    flops = _flops(model, one, cross_entropy) / 2 * size
    batches = [(torch.randn(size, 3, side, side), torch.arange(size) % 1000) for _ in range(2)]
    found = compare(
        setting,
        model,
        batches,
        partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        dtype=torch.bfloat16,
        algorithms=[ChannelsLast()],
    )
    return found | _rates(setting, found, size, "images", flops)


def _language_model(setting: Setting) -> Row:
    size, length = setting.choose((16, 1024), (2, 16))
    model, batches, text = _language_task(setting, size, length)
    one = (batches[0][0][:1], batches[0][1][:1])
    flops = _flops(model, one, _token_loss) * size
    found = compare(setting, model, batches, ADAMW, loss_fn=_token_loss, dtype=torch.bfloat16)
    parameters = sum(one.numel() for one in model.parameters())
    rates = _rates(setting, found, size * length, "tokens", flops)
    return found | rates | {"parameters": parameters, "data": text}


def _language_task(
    setting: Setting, size: int, length: int
) -> tuple[nn.Module, list[tuple[Tensor, Tensor]], str]:
    """Build a GPT and two batches of text, with the name of the text."""
    model, vocabulary = gpt(tiny=setting.is_tiny)
    tokens, text = source_tokens(vocabulary, 2 * size * (length + 1))
    rows = tokens.view(2, size, length + 1)
    batches = [(row[:, :-1].contiguous(), row[:, 1:].contiguous()) for row in rows]
    return model, batches, text


def _token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def _rates(setting: Setting, found: Row, count: int, unit: str, flops: float) -> Row:
    """Return units a second and the share of the peak of the device, by both loops."""
    rates: Row = {}
    for name, key in (("", "ms"), ("plain_", "plain_ms")):
        seconds = found[key] / 1e3
        rates[f"{name}{unit}_per_second"] = count / seconds
        if setting.is_cuda and (peak := _peak_flops(setting)):
            rates[f"{name}mfu"] = flops / seconds / peak
    return rates


def _peak_flops(setting: Setting) -> float | None:
    """Return the dense bf16 peak of known devices, of their data sheets."""
    name = torch.cuda.get_device_name(setting.device)
    peaks = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L4": 121e12, "4090": 165e12}
    return next((peak for key, peak in peaks.items() if key in name), None)


def models(setting: Setting) -> Iterator[Row]:
    """Compare steps of a ResNet-50 and of a GPT with 124 million parameters, in bf16."""
    cases: dict[str, Case] = {
        "ResNet-50, bf16, channels last, compiled": _image_model,
        "GPT, 124 M parameters, bf16, compiled": _language_model,
    }
    return run_cases(cases, setting)


# --- overhead ---


def _wide(width: int) -> nn.Module:
    layers = [nn.Linear(width, width), nn.ReLU()] * 4
    return nn.Sequential(*copy.deepcopy(layers), nn.Linear(width, 10))


def _step_of(milliseconds: float, setting: Setting, **options: Any) -> Row:
    """Find a width whose plain step takes this long, and compare."""
    width, size = 256, setting.choose(4096, 64)
    while True:
        torch.manual_seed(0)
        batches = [(torch.randn(size, width), torch.arange(size) % 10) for _ in range(2)]
        found = compare(setting, _wide(width), batches, SGD, compiled=False, blocks=6, steps=10)
        if found["plain_ms"] >= milliseconds or setting.is_tiny:
            break
        factor = (milliseconds / found["plain_ms"]) ** 0.5
        width = min(2 * width, max(width + 64, 64 * round(width * factor / 64)))
    found = compare(
        setting, _wide(width), batches, SGD, compiled=False, steps=setting.choose(50, 2), **options
    )
    return found | {"width": width}


def overhead(setting: Setting) -> Iterator[Row]:
    """Compare steps of 1, 5 and 20 ms, in fp32 without compilation."""
    cases: dict[str, Case] = {
        f"a step of {ms} ms": partial(_step_of, ms) for ms in setting.choose((1, 5, 20), (1,))
    }
    return run_cases(cases, setting)


# --- methods ---


def method_costs(setting: Setting) -> Iterator[Row]:
    """Compare steps with each method that acts on images, or on a GPT, with plain ones."""
    from tests.support.algorithm_cases import cases_on  # it needs hypothesis

    chosen = [case for case in cases_on(VISION, extras=False) if not case.alone]
    cases: dict[str, Case] = {
        repr(case.example): partial(_cost, case) for case in chosen[:: setting.choose(1, 8)]
    }
    length = setting.choose(1024, 16)
    for method in (
        *(Alibi(length), LowPrecisionLayerNorm(), NGramEmbeddings(), Rotary()),
        SeqLengthWarmup(max_seq_length=length),
    ):
        cases[f"{method!r} on a GPT"] = partial(_cost_on_a_gpt, method)
    for name, options in _CHECKPOINTING.items():
        cases[f"activation checkpointing of a GPT: {name}"] = partial(_memory_of_a_gpt, options)
    return run_cases(cases, setting)


_CHECKPOINTING: dict[str, dict[str, Any] | None] = {
    "none": None,
    "full": {},
    "every second block": {"every": 2},
    "selective": {"policy": ["aten.mm.default", "aten.addmm.default", "aten.bmm.default"]},
    "offload": {"offload": True},
}


def _cost(case: Any, setting: Setting) -> Row:
    size, side = setting.choose((256, 64), (4, 16))
    batches = [(torch.rand(size, 3, side, side), torch.arange(size) % 10) for _ in range(2)]
    model = residual_net(0, width=setting.choose(32, 4))
    algorithms = [copy.deepcopy(case.example)]
    return compare(
        setting,
        model,
        batches,
        SGD,
        compiled=False,
        blocks=setting.choose(6, 2),
        steps=setting.choose(10, 2),
        algorithms=algorithms,
    )


def _cost_on_a_gpt(method: Algorithm, setting: Setting) -> Row:
    size, length = setting.choose((8, 1024), (2, 16))
    model, batches, _ = _language_task(setting, size, length)
    return compare(
        setting,
        model,
        batches,
        ADAMW,
        loss_fn=_token_loss,
        dtype=torch.bfloat16,
        compiled=False,
        blocks=setting.choose(6, 2),
        steps=setting.choose(6, 2),
        algorithms=[method],
    )


def _memory_of_a_gpt(options: dict[str, Any] | None, setting: Setting) -> Row:
    """Compare steps with plain ones, and measure the peak memory of two steps by themselves."""
    from examples.small_gpt import Block  # it needs tokenizers

    methods = [] if options is None else [ActivationCheckpointing(Block, **options)]
    found = {} if not methods else _cost_on_a_gpt(methods[0], setting)
    model, batches, _ = _language_task(setting, *setting.choose((8, 1024), (2, 16)))
    torch.cuda.empty_cache()
    if setting.is_cuda:
        torch.cuda.reset_peak_memory_stats(setting.device)
    trainer = Trainer(
        model,
        train_dataloader=batches,
        loss_fn=_token_loss,
        optimizers=ADAMW,
        algorithms=methods,
        max_duration="1ep",
        device=setting.device,
        precision="amp_bf16",
        progress_bar=False,
    )
    trainer.fit()
    if setting.is_cuda:
        found["peak_gb"] = torch.cuda.max_memory_allocated(setting.device) / 1e9
    return {**found, "loss": float(trainer.state.loss)}  # type: ignore[arg-type]


def augmentations(setting: Setting) -> Iterator[Row]:
    """Measure RandAugment and AugMix on images on the device."""
    cases: dict[str, Case] = {name: partial(_augment, name) for name in ("randaugment", "augmix")}
    return run_cases(cases, setting)


def _augment(name: str, setting: Setting) -> Row:
    function = getattr(F, name)
    size, side = setting.choose((256, 224), (4, 16))
    images = torch.randint(256, (size, 3, side, side), dtype=torch.uint8, device=setting.device)
    generator = torch.Generator().manual_seed(0)
    seconds = []
    for _ in range(setting.choose(12, 2)):
        setting.synchronize()
        started = time.perf_counter()
        function(images, generator=generator)
        setting.synchronize()
        seconds.append(time.perf_counter() - started)
    best = statistics.median(seconds[1:])
    return {"status": "measured", "ms": 1e3 * best, "images_per_second": size / best}


# --- other trainers ---


def peers(setting: Setting) -> Iterator[Row]:
    """Compare other trainers, if they are installed, with a plain loop."""
    return run_cases({"Lightning": _lightning}, setting)


def _lightning(setting: Setting) -> Row:
    import lightning

    class Module(lightning.LightningModule):
        """A perceptron."""

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any) -> Tensor:
            """Return the loss."""
            return cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            """Return SGD."""
            return SGD(self.parameters())

    def fit(model: nn.Module, loader: Turns) -> None:
        lightning.Trainer(
            max_epochs=1,
            accelerator="gpu" if setting.is_cuda else "cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(Module(model), loader)

    return _peer(setting, fit)


def _peer(setting: Setting, fit: Callable[[nn.Module, Turns], None]) -> Row:
    torch.manual_seed(0)
    width, size = 256, setting.choose(4096, 64)
    model = _wide(width)
    twin = copy.deepcopy(model).to(setting.device)
    optimizer = SGD(twin.parameters())
    batches = [
        (torch.randn(size, width).to(setting.device), (torch.arange(size) % 10).to(setting.device))
        for _ in range(2)
    ]

    def plain(count: int) -> None:
        for i in range(count):
            inputs, targets = batches[i % 2]
            cross_entropy(twin(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    turns = Turns(setting, batches, plain, setting.choose(14, 3), setting.choose(50, 2))
    fit(model, turns)
    return turns.result()
