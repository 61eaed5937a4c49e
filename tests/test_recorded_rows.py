"""The rows of a recorded run are restored exactly."""

from hypothesis import given
from hypothesis import strategies as st

from composable.runs.records import Rows

VALUES = st.one_of(
    st.floats().map(float.hex),
    st.sampled_from(["0x1p0", "1", " 0x1.8p+1", "nan", "inf", "infinity", "ab12", "0X1.8P+1"]),
    st.text(),
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.lists(st.none()),
)


@given(st.dictionaries(st.integers(0), st.dictionaries(st.text(), VALUES)))
def test_rows_are_restored_exactly(lines):
    rows = Rows()
    for batch, line in lines.items():
        rows.add(batch, line)

    assert dict(rows) == lines
    assert repr(dict(rows)) == repr(lines)
