"""What the tests of the examples share."""

import pytest

CODE = "def add(a, b):\n    return a + b\n\n\n"


@pytest.fixture
def short_texts(monkeypatch, tmp_path):
    """Replace the source of PyTorch by few lines, and the cache by an empty folder."""
    # Not above: the check of shapes must be installed before the package is imported.
    from examples import small_gpt

    parts = {
        name: [CODE.replace("add", f"{name}_{number}") * 20 for number in range(4)]
        for name in ("train", "validation", "test")
    }
    monkeypatch.setattr(small_gpt, "texts", lambda: parts)
    monkeypatch.setattr(small_gpt, "SPAN", 300)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for function in (small_gpt.tokenizer, small_gpt.training_tokens):
        function.cache_clear()
    yield
    for function in (small_gpt.tokenizer, small_gpt.training_tokens):
        function.cache_clear()
