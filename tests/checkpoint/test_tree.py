"""What is parted into tensors and JSON comes back as it was."""

import json
import math
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from enum import Enum
from functools import reduce
from types import MappingProxyType

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings

from composable import Timestamp
from composable.checkpoint import DamagedCheckpointError, UnsavableError, pack, unpack
from tests.checkpoint.trees import DTYPE_LIST, by_message, same, tensor, trees


def there_and_back(tree):
    tensors, data = pack(tree)
    return unpack(tensors, json.loads(json.dumps(data, allow_nan=False)))


@settings(max_examples=200)
@given(trees)
@example(float("nan"))
@example(-0.0)
@example([math.inf, -math.inf, 2**64, -(2**64), 2**64 + 1])
@example("\ud83d\ude00 \ud800")
@example({"\udcff": 1})
@example({1: 1, "1": torch.ones(1), (1,): torch.ones(2)})
@example({True: 1, 0: 2})
def test_unpack_inverts_pack(tree):
    tensors, data = pack(tree)

    assert same(unpack(tensors, json.loads(json.dumps(data, allow_nan=False))), tree)
    assert all(name.isprintable() and name for name in tensors)
    assert "__metadata__" not in tensors
    assert pack(tree)[1] == data


@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)], ids=str)
def test_every_dtype_and_shape_is_restored(dtype, shape):
    assert same(there_and_back(tensor(dtype, shape)), tensor(dtype, shape))


def test_tensors_are_named_by_their_paths():
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    tree = {"model": model.state_dict(), "optimizers": [optimizer.state_dict()]}

    tensors, _ = pack(tree)

    assert {"model/0.weight", "optimizers/0/state/1/exp_avg"} <= tensors.keys()
    assert same(there_and_back(tree)["optimizers"], tree["optimizers"])


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (["a/b", ("a", "b"), ""], {"a%2Fb": 1, "a/b": 2, "%": 3}),
        ([3, "3", "3~2"], {"3": 1, "3~2": 2, "3~2~2": 3}),
    ],
)
def test_tensors_with_similar_keys_have_different_names(keys, names):
    tree = {}
    for size, key in enumerate(keys, 1):
        place = tree.setdefault(key[0], {}) if isinstance(key, tuple) else tree
        place[key[-1] if isinstance(key, tuple) else key] = torch.ones(size)

    assert {name: len(t) for name, t in pack(tree)[0].items()} == names


@pytest.mark.parametrize(
    "mapping",
    [OrderedDict(a=1), MappingProxyType({"a": 1}), defaultdict(list, a=1), Counter("a")],
    ids=lambda m: type(m).__name__,
)
def test_a_mapping_becomes_a_dictionary(mapping):
    assert same(there_and_back(mapping), {"a": 1})


def test_tied_tensors_stay_tied():
    weight = torch.nn.Parameter(torch.ones(2, 3))
    empty = torch.empty(0)
    tree = {"a": weight, "b": weight.detach(), "c": [weight.T], "e": empty, "f": empty}

    tensors, _ = pack(tree)
    back = there_and_back(tree)

    assert tensors.keys() == {"a", "c/0", "e"}
    assert back["a"] is back["b"]
    assert back["e"] is back["f"]
    assert not back["a"].requires_grad
    assert tensors["a"].data_ptr() == weight.data_ptr()  # nothing is copied


def test_tensors_that_only_look_alike_are_not_tied():
    base = torch.arange(4.0)
    z = torch.ones(2, dtype=torch.complex64)

    tensors, _ = pack(
        [base[:2], base[2:], base[:2].view(1, 2), base.view(torch.int32)[:2], z, z.conj()]
    )
    empty, _ = pack([torch.empty(0), torch.empty(0)])

    assert len(tensors) == 6
    assert len(empty) == 2


@pytest.mark.parametrize(
    "values",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(2, 3, 4, 5, dtype=torch.complex128).to(memory_format=torch.channels_last),
        torch.randn(3, 4).T,
        torch.randn(3, 4, dtype=torch.complex128).T,
        torch.randn(3, 4, dtype=torch.complex128).T.conj(),
    ],
    ids=["channels_last", "complex channels_last", "transposed", "complex", "conjugate"],
)
def test_the_memory_format_is_restored(values):
    back = there_and_back(values)

    assert same(back, values)
    assert back.stride() == values.stride()


Point = namedtuple("Point", "x y")


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones(2), "Mine/history has type numpy.ndarray, which cannot be saved: use plain"),
        (np.float64(1), "Mine/history has type numpy.float64"),
        (Point(1, 2), "Mine/history has type .*Point"),
        (Colour.RED, "Mine/history has type .*Colour"),
        (UserDict(), "Mine/history has type collections.UserDict"),
        (print, "Mine/history has type builtin_function_or_method"),
        (torch.nn.Linear(1, 1), "Mine/history has type torch.nn.modules.linear.Linear"),
        (torch.Generator(), "Mine/history has type torch._C.Generator"),
        ([1, {2: (3, object())}], "memory/Mine/history/1/2/1 has type object"),
        (torch.ones(2).to_sparse(), "is a tensor that has layout torch.sparse_coo"),
        (torch.ones(2, device="meta"), "is a tensor that is on the meta device"),
        (torch.nn.parameter.UninitializedParameter(), "has type torch.nn.parameter.Uninit"),
        (torch.ones(2, dtype=torch.uint8).view(torch.bits8), "has dtype torch.bits8"),
        ({torch.ones(1): 1}, "contains a tensor as a key or set member"),
        ({torch.ones(1)}, "contains a tensor as a key or set member"),
        (Timestamp(batch=float("nan")), "batch of a timestamp is nan, not a non-negative integer"),
        (Timestamp(batch_wct=math.inf), "batch_wct of a timestamp is inf, not a non-negative num"),
    ],
    ids=by_message,
)
def test_a_value_that_cannot_be_saved_is_named_with_its_path(value, message):
    with pytest.raises(UnsavableError, match=message):
        pack({"memory": {"Mine": {"history": value}}})


def nested(levels):
    tree = 1
    for _ in range(levels):
        tree = {1: (tree,)}
    return tree


def test_a_tree_is_finite_and_not_too_deep():
    loop = {"a": []}
    loop["a"].append((loop,))
    inner = [1]

    assert there_and_back([inner, inner]) == [[1], [1]]
    assert there_and_back(nested(31)) == nested(31)
    with pytest.raises(UnsavableError, match="a/0/0 contains itself"):
        pack(loop)
    with pytest.raises(UnsavableError, match="more than 64 levels"):
        pack(nested(40))
    with pytest.raises(DamagedCheckpointError, match="nested too deeply"):
        unpack({}, reduce(lambda data, _: [data], range(900), []))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": {"$tensor": "w"}, "b": {"$tensor": "x"}}, "at b: tensor 'x' is missing"),
        (
            {"$fraction": [{"$int": "0x" + "f" * 10**6}, 3]},
            "must be two integers of at most 65536 bits",
        ),
        ({"$timestamp": {"batch": {"$int": "-0x" + "f" * 10**5}}}, "is an integer of 400000 bits"),
        ({}, "does not reference the tensors 'w'"),
        ({"$tensor": 3}, "a .tensor is not a name"),
        ({"$tensor": "w", "more": 1}, "a .tensor is not a name"),
        ({"$tensor": "w", "order": [0, 0]}, "is invalid for a tensor of 2 dimensions"),
        ({"$tensor": "w", "order": "01"}, "not a list of integers"),
        ({"$tensor": "w", "order": [True, 0]}, "not a list of integers"),
        ({"$tensor": "w", "complex": True}, "complex tensor"),
        ([{"$tensor": "w"}, {"$tensor": "w", "order": [1, 0]}], "described in two different ways"),
        ({"$pickle": "gASV"}, "'.pickle' is unknown"),
        ({"$tuple": 3}, "3 is not a list"),
        ({"$tuple": [], "x": 1}, "a .tuple has other keys"),
        ({"$set": [1, 1]}, "a set member occurs twice"),
        ({"$set": [[]]}, "unhashable"),
        ({"$dict": [[1, 2], [1, 3]]}, "a key occurs twice"),
        ({"$dict": [[[], 2]]}, "unhashable"),
        ({"$dict": [[{"$tensor": "w"}, 2]]}, "a tensor is a key"),
        ({"$dict": [[1, 2, 3]]}, "not a list of pairs"),
        ({"$dict": {}}, "not a list of pairs"),
        ({"$deque": [2, [1, 2, 3]]}, "more items than it can hold"),
        ({"$deque": [-1, []]}, "has length"),
        ({"$deque": [1e300, []]}, "has length"),
        ({"$int": "9" * 9999}, "must be an integer in hexadecimal digits"),
        ({"$int": 3}, ".int is 3, and must be an integer in hexadecimal digits"),
        ({"$float": "00"}, ".float is '00', and must be a double in 16 hexadecimal digits"),
        ({"$float": "xx"}, "must be a double in 16 hexadecimal digits"),
        ({"$bytes": "?"}, "damaged at the tree"),
        ({"$str": "/w=="}, "damaged at the tree"),
        ({"$complex": [1, 2]}, r"is \[1, 2\], and must be two floating-point numbers"),
        ({"$fraction": [1, 0]}, "damaged at the tree"),
        ({"$fraction": [1.5, 2]}, "must be two integers"),
        ({"$dtype": "load"}, "dtype is 'load', and must be a dtype"),
        ({"$dtype": []}, "damaged at the tree"),
        ({"$device": "cuda:99999999999999999999"}, "must be a device"),
        ({"$device": "nowhere"}, "device string: nowhere"),
        ({"$size": [-1]}, "size/0 is -1, and must be a non-negative integer"),
        ({"$time": "1 fortnight"}, "damaged at the tree"),
        ({"$time": 3}, ".time is 3, and must be a string"),
        ({"$time": "9" * 9999 + "ba"}, "damaged at the tree"),
        ({"$timestamp": {"batch": -1}}, "batch of a timestamp is -1"),
        ({"$timestamp": {"batch": {"$float": "7ff8000000000000"}}}, "batch of a timestamp is nan"),
        ({"$timestamp": {"batch": True}}, "batch of a timestamp is True"),
        ({"$timestamp": {"total_wct": "1"}}, "total_wct of a timestamp is '1'"),
        ({"$timestamp": {"fortnight": 1}}, "fortnight"),
        ({"$timestamp": {"$dict": [[3, 1]]}}, "damaged at the tree"),
        ({"$key": -1}, "out of range"),
        ({"$key": "3"}, "damaged at the tree"),
        ("\ud800", "invalid Unicode"),
        ({"\ud800": 1}, "a key is invalid Unicode"),
    ],
    ids=by_message,
)
def test_an_invalid_state_is_an_error_with_its_path(data, message):
    with pytest.raises(DamagedCheckpointError, match=message):
        unpack({"w": torch.ones(2, 2)}, data)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("order", [[1, 0], [2, 0, 1], [0, 2, 1]])
def test_a_complex_tensor_whose_order_separates_its_numbers_is_named(order, dtype):
    tensor = torch.zeros(*[3] * (len(order) - 1), 2, dtype=dtype)

    with pytest.raises(DamagedCheckpointError, match="at a: the order of a complex tensor"):
        unpack({"w": tensor}, {"a": {"$tensor": "w", "order": order, "complex": True}})
