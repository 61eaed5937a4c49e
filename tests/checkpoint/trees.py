"""Trees of all that a checkpoint can hold, and when two of them are the same."""

import struct
from collections import deque
from fractions import Fraction

import torch
from hypothesis import strategies as st

from composable import Key, Time, Timestamp
from composable.checkpoint.safetensors import DTYPES

DTYPE_LIST = [*DTYPES.values(), torch.complex128]


def tensor(dtype, shape, seed=0):
    """Build a tensor of random bytes: NaNs of all kinds, infinities, subnormal numbers."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (*shape, size), generator=generator, dtype=torch.uint8)
    if dtype == torch.bool:
        raw = raw % 2
    return raw.view(dtype).reshape(shape)


tensors = st.builds(
    tensor,
    st.sampled_from(DTYPE_LIST),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.integers(0, 9),
)
layouts = st.sampled_from(
    [
        lambda t: t,
        lambda t: t.T if t.ndim == 2 else t,
        lambda t: t[::2] if t.ndim else t,
        lambda t: t.movedim(0, -1) if t.ndim else t,
        lambda t: t.expand(2, *t.shape),
        lambda t: t.conj() if t.is_complex() else t,
    ]
)
hashables = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(2**300), 2**300),
        st.floats(),
        st.complex_numbers(),
        st.text(st.characters(exclude_categories=()), max_size=6),
        st.sampled_from(["$tensor", "$", "a/b", "a%2Fb", "__metadata__", "~2", ""]),
        st.binary(max_size=6),
        st.fractions(),
        st.sampled_from([torch.float32, torch.float8_e5m2, torch.bool]),
        st.sampled_from([torch.device("cpu"), torch.device("cuda", 3), torch.device("meta")]),
        st.lists(st.integers(0, 9), max_size=3).map(torch.Size),
        st.builds(Key, st.integers(0, 2**64 - 1)),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
times = st.builds(Time, st.fractions(0), st.sampled_from(["dur", "sec"])) | st.builds(
    Time, st.integers(0, 10**30), st.sampled_from(["ba", "ep", "tok"])
)
timestamps = st.builds(
    Timestamp,
    batch=st.integers(0, 2**70),
    epoch=st.integers(0, 9),
    total_wct=st.floats(0, allow_nan=False, allow_infinity=False),
    iteration_wct=st.floats(0, allow_nan=False, allow_infinity=False),
    token_in_iteration=st.integers(0, 2**70),
)
trees = st.recursive(
    hashables | times | timestamps | st.builds(lambda t, f: f(t), tensors, layouts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.builds(deque, st.lists(inner, max_size=4), st.sampled_from([None, 4, 9])),
        st.sets(hashables, max_size=3),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=3),
    ),
    max_leaves=12,
)


def same(one, two):
    """Return whether two trees are the same, to the bit and the type."""
    if type(one) is not type(two):
        return False
    if isinstance(one, float):
        return struct.pack(">d", one) == struct.pack(">d", two)
    if isinstance(one, complex):
        return same([one.real, one.imag], [two.real, two.imag])
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and bits(one) == bits(two)
    if isinstance(one, dict):
        return same(list(one.items()), list(two.items()))
    if isinstance(one, (set, frozenset)):
        return same(sorted(one, key=printed), sorted(two, key=printed))
    if isinstance(one, (list, tuple, deque)) and not isinstance(one, torch.Size):
        ends = getattr(one, "maxlen", None) == getattr(two, "maxlen", None)
        return ends and len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, (Time, Fraction)):
        return repr(one) == repr(two)
    return one == two


def printed(value):
    """Return a string by which members of a set, and of nested sets, can be sorted."""
    if isinstance(value, (frozenset, tuple)) and not isinstance(value, torch.Size):
        inner = sorted(map(printed, value)) if isinstance(value, frozenset) else map(printed, value)
        return f"{type(value).__name__}({', '.join(inner)})"
    return f"{type(value).__name__} {value!r}"


def bits(tensor):
    """Return the bytes of a tensor, in the order of its elements."""
    if not tensor.numel():
        return []
    plain = tensor.detach().resolve_conj().reshape(-1)
    plain = plain.clone(memory_format=torch.contiguous_format)  # a single one may have any stride
    return plain.view(torch.uint8).tolist()


def by_message(value):
    """Return the name of a case: the message that it expects."""
    return value[:60] if isinstance(value, str) else type(value).__name__
