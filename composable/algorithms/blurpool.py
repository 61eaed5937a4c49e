"""BlurPool, as an algorithm."""

import attrs

from composable._support.checks import check_any
from composable.algorithms._surgery import Surgery
from composable.functional import blurpool


@attrs.frozen(repr=False)
class BlurPool(Surgery):
    """Blur the inputs of strided layers against aliasing: see `composable.functional.blurpool`.

    Args:
        replace_convs: Replace strided convolutions.
        replace_maxpools: Replace strided max-pools.
        blur_first: Blur the input of a convolution, which is cheap, instead of its output.
        min_channels: Minimum number of input channels of a convolution to replace.
    """

    replace_convs: bool = True
    replace_maxpools: bool = True
    blur_first: bool = True
    min_channels: int = 16

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_any("replace_convs", self.replace_convs, "replace_maxpools", self.replace_maxpools)

    surgery = staticmethod(blurpool)
    replaces = frozenset({"convolution", "max-pool"})
