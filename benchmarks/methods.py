"""What each method costs against what one would take instead.

Peers are composer, timm, torchvision, kornia and functions of PyTorch: those that can be imported.

All candidates of a table do their work in turns, in one run, and ratios are taken turn by turn, so
that what else the machine does matters little. What is set apart as other work does less or more
than ours, as its line says. A method that is bound by memory is also held against a plain
`dst.copy_(src)` in the same turns: its floor is the bytes that it moves at least (each argument
read once, each result written once) over the bandwidth of that copy.

    python benchmarks/methods.py                        # all, some minutes
    python benchmarks/methods.py --only mixup ema       # some of them
    python benchmarks/methods.py --threads 2            # in time that passes, not in CPU time
    python benchmarks/methods.py --device cuda          # waits for the GPU at both ends of a turn
"""

import argparse
import copy
import importlib
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import isfinite
from types import MappingProxyType, ModuleType
from typing import NamedTuple

import torch
from augmentations import against_pillow, image_by_image, on_tensors
from method_costs import gpt2, network, take_turns
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

import composable.functional as F

Run = Callable[[], object]
Models = Mapping[str, Callable[[], nn.Module]]
NONE: Mapping = MappingProxyType({})
SIZES = [(128, 3, 32, 32), (32, 3, 224, 224)]


def declare_operators() -> None:
    """Let torchvision's wheel for CUDA be imported beside a torch for the CPU."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_library"] = library  # it lasts as long as the object


def optional(name: str) -> ModuleType | None:
    """Import a library, or print that its rows are skipped, and return None."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        print(f"{name} is skipped: {str(error).splitlines()[0]}")
        return None


warnings.simplefilter("ignore")
try:
    importlib.import_module("torchvision")
except RuntimeError:
    declare_operators()
except ImportError:
    pass
composer, kornia = optional("composer.functional"), optional("kornia")
timm, timm_augment = optional("timm"), optional("timm.data.auto_augment")
torchvision, v2 = optional("torchvision"), optional("torchvision.transforms.v2")
transformers = optional("transformers")


class Case(NamedTuple):
    """One table. Candidates are made by functions, each named after the library that it needs."""

    title: str
    ours: Run
    peers: dict[str, Callable[[], Run]]
    other_work: Mapping[str, Callable[[], Run]] = NONE
    moved: int = 0  # bytes
    like: Tensor | None = None  # what is copied beside it


def present(makers: Mapping[str, Callable[[], Run]]) -> dict[str, Run]:
    """Make the candidates whose library is there."""
    return {
        name: make()
        for name, make in makers.items()
        if globals().get(name.split()[0].rstrip(",:"), torch) is not None
    }


def images_of(size: tuple[int, ...], device: str) -> tuple[Tensor, Tensor, str]:
    """Float images, labels, and what to call them."""
    labels = torch.randint(10, size[:1], device=device)
    return torch.rand(size, device=device), labels, "x".join(map(str, size))


def nbytes(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def mixup_by_hand(x: Tensor, y: Tensor, generator: torch.Generator, alpha: float = 0.2) -> object:
    """Do the operations of `F.mixup` in the same order, without checks."""
    order = torch.randperm(len(x), generator=generator).to(x.device)
    shape = torch.full((2,), alpha + 1, dtype=torch.float64)
    first, second = torch._standard_gamma(shape, generator=generator).log().unbind()
    uniform = torch.rand(2, generator=generator, dtype=torch.float64)
    low, high = torch.log1p(-uniform).unbind()
    share = (first - second + (low - high) / alpha).sigmoid()
    share = torch.maximum(share, torch.rsub(share, 1))
    other, weight = x.index_select(0, order), share.to(x)
    mixed = torch.lerp(other, x, weight, out=other)
    if x.device.type != "cpu" or not isfinite(mixed.sum()):
        mixed = torch.where(mixed.isnan(), x, mixed)
    return mixed, y, y.index_select(0, order), weight


def mixup(device: str) -> Iterator[Case]:
    for size in SIZES:
        x, y, name = images_of(size, device)
        g = torch.Generator().manual_seed(0)
        yield Case(
            f"mixup {name}",
            lambda x=x, y=y, g=g: F.mixup(x, y, generator=g),
            {"composer mixup_batch": lambda x=x, y=y: lambda: composer.mixup_batch(x, y)},
            {
                "torch: the operations of mixup by hand": lambda x=x, y=y, g=g: partial(
                    mixup_by_hand, x, y, g
                ),
                "torch 0.7 * x + 0.3 * x[perm], no draw": lambda x=x: partial(
                    lambda x, p: 0.7 * x + 0.3 * x[p], x, torch.randperm(len(x), device=x.device)
                ),
                "torchvision v2.MixUp: neighbours, and dense targets": lambda x=x, y=y: partial(
                    v2.MixUp(num_classes=10, alpha=0.2), x, y
                ),
                "timm Mixup: in place, neighbours, and dense targets": lambda x=x, y=y: partial(
                    timm.data.Mixup(mixup_alpha=0.2, num_classes=10), x.clone(), y
                ),
                "kornia RandomMixUpV2: a weight an example": lambda x=x, y=y: partial(
                    kornia.augmentation.RandomMixUpV2(data_keys=["input", "class"]), x, y
                ),
            },
            2 * x.nbytes,
            x,
        )


def cutmix(device: str) -> Iterator[Case]:
    for size in SIZES:
        x, y, name = images_of(size, device)
        g = torch.Generator().manual_seed(0)
        yield Case(
            f"cutmix {name}",
            lambda x=x, y=y, g=g: F.cutmix(x, y, generator=g),
            {"composer cutmix_batch": lambda x=x, y=y: lambda: composer.cutmix_batch(x, y)},
            {
                "torchvision v2.CutMix: neighbours, and dense targets": lambda x=x, y=y: partial(
                    v2.CutMix(num_classes=10), x, y
                ),
                "timm Mixup: in place, neighbours, and dense targets": lambda x=x, y=y: partial(
                    timm.data.Mixup(mixup_alpha=0.0, cutmix_alpha=1.0, num_classes=10),
                    x.clone(),
                    y,
                ),
            },
            2 * x.nbytes,
            x,
        )


def cutout(device: str) -> Iterator[Case]:
    for size in SIZES:
        x, _, name = images_of(size, device)
        g = torch.Generator().manual_seed(0)
        yield Case(
            f"cutout, a hole for the batch {name}",
            lambda x=x, g=g: F.cutout(x, per_sample=False, generator=g),
            {
                "composer cutout_batch": lambda x=x: lambda: composer.cutout_batch(x),
                "torchvision v2.RandomErasing": lambda x=x: partial(
                    v2.RandomErasing(p=1.0, scale=(0.25, 0.25), ratio=(1, 1)), x
                ),
            },
            moved=2 * x.nbytes,
            like=x,
        )
        yield Case(
            f"cutout, a hole an example {name}",
            lambda x=x, g=g: F.cutout(x, generator=g),
            {
                "torchvision v2.RandomErasing, image by image": lambda x=x: partial(
                    lambda one, x: torch.stack([one(i) for i in x]),
                    v2.RandomErasing(p=1.0, scale=(0.25, 0.25), ratio=(1, 1)),
                    x,
                ),
                "kornia RandomErasing": lambda x=x: partial(
                    kornia.augmentation.RandomErasing((0.25, 0.25), (1.0, 1.0), p=1.0), x
                ),
            },
            {
                "timm RandomErasing: in place": lambda x=x: partial(
                    timm.data.random_erasing.RandomErasing(
                        1.0, 0.25, 0.25, 1.0, 1.0, device=str(x.device)
                    ),
                    x.clone(),
                )
            },
            2 * x.nbytes,
            x,
        )


def colout(device: str) -> Iterator[Case]:
    for size in SIZES:
        x, _, name = images_of(size, device)
        g = torch.Generator().manual_seed(0)
        yield Case(
            f"colout {name}",
            lambda x=x, g=g: F.colout(x, generator=g),
            {"composer colout_batch": lambda x=x: lambda: composer.colout_batch(x)},
            moved=int((1 + 0.85**2) * x.nbytes),
            like=x,
        )


def resize_batch(device: str) -> Iterator[Case]:
    for size in SIZES:
        x, y, name = images_of(size, device)
        half = [side // 2 for side in size[2:]]
        yield Case(
            f"resize_batch to half, bilinear {name}",
            lambda x=x: F.resize_batch(x, scale_factor=0.5),
            {
                "torch interpolate": lambda x=x: (
                    lambda: interpolate(x, scale_factor=0.5, mode="bilinear")
                ),
                "torchvision v2.functional.resize": lambda x=x, half=half: (
                    lambda: v2.functional.resize(x, half, antialias=False)
                ),
            },
            {
                "composer resize_batch: nearest": lambda x=x, y=y: (
                    lambda: composer.resize_batch(x, y, 0.5)
                )
            },
            int(1.25 * x.nbytes),
            x,
        )
        yield Case(
            f"resize_batch to half, crop {name}",
            lambda x=x: F.resize_batch(x, scale_factor=0.5, mode="crop"),
            {
                "composer resize_batch": lambda x=x, y=y: (
                    lambda: composer.resize_batch(x, y, 0.5, "crop")
                )
            },
        )


def smooth_labels(device: str) -> Iterator[Case]:
    outputs, labels = torch.randn(256, 1000), torch.randint(1000, (256,))
    outputs, labels = outputs.to(device), labels.to(device)
    yield Case(
        "smooth_labels 256x1000",
        lambda: F.smooth_labels(labels, num_classes=1000),
        {"composer smooth_labels": lambda: lambda: composer.smooth_labels(outputs, labels)},
        moved=outputs.nbytes,
        like=outputs,
    )


def randaugment(device: str, method: str = "randaugment") -> Iterator[Case]:
    for size in SIZES:
        coarse = torch.rand(*size[:2], size[2] // 4, size[3] // 4)
        images = (255 * interpolate(coarse, size=size[2:], mode="bilinear")).to(torch.uint8)
        images, made = images.to(device), "RandAugment" if method == "randaugment" else "AugMix"
        ours, pillow = against_pillow(method, images)

        def v2_transform(made: str = made) -> Callable:
            return getattr(v2, made)(interpolation=v2.InterpolationMode.BILINEAR)

        def timm_transform(images: Tensor = images) -> Callable:
            options = {"translate_const": images.shape[-1] // 3, "img_mean": (128, 128, 128)}
            if method == "randaugment":
                return timm_augment.rand_augment_transform("rand-m9-n2-p1.0", options)
            return timm_augment.augment_and_mix_transform("augmix-m3-w3", options)

        peers = {
            "Pillow, the same draw": lambda pillow=pillow: pillow,
            "torchvision PIL": lambda i=images, t=v2_transform: image_by_image(t(), i),
            "torchvision tensors": lambda i=images, t=v2_transform: partial(
                lambda t, i: torch.stack([t(one) for one in i]), t(), i
            ),
            "timm PIL": lambda i=images, t=timm_transform: image_by_image(t(), i),
            "composer PIL": lambda i=images: image_by_image(
                getattr(composer, f"{method}_image"), i
            ),
        }
        batchwise = {
            "kornia RandAugment: floats, one draw for the batch": lambda i=images: partial(
                lambda t, i: t(i / 255), kornia.augmentation.auto.RandAugment(n=2, m=9), i
            ),
            "torchvision tensors: one draw for the batch": lambda i=images, t=v2_transform: partial(
                t(), i
            ),
        }
        others = {"composable on tensors": lambda ours=ours: on_tensors(ours)}
        name = "x".join(map(str, size))
        yield Case(
            f"{method} {name}", ours, peers, others | (batchwise if method == "randaugment" else {})
        )


def augmix(device: str) -> Iterator[Case]:
    return randaugment(device, "augmix")


def set_sequence_length(device: str) -> Iterator[Case]:
    ids = torch.randint(1000, (32, 512), device=device)
    texts = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    for title, options in {
        "truncated": {},
        "with their ends": {"preserve_end_of_sequence": True},
        "in pieces": {"truncate": False},
    }.items():
        theirs = partial(lambda options: composer_length(texts, options), options)
        ours = partial(F.set_sequence_length, texts, 128, **options)
        title = f"set_sequence_length 32x512 to 128, {title}"
        if "preserve_end_of_sequence" in options:
            yield Case(
                title,
                ours,
                {},
                {"composer set_batch_sequence_length: padding on the right only": theirs},
            )
        else:
            yield Case(title, ours, {"composer set_batch_sequence_length": theirs})


def composer_length(texts: dict[str, Tensor], options: dict[str, bool]) -> Run:
    """Return a run of Composer's function on a copy of the dict, which it changes."""
    return lambda: composer.set_batch_sequence_length(dict(texts), 128, **options)


def select_using_loss(device: str) -> Iterator[Case]:
    x, y, name = images_of((128, 3, 32, 32), device)
    model, g = network().to(device), torch.Generator().manual_seed(0)

    def ours() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            losses = cross_entropy(model(x), y, reduction="none")
        chosen = F.select_using_loss(losses, generator=g)
        return x[chosen], y[chosen]

    yield Case(
        f"select_using_loss with its forward pass {name}",
        ours,
        {
            "composer select_using_loss": lambda: (
                lambda: composer.select_using_loss(x, y, model, cross_entropy)
            )
        },
    )


def resnet(device: str) -> nn.Module:
    """Build a ResNet-50, or a smaller network if torchvision is not installed."""
    return (torchvision.models.resnet50() if torchvision else network()).to(device)


def ema(device: str) -> Iterator[Case]:
    model = resnet(device)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
    yield averaging(
        "ema of a ResNet-50",
        model,
        partial(F.ema, smoothing=0.99),
        {
            "torch AveragedModel: in place": lambda: lambda: averaged.update_parameters(model),
            "composer compute_ema: in place": lambda: partial(
                composer.compute_ema, model, copy.deepcopy(model), 0.99
            ),
            "timm ModelEmaV3: in place": lambda: partial(
                timm.utils.ModelEmaV3(model, decay=0.99).update, model
            ),
        },
    )


def swa(device: str) -> Iterator[Case]:
    model = resnet(device)
    averaged = AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn())
    averaged.update_parameters(model)
    yield averaging(
        "swa of a ResNet-50",
        model,
        partial(F.swa, count=3),
        {
            "torch AveragedModel: in place, parameters only": lambda: (
                lambda: averaged.update_parameters(model)
            )
        },
    )


def averaging(title: str, model: nn.Module, update: Callable, others: dict) -> Case:
    """Build a case that updates the last average and then drops it, as in training."""
    current = model.state_dict()
    averages = [{name: tensor.clone() for name, tensor in current.items()}]

    def ours() -> None:
        averages[0] = update(averages[0], current)

    size = nbytes(list(current.values()))
    like = next(model.parameters()).new_ones(size // 4)
    return Case(title, ours, {}, others, 3 * size, like)


def with_gradients(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters, and gradients of about what they are in training, in `.grad` too."""
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.grad = 0.01 * torch.randn_like(parameter)
    return parameters, {name: p.grad.clone() for name, p in parameters.items()}


def clip_gradients(device: str) -> Iterator[Case]:
    model = resnet(device)
    parameters, grads = with_gradients(model)
    size = nbytes(list(grads.values()))
    like = torch.rand(size // 4, device=device)
    of_torch = {
        "norm": lambda: lambda: nn.utils.clip_grad_norm_(list(parameters.values()), 0.1),
        "value": lambda: lambda: nn.utils.clip_grad_value_(list(parameters.values()), 0.1),
    }
    for method, passes in {"norm": 3, "value": 2, "adaptive": 4}.items():
        peers = {f"torch clip_grad_{method}_: in place": of_torch.get(method)}
        peers |= {
            "composer apply_gradient_clipping: in place": lambda method=method: (
                lambda: composer.apply_gradient_clipping(model, method, 0.1, False)
            )
        }
        if method == "adaptive":
            peers["timm adaptive_clip_grad: in place"] = lambda: (
                lambda: timm.utils.adaptive_clip_grad(list(parameters.values()), 0.1)
            )
        yield Case(
            f"clip_gradients of a ResNet-50, {method}",
            lambda method=method: F.clip_gradients(
                grads, threshold=0.1, method=method, params=parameters
            ),
            {},
            {name: make for name, make in peers.items() if make},
            moved=passes * size,
            like=like,
        )


def sam_perturbation(device: str) -> Iterator[Case]:
    parameters, grads = with_gradients(resnet(device))
    size = nbytes(list(grads.values()))

    def by_hand() -> list[Tensor]:
        norm = torch.stack([grad.norm() for grad in grads.values()]).norm()
        return [p.detach() + 0.05 / (norm + 1e-12) * grads[n] for n, p in parameters.items()]

    yield Case(
        "sam_perturbation of a ResNet-50",
        lambda: F.sam_perturbation(parameters, grads),
        {"torch a tensor at a time": lambda: by_hand},
        moved=4 * size,
        like=torch.rand(size // 4, device=device),
    )


def both_ways(module: nn.Module, x: Tensor) -> Run:
    """Forward, and backward to the parameters and the inputs."""
    module, x = module.to(x.device).train(), x.clone().requires_grad_()
    return lambda: module(x).sum().backward()


def converted(apply: Callable, module: nn.Module, *args: object) -> nn.Module:
    """Apply one of composer's surgeries, which work in place, to a copy of a module."""
    module = copy.deepcopy(module)
    apply(module, *args)
    return module


def layers(device: str) -> Iterator[Case]:
    """Forward and backward of what the surgeries put in."""

    def case(title: str, x: Tensor, ours: nn.Module, peers: Models, others: Models = NONE) -> Case:
        same, other = (
            {name: lambda make=make: both_ways(make(), x) for name, make in makers.items()}
            for makers in (peers, others)
        )
        return Case(title, both_ways(ours, x), same, other)

    maps = torch.randn(32, 64, 28, 28, device=device)
    rows = torch.randn(512, 1024, device=device)
    conv = nn.Sequential(nn.Conv2d(64, 128, 3, stride=2, padding=1, bias=False)).to(device)
    yield case(
        *("a blurred convolution 32x64x28x28", maps, F.blurpool(conv), {}),
        {"composer blurpool: zeros around": lambda: converted(composer.apply_blurpool, conv)},
    )
    pool = nn.Sequential(nn.MaxPool2d(3, 2, 1))
    yield case(
        *("a blurred max-pool 32x64x28x28", maps, F.blurpool(pool)),
        {
            "timm BlurPool2d": lambda: nn.Sequential(
                nn.MaxPool2d(3, 1, 1), timm.layers.BlurPool2d(64)
            )
        },
        {
            "composer blurpool: zeros around": lambda: converted(composer.apply_blurpool, pool),
            "kornia MaxBlurPool2D: nothing around": lambda: kornia.filters.MaxBlurPool2D(
                3, max_pool_size=3
            ),
        },
    )
    wide = nn.Sequential(nn.Conv2d(64, 128, 3, padding=1, bias=False)).to(device)
    yield case(
        *("squeeze_excite after a convolution 32x64x28x28", maps, F.squeeze_excite(wide)),
        {
            "composer squeeze_excite": lambda: converted(composer.apply_squeeze_excite, wide),
            "torchvision SqueezeExcitation": lambda: nn.Sequential(
                copy.deepcopy(wide), torchvision.ops.SqueezeExcitation(128, 64)
            ),
            "timm SEModule": lambda: nn.Sequential(
                copy.deepcopy(wide), timm.layers.SEModule(128, rd_channels=64)
            ),
        },
    )
    norm = nn.Sequential(nn.BatchNorm2d(64)).to(device)
    many = torch.randn(128, 64, 16, 16, device=device)
    yield case(
        *("a ghost batch norm by 32, 128x64x16x16", many, F.ghost_batchnorm(norm)),
        {"composer ghost_batchnorm": lambda: converted(composer.apply_ghost_batchnorm, norm)},
    )
    yield case(
        *("weight standardization of a convolution", maps, F.weight_standardization(wide)),
        {
            "composer weight_standardization": lambda: converted(
                composer.apply_weight_standardization, wide
            ),
            "timm StdConv2d": lambda: timm.layers.StdConv2d(64, 128, 3, padding=1),
        },
    )
    dropout = nn.Sequential(nn.Dropout())
    gyro = F.gyro_dropout(dropout, iters_per_epoch=100, max_epoch=10)
    yield case(
        *("gyro dropout 512x1024", rows, gyro, {}),
        {
            "composer gyro_dropout: its masks take memory": lambda: converted(
                composer.apply_gyro_dropout, dropout, 100, 10, 0.5, 256, 16
            )
        },
    )
    linear = nn.Sequential(nn.Linear(1024, 1024)).to(device)
    yield case(
        *("a factorized linear layer 512x1024", rows, F.factorize(linear)),
        {"composer factorization": lambda: converted(composer.apply_factorization, linear)},
    )
    if torchvision:
        kind = torchvision.models.resnet.Bottleneck
        block = nn.Sequential(kind(256, 64)).to(device)
        yield case(
            "a bottleneck with stochastic depth by sample 32x256x28x28",
            torch.randn(32, 256, 28, 28, device=device),
            F.stochastic_depth(block, target=kind, method="sample"),
            {
                "composer stochastic_depth": lambda: converted(
                    composer.apply_stochastic_depth, block, "ResNetBottleneck", "sample"
                ),
                "torchvision StochasticDepth": lambda: with_drop(
                    torchvision.ops.StochasticDepth, "row"
                ),
                "timm DropPath": lambda: with_drop(timm.layers.DropPath),
            },
        )
    if transformers:
        gelu = nn.functional.gelu
        options = {"hidden_size": 256, "intermediate_size": 1024, "hidden_act": "gelu"}
        yield case(
            "a gated MLP 256 -> 1024 -> 256 of GPT-2, 2048 tokens",
            torch.randn(4, 512, 256, device=device),
            F.gated_linear_units(gpt2(), act_fn=gelu).transformer.h[0].mlp,
            {
                "timm SwiGLU with GELU": lambda: timm.layers.SwiGLU(
                    256, 1024, act_layer=nn.GELU, bias=(False, True)
                ),
                "transformers LlamaMLP with GELU": lambda: (
                    transformers.models.llama.modeling_llama.LlamaMLP(
                        transformers.LlamaConfig(**options)
                    )
                ),
            },
        )


def with_drop(kind: Callable, *args: object) -> nn.Module:
    """Build a bottleneck of torchvision that drops its residual before the addition."""
    block = torchvision.models.resnet.Bottleneck(256, 64)
    block.bn3 = nn.Sequential(block.bn3, kind(0.2, *args))
    return nn.Sequential(block)


def surgeries(device: str) -> Iterator[Case]:
    """Yield the surgeries of a ResNet-50; composer changes a copy, since ours copies the model."""
    model = resnet(device)
    kind = torchvision.models.resnet.Bottleneck if torchvision else type(model[4])
    depth = partial(F.stochastic_depth, target=kind)
    for ours, apply, *args in [
        (F.blurpool, "blurpool"),
        (F.squeeze_excite, "squeeze_excite"),
        (F.ghost_batchnorm, "ghost_batchnorm"),
        (F.weight_standardization, "weight_standardization"),
        (depth, "stochastic_depth", "ResNetBottleneck"),
        (F.channels_last, "channels_last"),
    ]:
        yield Case(
            f"the surgery {apply}, ResNet-50",
            partial(ours, model),
            {
                "composer, of a copy": lambda apply=apply, args=args: (
                    lambda: converted(getattr(composer, f"apply_{apply}"), model, *args)
                )
            },
        )
    yield Case(
        "the surgery factorize, ResNet-50",
        lambda: F.factorize(model),
        {},
        {
            "composer, of a copy: new random weights": lambda: (
                lambda: converted(composer.apply_factorization, model)
            )
        },
    )


METHODS = {
    method.__name__: method
    for method in (
        *(mixup, cutmix, cutout, colout, resize_batch, smooth_labels, randaugment, augmix),
        *(set_sequence_length, select_using_loss, ema, swa, clip_gradients, sam_perturbation),
        *(layers, surgeries),
    )
}


def print_table(case: Case, times: dict[str, list[float]], peers: list[str]) -> str:
    """Milliseconds, and times ours; and one line of it for the summary."""

    def ratio(name: str) -> float:
        pairs = zip(times[name], times["composable"], strict=True)
        return statistics.median(a / b for a, b in pairs)

    print(f"\n### {case.title}\n\n| candidate | ms | times composable's |\n|---|---:|---:|")
    for name, seconds in times.items():
        mark = "" if name in ("composable", *peers) or name == COPY else " (other work)"
        print(f"| {name}{mark} | {1e3 * statistics.median(seconds):.3f} | {ratio(name):.2f} |")
    others = [name for name in times if name not in ("composable", COPY, *peers)]
    same, other = (
        f"{ratio(best):.2f} {best}" if (best := min(names, key=ratio, default=None)) else "–"
        for names in (peers, others)
    )
    floor = "–"
    if case.like is not None:
        floor = f"{2 * case.like.nbytes / case.moved / ratio(COPY):.2f}"
    print(flush=True)
    ours = 1e3 * statistics.median(times["composable"])
    return f"| {case.title} | {ours:.3f} | {same} | {other} | {floor} |"


COPY = "dst.copy_(src)"


def measure(case: Case, rounds: int, clock: Callable[[], float]) -> str:
    peers, others = present(case.peers), present(case.other_work)
    runs = {"composable": case.ours, **peers, **others}
    if case.like is not None:
        runs[COPY] = partial(torch.empty_like(case.like).copy_, case.like)
    return print_table(case, take_turns(runs, rounds=rounds, clock=clock), list(peers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each candidate")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)

    def waiting() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    alone = arguments.threads == 1
    clock = time.process_time if alone else time.perf_counter
    if arguments.device != "cpu":
        clock = waiting
    lines = []
    for name in arguments.only:
        for case in METHODS[name](arguments.device):
            lines.append(measure(case, arguments.rounds, clock))
    print("| | ms | fastest at the same work | fastest at other work | times the floor |")
    print("|---|---:|---|---|---:|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
