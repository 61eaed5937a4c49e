"""JSON from files takes no more time, memory or stack than its size suggests."""

import ast
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import composable
from composable._support import strict_json
from composable._support.printable import shorten
from composable._support.strict_json import MAX_DEPTH, InvalidJSONError, load, load_file

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
def test_what_json_writes_is_read(value):
    assert load(json.dumps(value), "a file") == value


@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}")])
def test_the_depth_is_limited(start, end):
    def nested(depth):
        return start * depth + ("1" if start != "[" else "") + end * depth

    load(nested(MAX_DEPTH), "a file")
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(
            InvalidJSONError, match=f"a file is nested too deeply: more than {MAX_DEPTH}"
        ):
            load(nested(depth), "a file")


def test_brackets_in_strings_are_no_depth():
    value = {'a "quoted" [': ["[" * 1000, '\\"{' * 1000]}

    assert load(json.dumps(value), "a file") == value


def test_a_duplicate_key_is_found_in_linear_time():
    keys = ",".join(f'"{i}":0' for i in range(200_000))
    began = time.perf_counter()

    with pytest.raises(InvalidJSONError, match="duplicate key '199999'"):
        load(f'{{{keys},"199999":0}}', "a file")
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        *((raw, "") for raw in ("", "{", b"\xff", '{"a": 1', "[1] [2]")),
        ('{"a":1,"a":2}', "duplicate key 'a'"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ("1e999", "out of range"),
        ("9" * 5000, "an integer has 5000 digits"),
    ],
)
def test_what_is_no_strict_json_is_refused(raw, message):
    with pytest.raises(InvalidJSONError, match=rf"^a file is damaged, invalid JSON: .*{message}"):
        load(raw, "a file")


def test_nan_is_read_on_request():
    assert str(load("[NaN, -Infinity]", "a file", nan=True)) == "[nan, -inf]"


def test_the_size_of_a_file_is_limited(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[1, 2]")

    assert load_file(path, 6) == [1, 2]
    with pytest.raises(InvalidJSONError, match="more than the maximum of 5 bytes"):
        load_file(path, 5)


LARGE = {
    "integer": 1 << 1_000_000,
    "string": "a" * 10**6,
    "list": [[[[[1]]]]] * 10**5,
    "dictionary": {i: i for i in range(10**5)},
    "object": object(),
}


@pytest.mark.parametrize("kind", LARGE)
def test_the_text_of_a_value_in_an_error_is_short(kind):
    value = LARGE[kind]
    began = time.perf_counter()

    assert len(shorten(value, 60)) <= 60
    assert time.perf_counter() - began < 1


def test_nothing_else_decodes_json():
    root = Path(composable.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "json.load" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.loads", "json.load")
    }

    assert strict_json.__file__ == str(root / "_support/strict_json.py")
    # Messages between the processes of a run come from no file.
    assert found == {"_support/strict_json.py", "distributed/processes.py"}
