"""Every public function, as the matrix of properties meets it.

A new function joins by existing: the package is walked, and one whose parameters have the names
that `composable.testing.check_function` knows (`model`, `inputs`, `images`, `targets`, `labels`,
`losses`, `outputs`) needs nothing here. Another one gets an entry in `SUBJECTS`, and so does one
that must say no to a question: with the reason. Then `python -m property_tests.matrix` writes the
pages anew.
"""

import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import isfunction
from types import ModuleType
from typing import Any

import attrs
import torch
from torch import Tensor, nn

import composable.functional as F
from composable.testing import FunctionReport, check_function
from composable.testing.problems import CLASSES, feature_maps, image_batch
from tests.runs import LENGTH, WIDTH, WORDS, Hidden, language_model

Function = Callable[..., Any]


class SubjectNeeded(LookupError):
    """It isn't known how a function is called."""


@attrs.frozen(eq=False)
class Subject:
    """A function, and what it is called with: a row of the matrix.

    Args:
        function: The function.
        options: Hyperparameters that the row is about, by name.
        of: What it is called with, in words, where the row is about that.
        needs: Other hyperparameters, without which it can't be called.
        arguments: The arguments: a function of the size of the batch, or a tuple or dictionary
            where there is no batch. By default they follow from the names of the parameters.
        inputs: What a module that it returns is called on, by the size of the batch; by default
            images `[size, 3, 8, 8]`.
        expected_failures: The properties that it lacks, each with the reason why that is right, in
            plain words.
        card: The page in docs/methods that has the row, too; by default that of the module in
            which the function is. Single operations on images are in the matrix only.
    """

    function: Function
    options: Mapping[str, Any] = attrs.field(factory=dict)
    of: str = ""
    needs: Mapping[str, Any] = attrs.field(factory=dict)
    arguments: Any = None
    inputs: Callable[[int], Any] | None = None
    expected_failures: Mapping[str, str] = attrs.field(factory=dict)
    card: str = attrs.field()

    @card.default
    def _own_card(self) -> str:
        package, _, module = self.function.__module__.rpartition(".")
        return module if package == F.__name__ else ""

    @property
    def name(self) -> str:
        """The row's heading, in Markdown."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        call = f"{self.function.__name__}({given})" if given else self.function.__name__
        return f"`{call}`".replace("'", '"') + f" of {self.of}" * bool(self.of)

    def report(self) -> FunctionReport:
        """Ask every question.

        Raises:
            SubjectNeeded: It can't even be called.
        """
        given = {**self.options, **self.needs}
        function = partial(self.function, **given) if given else self.function
        try:
            with warnings.catch_warnings():  # a surgery that finds nothing shows nothing
                warnings.simplefilter("error", F.NoEffectWarning)
                return check_function(function, self.arguments, inputs=self.inputs, name=self.name)
        except Exception as error:
            name = self.function.__name__
            raise SubjectNeeded(
                f"{name} can't be called for the matrix of properties: {error}\nSay in SUBJECTS "
                f"of property_tests/subjects.py what with, as in Subject(F.{name}, "
                "arguments=lambda n: (images(n),)), and run `python -m property_tests.matrix`."
            ) from error

    def __repr__(self) -> str:
        return self.name.replace("`", "")


# --- what functions are called with ---


def images(size: int) -> Tensor:
    """Images `[size, 3, 8, 8]` within [0, 1], away from both ends."""
    return image_batch(size)[0].sigmoid()


def of_images(size: int) -> tuple[Tensor]:
    """Images as the only argument."""
    return (images(size),)


def labelled(size: int) -> tuple[Tensor, Tensor]:
    """Inputs and class indices."""
    return image_batch(size)


def with_maps(size: int) -> tuple[Tensor, Tensor]:
    """Inputs, and targets for each of their pixels."""
    return image_batch(size)[0], image_batch(size, seed=1)[0]


def a_batch(size: int) -> tuple[int]:
    """The size of the batch itself."""
    return (size,)


def a_batch_of_images(size: int) -> tuple[int, tuple[int, int]]:
    """The size of the batch, and of its images."""
    return size, (8, 8)


def with_strengths(low: float, high: float) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Images, and a strength for each."""
    return lambda size: (images(size), torch.linspace(low, high, size))


def rows(*shape: int) -> Callable[[int], Tensor]:
    """Inputs of a shape that is not that of images."""
    return lambda size: torch.randn(size, *shape)


def probabilities(size: int) -> tuple[Tensor]:
    """Class probabilities."""
    return (torch.randn(size, CLASSES).softmax(1),)


def texts(size: int) -> tuple[dict[str, Tensor]]:
    """Embedded texts of eight tokens, with their masks."""
    return ({"input_ids": torch.randn(size, 8, 2), "attention_mask": torch.ones(size, 8)},)


def named(*seeds: int) -> tuple[dict[str, Tensor], ...]:
    """Named tensors of a small model."""

    def drawn(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        shapes = {"weight": (3, 2), "bias": (3,)}
        return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}

    return tuple(map(drawn, seeds))


def seeded() -> torch.Generator:
    """A generator for the draw of a deterministic half."""
    return torch.Generator().manual_seed(0)


def token_ids(size: int) -> Tensor:
    """Texts as token ids."""
    return torch.randint(WORDS, (size, LENGTH))


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        return x + self.conv(x)


def model_of(*layers: Callable[[], nn.Module]) -> Callable[[int], tuple[nn.Module]]:
    """A model of new layers, in training mode."""
    return lambda size: (nn.Sequential(*(layer() for layer in layers)),)


halved = {"scale_factor": 0.5, "resize_targets": True}


# --- why some say no ---

GROUPS = (
    "the images are sorted by the operation that each of them gets, so sizes depend on the draw; "
    "the single operations can"
)
STEPS = "its values are steps, whose derivative is 0"
CONSTANT_STEP = "the step is taken as a constant, as in the paper"
NAMES = "it gives names of layers, before a step: there is nothing to compile"
CONSTANT = "the weights are taken as constants: only the gradients are clipped"
DETACHED = "an average is no part of the graph: its results are detached"
MEAN_OF_NONE = "it is a mean, and that of no examples is NaN, as with PyTorch's own losses"
STATISTICS = (
    "it writes running statistics, as a batch norm does, which the mapped models would have to "
    "share; without them it can"
)
LIKE_DROPOUT = "the layers draw at each step from PyTorch's global generators, as dropout does"


SUBJECTS = [
    # Examples
    Subject(F.mixup),
    Subject(F.mixup, {"per_sample": True}),
    Subject(F.draw_mixup, arguments=a_batch),
    Subject(
        F.apply_mixup,
        arguments=lambda n: (*labelled(n), F.draw_mixup(n, generator=seeded())),
    ),
    Subject(F.cutmix),
    Subject(F.cutmix, {"per_sample": True}),
    Subject(F.draw_cutmix, arguments=a_batch_of_images),
    Subject(
        F.apply_cutmix,
        arguments=lambda n: (*labelled(n), F.draw_cutmix(n, (8, 8), generator=seeded())),
    ),
    Subject(F.cutout),
    Subject(F.cutout, {"per_sample": False}),
    Subject(F.draw_cutout, arguments=a_batch_of_images),
    Subject(
        F.apply_cutout,
        arguments=lambda n: (images(n), F.draw_cutout(n, (8, 8), generator=seeded())),
    ),
    Subject(F.colout, arguments=with_maps),
    Subject(F.draw_colout, arguments=((8, 8),)),
    Subject(
        F.apply_colout,
        arguments=lambda n: (*with_maps(n), F.draw_colout((8, 8), generator=seeded())),
    ),
    Subject(F.resize_batch, needs=halved, arguments=with_maps),
    Subject(F.resize_batch, {"mode": "crop"}, needs=halved, arguments=with_maps),
    Subject(F.draw_crop, arguments=((8, 8), (4, 4))),
    Subject(
        F.apply_crop,
        arguments=lambda n: (images(n), (4, 4), F.draw_crop((8, 8), (4, 4), generator=seeded())),
    ),
    Subject(F.scaled_size, arguments={"size": (8, 8), "scale_factor": 0.5}),
    Subject(F.progressive_scale, arguments=(0.5,)),
    Subject(
        F.randaugment, arguments=of_images, expected_failures={"compile": GROUPS, "vmap": GROUPS}
    ),
    Subject(F.draw_randaugment, arguments=a_batch),
    Subject(
        F.apply_randaugment,
        arguments=lambda n: (images(n), F.draw_randaugment(n, generator=seeded())),
        expected_failures={"compile": GROUPS, "vmap": GROUPS},
    ),
    Subject(F.augmix, arguments=of_images, expected_failures={"compile": GROUPS, "vmap": GROUPS}),
    Subject(F.draw_augmix, arguments=a_batch),
    Subject(
        F.apply_augmix,
        arguments=lambda n: (images(n), F.draw_augmix(n, generator=seeded())),
        expected_failures={"compile": GROUPS, "vmap": GROUPS},
    ),
    Subject(
        F.jensen_shannon_loss,
        arguments=lambda n: tuple(torch.randn(3, n, CLASSES)),
        expected_failures={"empty_batch": MEAN_OF_NONE},
        card="augmix",
    ),
    Subject(F.select_using_loss),
    Subject(F.draw_selection, arguments=a_batch),
    Subject(
        F.apply_selection,
        arguments=lambda n: (torch.rand(n), F.draw_selection(n, generator=seeded())),
    ),
    Subject(F.should_select, arguments=(0.6, 3)),
    Subject(F.set_sequence_length, needs={"length": 3}, arguments=texts),
    Subject(
        F.set_sequence_length,
        {"preserve_end_of_sequence": True},
        needs={"length": 3},
        arguments=texts,
    ),
    Subject(F.set_sequence_length, {"truncate": False}, needs={"length": 3}, arguments=texts),
    Subject(F.warmed_up_length, arguments=(0.1,)),
    Subject(F.smooth_labels, of="class indices", needs={"num_classes": CLASSES}),
    Subject(F.smooth_labels, of="probabilities", arguments=probabilities),
    # Models
    Subject(F.blurpool),
    Subject(F.blurpool, {"blur_first": False}),
    Subject(F.blur, needs={"stride": 2}, card="blurpool"),
    Subject(
        F.ghost_batchnorm,
        needs={"ghost_batch_size": 2},
        arguments=model_of(partial(nn.Conv2d, 3, 4, 1), partial(nn.BatchNorm2d, 4)),
        expected_failures={"vmap": STATISTICS},
    ),
    Subject(
        F.ghost_batchnorm,
        of="norms without statistics",
        needs={"ghost_batch_size": 2},
        arguments=model_of(partial(nn.BatchNorm2d, 3, track_running_stats=False)),
    ),
    Subject(F.squeeze_excite, needs={"latent_channels": 2, "min_channels": 0}),
    Subject(F.standardize_weight, arguments=(torch.randn(4, 3, 2, 2, generator=seeded()),)),
    *(
        Subject(
            F.stochastic_depth,
            {"method": method},
            needs={"target": Block},
            arguments=model_of(Block, Block),
            expected_failures={"global_generators": LIKE_DROPOUT},
        )
        for method in ("block", "sample")
    ),
    Subject(
        F.scale_drop_rates,
        needs={"scale": 0.5},
        arguments=lambda n: (F.stochastic_depth(nn.Sequential(Block()), target=Block),),
        expected_failures={"global_generators": LIKE_DROPOUT},
    ),
    Subject(
        F.gyro_dropout,
        needs={"iters_per_epoch": 5, "max_epoch": 2, "sigma": 4, "tau": 2},
        arguments=model_of(partial(nn.Conv2d, 3, 3, 1), nn.Dropout),
    ),
    Subject(F.factorize, needs={"min_channels": 4}),
    Subject(
        F.alibi,
        needs={"max_sequence_length": LENGTH},
        arguments=lambda n: (language_model(one_by_one=True),),
        inputs=token_ids,
    ),
    Subject(F.alibi_slopes, arguments=(3,), card="alibi"),
    Subject(F.alibi_bias, arguments=(3, 4), card="alibi"),
    Subject(
        F.gated_linear_units,
        arguments=lambda n: (Hidden(WIDTH),),
        inputs=rows(5, WIDTH),
    ),
    Subject(F.sequence_length, arguments=texts),
    Subject(
        F.low_precision_layernorm,
        arguments=model_of(partial(nn.LayerNorm, 6)),
        inputs=rows(6),
    ),
    Subject(F.low_precision_groupnorm, arguments=model_of(partial(nn.GroupNorm, 1, 3))),
    Subject(
        F.with_tensors,
        arguments=lambda n: (feature_maps(), {"0.bias": torch.zeros(16)}),
        card="ema",
    ),
    # Gradients and weights
    Subject(F.clip_gradients, needs={"threshold": 0.1}, arguments=named(0)),
    Subject(F.clip_gradients, {"method": "value"}, needs={"threshold": 0.1}, arguments=named(0)),
    Subject(
        F.clip_gradients,
        {"method": "adaptive"},
        needs={"threshold": 0.1},
        arguments=dict(zip(["grads", "params"], named(0, 1), strict=True)),
        expected_failures={"gradients": CONSTANT},
    ),
    Subject(
        F.frozen_layers,
        needs={"elapsed": 0.75},
        expected_failures={"compile": NAMES},
    ),
    Subject(
        F.sam_perturbation, arguments=named(0, 1), expected_failures={"gradients": CONSTANT_STEP}
    ),
    Subject(
        F.swa, needs={"count": 2}, arguments=named(0, 1), expected_failures={"gradients": DETACHED}
    ),
    Subject(F.batch_norm_statistics, arguments=model_of(partial(nn.BatchNorm2d, 3)), card="swa"),
    Subject(
        F.reset_batch_norm_statistics,
        card="swa",
        arguments=model_of(partial(nn.BatchNorm2d, 3)),
        expected_failures={"vmap": STATISTICS},
    ),
    Subject(
        F.recompute_batch_norm_statistics,
        card="swa",
        arguments=lambda n: (nn.Sequential(nn.BatchNorm2d(3)), [images(n), images(n)]),
        expected_failures={"vmap": STATISTICS},
    ),
    Subject(
        F.ema,
        needs={"smoothing": 0.9},
        arguments=named(0, 1),
        expected_failures={"gradients": DETACHED},
    ),
    Subject(F.ema_smoothing, arguments=(100.0,)),
    # Single operations on images
    *(
        Subject(operation, arguments=with_strengths(low, high))
        for operation, low, high in [
            (F.images.brightness, 0.5, 1.5),
            (F.images.color, 0.5, 1.5),
            (F.images.contrast, 0.5, 1.5),
            (F.images.rotate, -20, 30),
            (F.images.sharpness, 0.5, 1.5),
            (F.images.shear_x, -0.2, 0.3),
            (F.images.shear_y, -0.2, 0.3),
            (F.images.solarize, 64.5, 200.5),
            (F.images.translate_x, -2.5, 3.5),
            (F.images.translate_y, -2.5, 3.5),
        ]
    ),
    Subject(
        F.images.posterize, arguments=with_strengths(2, 6), expected_failures={"gradients": STEPS}
    ),
    Subject(F.images.equalize, arguments=of_images, expected_failures={"gradients": STEPS}),
    Subject(F.images.autocontrast, arguments=of_images),
]


LEFT_OUT: dict[str, str] = {
    "register_alibi": "it adds to a registry, and computes nothing",
    "register_gated_linear_units": "it adds to a registry, and computes nothing",
}
"""Public functions that the questions make no sense for, such as registries; and why, in words."""


# --- who there is ---


def public_functions(package: ModuleType = F) -> list[Function]:
    """The functions that a package exports, or that one of its public modules does."""
    found = {}
    for module in _modules(package):
        for name in module.__all__:
            if isfunction(one := getattr(module, name)) and name not in LEFT_OUT:
                found[one] = None
    return list(found)


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    yield package
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not info.name.rpartition(".")[2].startswith("_"):
            module = importlib.import_module(info.name)
            yield from _modules(module) if info.ispkg else [module]


def all_subjects() -> list[Subject]:
    """Those above, and every other public function as it is; by card, its own function first."""
    told = {subject.function for subject in SUBJECTS}
    rest = [Subject(function) for function in public_functions() if function not in told]
    return sorted(
        SUBJECTS + rest, key=lambda one: (not one.card, one.card, one.function.__name__ != one.card)
    )
