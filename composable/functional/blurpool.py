"""BlurPool: blur before subsampling, for approximate shift equivariance.

Zhang, "Making Convolutional Networks Shift-Invariant Again", ICML 2019,
https://arxiv.org/abs/1904.11486
"""

from typing import cast

from torch import Tensor, nn

from composable._support.checks import check_any, check_count, check_flag, checked
from composable._support.warn import NoEffectWarning, warn_user

from ._reclass import reclass, refuse_lazy
from .layers.blur import (
    BlurConv1d,
    BlurConv2d,
    BlurConv3d,
    BlurMaxPool1d,
    BlurMaxPool2d,
    BlurMaxPool3d,
    Blurred,
    per_dimension,
)
from .replace_modules import replace_or_report

LAYERS: dict[type[nn.Module], type[Blurred]] = {
    nn.Conv1d: BlurConv1d,
    nn.Conv2d: BlurConv2d,
    nn.Conv3d: BlurConv3d,
    nn.MaxPool1d: BlurMaxPool1d,
    nn.MaxPool2d: BlurMaxPool2d,
    nn.MaxPool3d: BlurMaxPool3d,
}
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


@checked(
    replace_convs=check_flag,
    replace_maxpools=check_flag,
    blur_first=check_flag,
    min_channels=check_count,
)
def blurpool(
    model: nn.Module,
    *,
    replace_convs: bool = True,
    replace_maxpools: bool = True,
    blur_first: bool = True,
    min_channels: int = 16,
) -> nn.Module:
    r"""Replace strided convolutions and max-pools, in 1 to 3 dimensions, by anti-aliased layers.

    With the blur $b = [1, 2, 1] / 4$ along each dimension with a stride above 1:

    $$\mathrm{pool}_s \to (\cdot)_{\downarrow s} \circ b \circ \mathrm{pool}_1, \quad
    \mathrm{conv}_s \to \mathrm{conv}_s \circ b \quad\text{or}\quad (\cdot)_{\downarrow s} \circ
    b \circ \mathrm{conv}_1$$

    Shapes, other options of the layers, and the keys of the state dict don't change. Layers that
    are blurred already are skipped.

    The blur pads by replication (circularly in a circular convolution), so constants stay
    constant. The common zero padding darkens the border; the code of the paper reflects. A
    `ceil_mode` window beyond the border repeats the last maximum.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        replace_convs: Replace convolutions with a stride above 1.
        replace_maxpools: Replace max-pools with a stride above 1. A pool that returns indices is
            skipped with a warning, since a blurred maximum has no index. Subclasses of the pools
            of PyTorch are skipped too.
        blur_first: Blur the input of a convolution, which is cheap. Otherwise blur its output at
            full resolution, as in the paper, which costs as much as the convolution with stride 1.
        min_channels: Minimum number of input channels of a convolution to replace. The default
            skips the first convolution of an image model.

    Returns:
        The new model; `model` itself if there is nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Both `replace_convs` and `replace_maxpools` are False, `min_channels` is
            negative, or a convolution is lazy and its channels are not known yet.

    Warns:
        NoEffectWarning: Nothing was replaced, or a replacement may be bypassed.

    Example:
        >>> first, second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3, stride=2)
        >>> model = nn.Sequential(first, nn.MaxPool2d(2), second)
        >>> [type(layer).__name__ for layer in blurpool(model)]
        ['Conv2d', 'BlurMaxPool2d', 'BlurConv2d']
    """
    check_any("replace_convs", replace_convs, "replace_maxpools", replace_maxpools)
    like = next((p for p in model.parameters() if p.is_floating_point()), None)

    def rule(name: str, module: nn.Module) -> nn.Module:
        if replace_convs and _aliasing_conv(name, module, min_channels):
            return _blurred(module, blur_first, next(module.parameters()))
        if replace_maxpools and _aliasing_pool(name, module):
            return _blurred(module, False, like)
        return module

    convs = f"Conv1d, Conv2d and Conv3d with at least {min_channels} input channels"
    pools = "MaxPool1d, MaxPool2d and MaxPool3d"
    sought = " or ".join([convs] * replace_convs + [pools] * replace_maxpools)
    return replace_or_report(model, rule, Blurred, "blurpool", f"a stride above 1 in {sought}")


def _aliasing_conv(name: str, module: nn.Module, min_channels: int) -> bool:
    if isinstance(module, Blurred) or not isinstance(module, CONVS):
        return False
    refuse_lazy(name, module, CONVS, "blurpool")
    return max(module.stride) > 1 and module.in_channels >= min_channels


def _aliasing_pool(name: str, module: nn.Module) -> bool:
    if type(module) not in MAX_POOLS:
        return False
    pool = cast(nn.MaxPool2d, module)
    if max(per_dimension(pool.stride, 1)) == 1:
        return False
    if pool.return_indices:
        warn_user(
            f"blurpool skipped {name or 'model'}: it returns indices, and a blurred maximum has no "
            "index.",
            NoEffectWarning,
        )
    return not pool.return_indices


def _blurred(module: nn.Module, blur_first: bool, like: Tensor | None) -> nn.Module:
    kind = next(ours for plain, ours in LAYERS.items() if isinstance(module, plain))
    new: Blurred = reclass(module, kind, prefix="Blur")
    new.set_up_blur(blur_first=blur_first, like=like)
    return new
