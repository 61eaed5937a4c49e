"""The tests that a change reaches: by imports, also through a package, and by names of files."""

import pytest

from tools import changed_tests

TREE = {
    "composable/__init__.py": "from composable.a import f as f\nfrom composable import sub as sub",
    "composable/a.py": "from .sub.b import g\nf = g",
    "composable/c.py": '""">>> 1"""',
    "composable/sub/__init__.py": "from .b import g as g\nfrom .d import h as h",
    "composable/sub/b.py": "g = 1",
    "composable/sub/d.py": "h = open('advice.json')",
    "composable/advice.json": "",
    "docs/page.md": "",
    "tests/conftest.py": "",
    "tests/test_a.py": "from composable import f\nf",
    "tests/test_c.py": "import composable.c as one\none.x",
    "tests/test_h.py": "import composable\ncomposable.sub.h.x",
    "tests/test_whole.py": "from composable import sub\nprint(sub)",
}
A, C, H, WHOLE = (f"tests/test_{name}.py" for name in ("a", "c", "h", "whole"))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("composable/a.py", [A]),
        ("composable/sub/b.py", [A, WHOLE]),
        ("composable/sub/d.py", [H, WHOLE]),
        ("composable/c.py", ["composable/c.py", C]),
        ("composable/advice.json", [H, WHOLE]),
        ("docs/page.md", ["docs/page.md"]),
        ("tests/conftest.py", [A, C, H, WHOLE]),
        (H, [H]),
    ],
)
def test_a_change_reaches_the_tests_that_use_it(changed, expected, tmp_path, monkeypatch):
    for path, text in TREE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(changed_tests, "ROOT", tmp_path)
    for function in (changed_tests.names, changed_tests.files):
        function.cache_clear()

    assert changed_tests.reached([changed]) == expected
