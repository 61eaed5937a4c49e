"""The operations on uint8 images as loops that Numba compiles: one image after the other.

Each loop repeats the arithmetic of the operation on tensors, rounding by rounding: in float32, with
a fused multiply-add (`_fma`) wherever PyTorch fuses. So the results are equal to the bit where
PyTorch itself has these instructions, on x86-64 from AVX2 on.

Importing this module imports Numba, so `_compiled` imports it on first use. Nothing is compiled
before the first call, which takes some seconds; later processes read the result from Numba's cache.

`Image` stands for an array of uint8 `[channels, height, width]`, `Pixels` for `[channels, pixels]`.
All arrays are contiguous, and no source is written to. Loops begin at 0 and run over slices, and
values are looked up in a separate loop: so LLVM turns all other loops into vector instructions.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from numba import float32, int32, njit, uint8
from numba.extending import intrinsic

from composable._support.pixels import GRAIN
from composable._support.warn import warn_user

from .geometry import EDGE

Image: TypeAlias = Any
Pixels: TypeAlias = Any
Row: TypeAlias = Any
Number: TypeAlias = Any
Function = TypeVar("Function", bound=Callable[..., Any])

_GREY = (19595 / 65536, 38470 / 65536, 7471 / 65536)
_NEAREST = 0.5 + 10 * EDGE


class Chains(NamedTuple):
    """The chains of operations of a batch of images.

    Attributes:
        operations: int64 `[steps, *chains, batch]`.
        strengths: float32 `[steps, *chains, batch]`.
        turns: float32 `[2, steps, *chains, batch]`, the cosines and sines of rotations.
    """

    operations: Any
    strengths: Any
    turns: Any


class Workspace(NamedTuple):
    """Memory that one thread works in: its values neither come in nor go out.

    Attributes:
        images: uint8 `[2, channels, height, width]`.
        neighbours: int32 `[channels, (height + 1) * width]`.
        rows: int32 `[4, width]`.
        shares: float32 `[4, width]`.
        counts: int32 `[5, 256]`.
        values: float32 `[channels * height * width]`, or `[0]` where nothing is mixed.
    """

    images: Any
    neighbours: Any
    rows: Any
    shares: Any
    counts: Any
    values: Any


def _loops(function: Function) -> Function:
    """Compile a function on its first call."""
    # A check of annotations, as a test run may add, wraps a function in one that Numba can't read.
    compiled: Function = njit(error_model="numpy", nogil=True)(inspect.unwrap(function))
    return compiled


def _entry(function: Function) -> Function:
    """Compile a function on its first call, and keep the result on the disk."""
    compiled: Any = _loops(function)
    try:
        compiled.enable_caching()
    except RuntimeError as error:
        warn_user(
            f"Numba compiles {function.__name__} again in each process, for some seconds, because "
            f"it cannot keep the result: {error}. Set NUMBA_CACHE_DIR to a writable directory.",
        )
    return cast(Function, compiled)


@intrinsic  # type: ignore[untyped-decorator]
def _fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """Compute a * b + c with one rounding."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return float32(float32, float32, float32), generate


@_loops
def _level(value: float) -> Number:
    """Clip to black and white, and cut the fraction off."""
    return uint8(int32(min(max(value, float32(0)), float32(255))))


@_loops
def _cut_off(value: float) -> Number:
    """Cut the fraction off, unless exact arithmetic may have given the next level."""
    return uint8(int32(value + float32(GRAIN)))


@_loops
def _lerp(value: float, other: float, weight: float) -> Number:
    """Compute `torch.lerp`, which begins at the nearer end."""
    if abs(weight) < float32(0.5):
        return _fma(weight, other - value, value)
    return _fma(weight - float32(1), other - value, other)


@_loops
def _add_product(value: float, factor: float, other: float) -> Number:
    """Compute `torch.addcmul`."""
    return _fma(factor, other, value)


@_loops
def _copy(source: Row, target: Row) -> None:
    for i in range(target.size):
        target[i] = source[i]


@_loops
def _fill(target: Row, value: int) -> None:
    for i in range(target.size):
        target[i] = value


@_loops
def _autocontrast(source: Pixels, target: Pixels) -> None:
    for channel in range(source.shape[0]):
        old, new = source[channel], target[channel]
        low, high = uint8(255), uint8(0)
        for i in range(old.size):
            low, high = min(low, old[i]), max(high, old[i])
        if low == high:
            _copy(old, new)
            continue
        scale = float32(1) / (float32(high) - float32(low)) * float32(255)
        offset = float32(GRAIN) - float32(low) * scale
        for i in range(old.size):
            new[i] = uint8(int32(float32(old[i]) * scale + offset))


@_loops
def _equalize(source: Pixels, target: Pixels, counts: Any) -> None:
    for channel in range(source.shape[0]):
        old, new = source[channel], target[channel]
        # In four parts, because counting one level twice in a row waits for the memory.
        first, second, third, fourth, table = counts[0], counts[1], counts[2], counts[3], counts[4]
        for level in range(256):
            first[level] = second[level] = third[level] = fourth[level] = 0
        whole = old.size // 4 * 4
        for i in range(0, whole, 4):
            first[old[i]] += 1
            second[old[i + 1]] += 1
            third[old[i + 2]] += 1
            fourth[old[i + 3]] += 1
        for i in range(whole, old.size):
            first[old[i]] += 1
        brightest = 0
        for level in range(256):
            first[level] += second[level] + third[level] + fourth[level]
            if first[level]:
                brightest = first[level]
        step = (old.size - brightest) // 255
        if step == 0:
            _copy(old, new)
            continue
        below = step // 2
        for level in range(256):
            table[level] = min(below // step, 255)
            below += first[level]
        for i in range(old.size):
            new[i] = table[old[i]]


@_loops
def _posterize(source: Pixels, target: Pixels, bits: float) -> None:
    mask = uint8(int32(float32(256) - float32(2) ** (float32(8) - bits)))
    for channel in range(source.shape[0]):
        old, new = source[channel], target[channel]
        for i in range(old.size):
            new[i] = old[i] & mask


@_loops
def _solarize(source: Pixels, target: Pixels, threshold: float) -> None:
    start = int32(math.ceil(threshold))
    for channel in range(source.shape[0]):
        old, new = source[channel], target[channel]
        if start > 255:
            _copy(old, new)
            continue
        first = uint8(start)
        for i in range(old.size):
            new[i] = ~old[i] if old[i] >= first else old[i]


@_loops
def _grey(red: int, green: int, blue: int) -> Number:
    exact = float32(red) * float32(_GREY[0]) + float32(green) * float32(_GREY[1])
    exact += float32(blue) * float32(_GREY[2])
    return float32(int32(exact + float32(0.5)))


@_loops
def _color(source: Pixels, target: Pixels, factor: float) -> None:
    if source.shape[0] == 1:
        _copy(source[0], target[0])
        return
    weight = float32(1) - factor
    red, green, blue = source[0], source[1], source[2]
    new_red, new_green, new_blue = target[0], target[1], target[2]
    for i in range(red.size):
        plain = _grey(red[i], green[i], blue[i])
        new_red[i] = _level(_lerp(float32(red[i]), plain, weight))
        new_green[i] = _level(_lerp(float32(green[i]), plain, weight))
        new_blue[i] = _level(_lerp(float32(blue[i]), plain, weight))


@_loops
def _contrast(source: Pixels, target: Pixels, factor: float) -> None:
    channels, pixels = source.shape
    total = 0
    if channels == 1:
        for i in range(pixels):
            total += source[0, i]
    else:
        red, green, blue = source[0], source[1], source[2]
        for i in range(pixels):
            total += int32(_grey(red[i], green[i], blue[i]))
    plain = float32((2 * total + pixels) // (2 * pixels))
    weight = float32(1) - factor
    for channel in range(channels):
        old, new = source[channel], target[channel]
        for i in range(pixels):
            new[i] = _level(_lerp(float32(old[i]), plain, weight))


@_loops
def _brightness(source: Pixels, target: Pixels, factor: float) -> None:
    for channel in range(source.shape[0]):
        old, new = source[channel], target[channel]
        for i in range(old.size):
            new[i] = _level(float32(old[i]) * factor)


@_loops
def _sharpness(source: Image, target: Image, factor: float, sums: Row) -> None:
    channels, height, width = source.shape
    weight = float32(1) - factor
    for channel in range(channels):
        for y in range(height):
            old, new = source[channel, y], target[channel, y]
            _copy(old, new)
            if y == 0 or y == height - 1:
                continue
            above, below = source[channel, y - 1], source[channel, y + 1]
            for x in range(width):
                sums[x] = float32(above[x]) + float32(old[x]) + float32(below[x])
            for x in range(width - 2):
                value = float32(old[x + 1])
                box = sums[x] + sums[x + 1] + sums[x + 2] + float32(4) * value
                plain = float32(int32(box * float32(1 / 13) + float32(0.5)))
                new[x + 1] = _level(_lerp(value, plain, weight))


@_loops
def _translate(source: Image, target: Image, right: int, down: int) -> None:
    channels, height, width = source.shape
    first, last = max(0, -right), min(width, width - right)
    for channel in range(channels):
        for y in range(height):
            new = target[channel, y]
            if first >= last or not 0 <= y + down < height:
                _fill(new, 0)
                continue
            _fill(new[:first], 0)
            _fill(new[last:], 0)
            old = source[channel, y + down]
            _copy(old[first + right : last + right], new[first:last])


@_loops
def _whole(share: float, length: int) -> Number:
    """Turn a share of the length into whole pixels, at most all of them."""
    return int(min(max(share * float32(length), float32(-length)), float32(length)))


@_loops
def _shift(factor: float, place: int, length: int) -> tuple[Number, Number, Number]:
    """Return the shift of a row in a shear: whole pixels, the fraction, and the nearest pixel."""
    shift = factor * (float32(place) + float32(0.5))
    shift = min(max(shift, float32(-length - 1)), float32(length + 1))
    pixels = math.floor(shift)
    return pixels, shift - float32(pixels), math.floor(shift + float32(_NEAREST))


@_loops
def _shear_x(source: Image, target: Image, factor: float) -> None:
    channels, height, width = source.shape
    for y in range(height):
        pixels, weight, nearest = _shift(factor, y, width)
        # Inside from first to last; both neighbours are there from start to stop.
        first = min(max(0, -nearest), width)
        last = max(min(width, width - nearest), first)
        start = min(max(first, -pixels), last)
        stop = max(min(last, width - 1 - pixels), start)
        for channel in range(channels):
            old, new = source[channel, y], target[channel, y]
            _fill(new[:first], 0)
            _fill(new[last:], 0)
            _fill(new[first:start], old[0])
            _fill(new[stop:last], old[width - 1])
            if start < stop:
                left, inner = old[start + pixels : stop + pixels], new[start:stop]
                right = old[start + pixels + 1 : stop + pixels + 1]
                for x in range(stop - start):
                    inner[x] = _cut_off(_lerp(float32(left[x]), float32(right[x]), weight))


@_loops
def _shear_y(source: Image, target: Image, factor: float, work: Workspace) -> None:
    channels, height, width = source.shape
    pixels, nearest, index, found = work.rows[0], work.rows[1], work.rows[2], work.rows[3]
    weights = work.shares[0]
    for x in range(width):
        pixels[x], weights[x], nearest[x] = _shift(factor, x, height)
    for channel in range(channels):
        # A pixel and the one below it, so that both are looked up at once.
        for y in range(height + 1):
            upper, lower = source[channel, max(y - 1, 0)], source[channel, min(y, height - 1)]
            pairs = work.neighbours[channel, y * width : (y + 1) * width]
            for x in range(width):
                pairs[x] = int32(upper[x]) | int32(lower[x]) << 8
    for y in range(height):
        for x in range(width):
            index[x] = (min(max(y + pixels[x], -1), height - 1) + 1) * width + x
        for channel in range(channels):
            pairs, new = work.neighbours[channel], target[channel, y]
            for x in range(width):
                found[x] = pairs[index[x]]
            for x in range(width):
                upper_value, lower_value = float32(found[x] & 255), float32(found[x] >> 8)
                level = _cut_off(_lerp(upper_value, lower_value, weights[x]))
                new[x] = level if 0 <= y + nearest[x] < height else uint8(0)


@_loops
def _rotate(source: Image, target: Image, cosine: float, sine: float, work: Workspace) -> None:
    channels, height, width = source.shape
    for channel in range(channels):
        _pack_neighbours(source[channel], work.neighbours[channel])
    across_x, across_y, x_share, y_share = (
        work.shares[0],
        work.shares[1],
        work.shares[2],
        work.shares[3],
    )
    cos_x, sin_x = cosine * float32(2 / width), sine * float32(2 / height)
    cos_y, sin_y = cosine * float32(2 / height), sine * float32(-2 / width)
    for x in range(width):
        place = float32(x) - float32((width - 1) / 2)
        across_x[x], across_y[x] = place * cos_x, place * sin_x
    for y in range(height):
        place = float32(y) - float32((height - 1) / 2)
        down_x, down_y = place * sin_y, place * cos_y
        first, last = 0, width
        while first < last and not _is_inside(across_x[first], across_y[first], down_x, down_y):
            first += 1
        while first < last and not _is_inside(
            across_x[last - 1], across_y[last - 1], down_x, down_y
        ):
            last -= 1
        index, found = work.rows[0, first:last], work.rows[1, first:last]
        from_x, from_y = across_x[first:last], across_y[first:last]
        east, south = x_share[first:last], y_share[first:last]
        for x in range(last - first):
            column, row = _place(from_x[x] + down_x, width), _place(from_y[x] + down_y, height)
            left, upper = int32(column), int32(row)
            index[x] = upper * width + left
            east[x], south[x] = column - float32(left), row - float32(upper)
        for channel in range(channels):
            four, new = work.neighbours[channel], target[channel, y]
            _fill(new[:first], 0)
            _fill(new[last:], 0)
            new = new[first:last]
            for x in range(last - first):
                found[x] = four[index[x]]
            for x in range(last - first):
                new[x] = _cut_off(_between(found[x], east[x], south[x]))


@_loops
def _pack_neighbours(source: Any, target: Row) -> None:
    """Put a pixel, the ones to the right, below, and below to the right into one number."""
    height, width = source.shape
    for y in range(height):
        upper, lower = source[y], source[min(y + 1, height - 1)]
        four = target[y * width : (y + 1) * width]
        for x in range(width - 1):
            right = int32(upper[x + 1]) << 8 | int32(lower[x + 1]) << 24
            four[x] = int32(upper[x]) | int32(lower[x]) << 16 | right
        # The share of what is beyond the last column is 0.
        four[width - 1] = int32(upper[width - 1]) | int32(lower[width - 1]) << 16


@_loops
def _is_inside(across_x: float, across_y: float, down_x: float, down_y: float) -> Number:
    x, y = (across_x + float32(EDGE)) + down_x, (across_y + float32(EDGE)) + down_y
    return abs(x) <= float32(1) and abs(y) <= float32(1)


@_loops
def _place(place: float, length: int) -> Number:
    """Turn a place within [-1, 1] into one within the centres of the outermost pixels."""
    pixel = _fma(place + float32(1), float32(length / 2), float32(-0.5))
    return min(max(pixel, float32(0)), float32(length - 1))


@_loops
def _between(four: int, east: float, south: float) -> Number:
    """Interpolate between four neighbours, as `torch.nn.functional.grid_sample` does."""
    west, north = float32(1) - east, float32(1) - south
    value = (west * north) * float32(four & 255)
    value = _fma(east * north, float32((four >> 8) & 255), value)
    value = _fma(west * south, float32((four >> 16) & 255), value)
    return _fma(east * south, float32((four >> 24) & 255), value)


@_loops
def _chain(
    image: Image, operations: Row, strengths: Row, turns: Any, target: Image, work: Workspace
) -> None:
    """Apply one operation after the other; the last one writes into the target."""
    channels, height, width = image.shape
    left = (operations >= 0).sum()
    if not left:
        _copy(image.reshape(image.size), target.reshape(image.size))
    source = image
    for step in range(operations.size):
        operation, strength = operations[step], strengths[step]
        if operation < 0:
            continue
        left -= 1
        result = work.images[0] if left % 2 else target
        # The numbers index `_operations.OPERATIONS`.
        if operation == 3:
            _rotate(source, result, turns[0, step], turns[1, step], work)
        elif operation == 5:
            _shear_x(source, result, strength)
        elif operation == 6:
            _shear_y(source, result, strength, work)
        elif operation == 7:
            _translate(source, result, _whole(strength, width), 0)
        elif operation == 8:
            _translate(source, result, 0, _whole(strength, height))
        elif operation == 12:
            _sharpness(source, result, strength, work.shares[0])
        else:
            _change_levels(
                operation,
                strength,
                source.reshape(channels, height * width),
                result.reshape(channels, height * width),
                work,
            )
        source = result


@_loops
def _change_levels(
    operation: int, strength: float, source: Pixels, target: Pixels, work: Workspace
) -> None:
    """Apply an operation that doesn't depend on the position of a pixel."""
    if operation == 0:
        _autocontrast(source, target)
    elif operation == 1:
        _equalize(source, target, work.counts)
    elif operation == 2:
        _posterize(source, target, strength)
    elif operation == 4:
        _solarize(source, target, strength)
    elif operation == 9:
        _color(source, target, strength)
    elif operation == 10:
        _contrast(source, target, strength)
    else:
        _brightness(source, target, strength)


@_entry
def augment(
    images: Any, chains: Chains, results: Any, start: int, stop: int, work: Workspace
) -> None:
    """Apply the operations of some images: `[steps, batch]`."""
    operations, strengths, turns = chains.operations, chains.strengths, chains.turns
    for i in range(start, stop):
        _chain(images[i], operations[:, i], strengths[:, i], turns[:, :, i], results[i], work)


@_entry
def augment_and_mix(
    images: Any,
    chains: Chains,
    shares: Any,
    rest: Any,
    results: Any,
    start: int,
    stop: int,
    work: Workspace,
) -> None:
    """Mix some images with their chains: `[steps, chains, batch]`, and shares `[chains, batch]`."""
    operations, strengths, turns = chains.operations, chains.strengths, chains.turns
    values, chain = work.values, work.images[1]
    for i in range(start, stop):
        old, new, augmented = (
            images[i].reshape(values.size),
            results[i].reshape(values.size),
            chain.reshape(values.size),
        )
        for j in range(values.size):
            values[j] = float32(old[j]) * rest[i]
        for k in range(len(shares)):
            _chain(
                images[i], operations[:, k, i], strengths[:, k, i], turns[:, :, k, i], chain, work
            )
            share = shares[k, i]
            for j in range(values.size):
                values[j] = _add_product(values[j], float32(augmented[j]), share)
        for j in range(values.size):
            new[j] = uint8(int32(values[j] + float32(0.5)))
