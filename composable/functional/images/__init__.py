"""Single operations on a batch of images, each with a separate strength per image.

They are the operations of Pillow that RandAugment and AugMix use, for a whole batch at once. Images
are `[batch, channels, height, width]`: uint8, or floats in [0, 1]. For uint8 the result is within
one grey level of Pillow's; for floats it is the same formula without the last rounding.
"""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from .blends import brightness as brightness
    from .blends import color as color
    from .blends import contrast as contrast
    from .blends import sharpness as sharpness
    from .geometry import rotate as rotate
    from .geometry import shear_x as shear_x
    from .geometry import shear_y as shear_y
    from .geometry import translate_x as translate_x
    from .geometry import translate_y as translate_y
    from .tones import autocontrast as autocontrast
    from .tones import equalize as equalize
    from .tones import posterize as posterize
    from .tones import solarize as solarize
else:
    export_lazily(__name__)
