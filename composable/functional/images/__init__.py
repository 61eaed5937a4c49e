"""Single operations on a batch of images, each with a strength of its own per image.

They are the operations of Pillow that RandAugment and AugMix use, for a whole batch at once. Images
are `[batch, channels, height, width]`: uint8, or floats in [0, 1]. For uint8 the result is within
one grey level of Pillow's; for floats it is the same formula without the last rounding.
"""

from .blends import brightness, color, contrast, sharpness
from .geometry import rotate, shear_x, shear_y, translate_x, translate_y
from .tones import autocontrast, equalize, posterize, solarize

__all__ = [
    "autocontrast",
    "brightness",
    "color",
    "contrast",
    "equalize",
    "posterize",
    "rotate",
    "sharpness",
    "shear_x",
    "shear_y",
    "solarize",
    "translate_x",
    "translate_y",
]
