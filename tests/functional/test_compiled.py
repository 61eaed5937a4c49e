"""The compiled operations on images are those on tensors, to the bit."""

import json
import sys

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import composable.functional as F
from composable.functional import _compiled
from composable.functional._operations import OPERATIONS, apply_operations
from composable.functional.images import _kernels
from tests.support.campaign import FULL
from tests.support.commands import run_script
from tests.support.tensors import noise, seeded

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 64)
MANY = settings(max_examples=60 if FULL else 25)
SHEARS = [1 - 2**-20, -1 + 2**-20, 0.0, -0.0, 1e-9, -1e-9, 0.5, 1.0, -1.0, 2.0, -3.7, 100.0]
FACTORS = [0.0, 0.49, 0.5, 0.51, 1.0, 1.49, 1.5, 1.51, 9.0, 100.0]
# Strengths at which an operation changes its course, beside those that are drawn.
EDGES = {
    **dict.fromkeys(["autocontrast", "equalize"], (0.0,)),
    "posterize": [1.0, 2.0, 4.0, 7.0, 8.0],
    "rotate": [0.0, -0.0, 1.0, 45.0, -90.0, 90.0, 180.0, 359.5, 720.0],
    "solarize": [0.0, 0.5, 1.0, 127.5, 128.0, 255.0, 255.5, 256.0],
    **dict.fromkeys(["shear_x", "shear_y"], SHEARS),
    **dict.fromkeys(["translate_x", "translate_y"], (0.0, 0.5, -0.5, 0.999, 1.0, -1.0, 7.0)),
    **dict.fromkeys(["color", "contrast", "sharpness"], FACTORS),
    "brightness": [0.0, 1 / 255, 0.5, 1.0, 9.0, 1e9],
}
NAMES = list(OPERATIONS)
RANGES = {
    "posterize": st.integers(1, 8).map(float),
    "rotate": st.floats(-400, 400, width=32),
    "solarize": st.floats(0, 256, width=32),
    **dict.fromkeys(["shear_x", "shear_y"], st.floats(-3, 3, width=32)),
    **dict.fromkeys(["translate_x", "translate_y"], st.floats(-2, 2, width=32)),
}


@st.composite
def images(draw, batch=4):
    """Noise, images of few levels, dim ones, and images of one level or two."""
    shape = draw(st.integers(1, batch)), draw(st.sampled_from([1, 3])), draw(sizes), draw(sizes)
    x, kind = noise(*shape, seed=draw(seeds)), draw(st.integers(0, 4))
    return [x, x // 64 * 20 + 100, x // 3 + 60, x // 128 * 255, torch.full_like(x, 77)][kind]


@st.composite
def strengths(draw, name):
    return draw(st.sampled_from(EDGES[name]) | RANGES.get(name, st.floats(0, 10, width=32)))


@pytest.fixture(autouse=True)
def _on_one_thread():
    """Leave the number of threads as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), x=images())
@MANY
def test_compiled_operation_matches_tensor_operation(name, data, x):
    drawn = [[data.draw(strengths(name)) for _ in x]]
    operations = torch.full((1, len(x)), NAMES.index(name))

    ours = _compiled.compiled_augment(x, operations, torch.tensor(drawn, dtype=torch.float64))

    expected = apply_operations(x, operations, torch.tensor(drawn, dtype=torch.float64))
    assert torch.equal(ours, expected)


# A difference in the last bit of a float shows in one level of a hundred thousand.


def floats(*low_and_high, count=2000):
    """Random float32, a column for each range."""
    ends = torch.tensor(low_and_high, dtype=torch.float32)
    share = torch.rand(count, len(ends), generator=seeded())
    return (ends[:, 0] + share * (ends[:, 1] - ends[:, 0])).T.contiguous()


def each(function, *columns):
    rows = zip(*(column.numpy() for column in columns), strict=True)
    return torch.tensor([function(*row) for row in rows])


@pytest.mark.parametrize(
    ("ours", "theirs", "low", "high"),
    [
        (_kernels._lerp, torch.lerp, -9, 2),  # of blends and shears
        (_kernels._add_product, torch.addcmul, 0, 1),  # of mixing
    ],
)
def test_rounding_matches_torch(ours, theirs, low, high):
    first, level, share = floats((0, 256), (0, 256), (low, high))
    first = first.floor() if ours is _kernels._lerp else first

    assert torch.equal(each(ours, first, level.floor(), share), theirs(first, level.floor(), share))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (37, 53), (1, 7), (224, 224)])
def test_rounding_of_rotations_matches_grid_sample(height, width):
    x = noise(1, 1, height, width)
    columns, rows = floats((-1.2, 1.2), (-1.2, 1.2))
    four = torch.empty(height * width, dtype=torch.int32)
    _kernels._pack_neighbours(x[0, 0].numpy(), four.numpy())

    def sample(column, row):
        column, row = _kernels._place(column, width), _kernels._place(row, height)
        place = int(row) * width + int(column)
        east, south = (np.float32(at - int(at)) for at in (column, row))
        return _kernels._between(four.numpy()[place], east, south)

    expected = torch.nn.functional.grid_sample(
        x.float(),
        torch.stack([columns, rows], -1)[None, None],
        padding_mode="border",
        align_corners=False,
    )
    assert torch.equal(each(sample, columns, rows), expected.flatten())


@given(
    x=images(12),
    seed=seeds,
    severity=st.floats(0.1, 10),
    depth=st.integers(0, 6),
    augmentations=st.sampled_from(["all", "safe", "original"]),
)
@MANY
def test_compiled_chains_match_tensor_operations(x, seed, severity, depth, augmentations):
    operations, strengths = F.draw_randaugment(
        len(x), depth=depth, severity=severity, augmentations=augmentations, generator=seeded(seed)
    )
    idle = torch.rand(operations.shape, generator=seeded(seed)) < 0.2
    operations = operations.masked_fill(idle, -1)

    ours = _compiled.compiled_augment(x, operations, strengths)

    assert torch.equal(ours, apply_operations(x, operations, strengths))


@given(x=images(8), seed=seeds, severity=st.floats(0.1, 10), width=st.integers(1, 9))
@MANY
def test_compiled_augmix_matches_tensor_operations(x, seed, severity, width):
    draw = F.draw_augmix(len(x), severity=severity, width=width, generator=seeded(seed))

    assert torch.equal(F.apply_augmix(x, draw), on_tensors(F.apply_augmix, x, draw))


def on_tensors(function, *args, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_compiled.SWITCH, "0")
        return function(*args, **options)


METHODS = pytest.mark.parametrize("method", ["randaugment", "augmix"])


def both(method, x, seed=0):
    """Return the results of the compiled operations and of operations on tensors."""
    draw = getattr(F, f"draw_{method}")(len(x), severity=9, generator=seeded(seed))
    apply = getattr(F, f"apply_{method}")
    assert _compiled.serves(x, *draw)
    return apply(x, draw), on_tensors(apply, x, draw)


LAYOUTS = {
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "turned": lambda x: x.mT.contiguous().mT,
    "every other column": lambda x: x.repeat_interleave(2, 3)[..., ::2],
    "a part of a batch": lambda x: torch.cat([x, x])[3 : 3 + len(x)],
    "expanded": lambda x: x[:1].expand(len(x), -1, -1, -1),
    "read-only": lambda x: torch.frombuffer(bytes(x.flatten().tolist()), dtype=x.dtype).view_as(x),
}


@METHODS
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_compiled_layouts_match_tensor_operations(method, channels, layout):
    x = layout(noise(13, channels, 17, 10))
    before = x.clone()

    ours, expected = both(method, x)

    assert torch.equal(ours, expected)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        kept = expected.is_contiguous(memory_format=memory_format)
        assert ours.is_contiguous(memory_format=memory_format) == kept
    assert torch.equal(x, before)


@METHODS
def test_number_of_threads_does_not_change_the_result(method, monkeypatch):
    monkeypatch.setattr(_compiled, "_WORTH_A_THREAD", 1)
    x, results = noise(13, 3, 9, 8), []
    for threads in (1, 2, 5, 40):
        torch.set_num_threads(threads)
        results.append(both(method, x)[0])

    assert all(torch.equal(result, results[0]) for result in results)


def test_threads_cover_the_range_and_raise_errors(monkeypatch):
    monkeypatch.setattr(_compiled, "_WORTH_A_THREAD", 10)
    torch.set_num_threads(4)
    for count, work, parts in [(7, 9, 1), (7, 20, 2), (7, 1000, 4), (3, 1000, 3), (1, 1000, 1)]:
        seen = []
        _compiled.in_threads(lambda start, stop, seen=seen: seen.append((start, stop)), count, work)

        assert len(seen) == parts
        assert [i for start, stop in sorted(seen) for i in range(start, stop)] == list(range(count))
    with pytest.raises(ZeroDivisionError):
        _compiled.in_threads(lambda start, stop: 1 // 0, 4, 100)


def test_accepts_draws_that_are_not_contiguous():
    draw = F.draw_randaugment(9, depth=3, generator=seeded())
    turned = F.RandAugmentDraw(*(part.T.contiguous().T for part in draw))

    x = noise(9, 3, 8, 8)

    assert torch.equal(F.apply_randaugment(x, turned), on_tensors(F.apply_randaugment, x, draw))


class Marked(torch.Tensor):
    """A subclass, whose own operations must be called."""


OTHERS = {
    "floats": [noise(2, 3, 4, 4) / 255],
    "two channels": [noise(2, 2, 4, 4)],
    "another device": [noise(2, 3, 4, 4).to("meta")],
    "a subclass": [noise(2, 3, 4, 4).as_subclass(Marked)],
    "without values": [noise(0, 3, 4, 4)],
    "a draw on another device": [noise(2, 3, 4, 4), torch.zeros(2, device="meta")],
}


@pytest.mark.parametrize("given", OTHERS.values(), ids=OTHERS)
def test_does_not_serve_other_images_and_draws(given):
    assert not _compiled.serves(*given)


def test_does_not_serve_within_transforms_and_modes():
    seen = []

    def look(x):
        seen.append(_compiled.serves(x))
        return x

    x = noise(2, 3, 4, 4)
    torch.func.vmap(look)(x[None])
    torch.compile(look, backend="eager")(x)
    with FlopCounterMode(display=False):
        look(x)
    with torch.device("cpu"):
        look(x)

    assert seen == [False] * 4
    assert _compiled.serves(x)


def test_environment_variable_disables_compiled_operations(monkeypatch):
    x = noise(2, 3, 4, 4)
    for switch, served in [("0", False), ("1", True)]:
        monkeypatch.setenv(_compiled.SWITCH, switch)

        assert _compiled.serves(x) is served
        assert _compiled.serves(noise(2, 1, 4, 4).mT, torch.zeros(2)) is served
    monkeypatch.setenv(_compiled.SWITCH, "off")
    with pytest.raises(ValueError, match=r"COMPOSABLE_COMPILED is 'off', but must be 0, .* or 1"):
        F.randaugment(x)


@pytest.mark.parametrize(
    "otherwise",
    [
        lambda patch: patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT"),
        lambda patch: patch.setattr(numba.config, "DISABLE_JIT", True),
        lambda patch: patch.setitem(sys.modules, "numba", None),  # importing it fails
    ],
    ids=["another processor", "numba that does not compile", "no numba"],
)
def test_falls_back_to_tensor_operations_without_numba(otherwise, monkeypatch):
    otherwise(monkeypatch)

    assert _compiled._kernels.__wrapped__() is None


def test_warns_if_numba_fails_to_import(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", type(sys)("numba"))  # without its names

    with pytest.warns(UserWarning, match="Numba is installed but can't be imported"):
        assert _compiled._kernels.__wrapped__() is None


def test_warns_if_compiled_code_cannot_be_cached(monkeypatch):
    from numba.core.dispatcher import Dispatcher

    def refuse(self):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(Dispatcher, "enable_caching", refuse)

    with pytest.warns(UserWarning, match="no locator available. Set NUMBA_CACHE_DIR"):
        add = _kernels._entry(lambda a, b: a + b)
    assert add(1, 2) == 3


AUGMENT = """
import json, sys, warnings
warnings.simplefilter("error")
import torch
from composable.functional import randaugment  # not the package alone, whose names are lazy
imported = "numba" in sys.modules
x = torch.randint(256, (9, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
y = randaugment(x, generator=torch.Generator().manual_seed(1))
print(json.dumps([imported, "numba" in sys.modules, y.tolist()]))
"""


def test_numba_is_imported_on_first_use():
    output, _ = run_script(AUGMENT)

    imported_before, imported_after, result = json.loads(output)

    x = torch.randint(256, (9, 3, 8, 8), generator=seeded()).byte()
    assert not imported_before
    assert imported_after
    assert result == on_tensors(F.randaugment, x, generator=seeded(1)).tolist()
