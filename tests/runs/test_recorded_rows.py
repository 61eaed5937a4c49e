"""The values of recorded batches are restored exactly."""

import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from composable.runs.records import STEPS, read_steps

VALUES = st.one_of(
    st.floats().map(float.hex),
    st.sampled_from(["0x1p0", "1", " 0x1.8p+1", "nan", "inf", "infinity", "ab12", "0X1.8P+1"]),
    st.text(),
    st.none() | st.booleans() | st.lists(st.none()),
    st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False),
)
NAMES = st.text().filter(lambda name: name not in ("batch", "epoch", "loss"))


@given(st.dictionaries(st.integers(0, 2**53), st.dictionaries(NAMES, VALUES)))
def test_rows_are_restored_exactly(values):
    values = {batch: {"loss": None, **line} for batch, line in values.items()}
    lines = [{"batch": batch, "epoch": 0, **line} for batch, line in values.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, STEPS)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        rows = read_steps(Path(folder)).trained

    assert dict(rows) == values
    assert repr(dict(rows)) == repr(values)
