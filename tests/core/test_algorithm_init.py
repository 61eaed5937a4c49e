"""An algorithm with an `__init__` of its own is refused where it is defined."""

import attrs
import pytest

from composable import Algorithm


def test_own_init_is_refused_with_the_cure():
    with pytest.raises(TypeError, match=r"Mine defines __init__, .* @attrs.frozen"):

        class Mine(Algorithm):
            def __init__(self, factor):
                self.factor = factor


@pytest.mark.parametrize("slots", [True, False])
def test_fields_are_fine(slots):
    @attrs.frozen(slots=slots)
    class Mine(Algorithm):
        factor: float = 0.5

        def apply(self, event, state):
            return state

    class Child(Mine):
        pass

    assert (Child(2.0).factor, Child(2.0).name) == (2.0, "Child")
