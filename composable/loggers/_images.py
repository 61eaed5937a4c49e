"""Images and figures as pixels and PNG files."""

import io
import struct
import zlib
from typing import Any

from torch import Tensor

_COLOR_TYPES = {1: 0, 3: 2, 4: 6}  # gray, RGB, RGBA
_CHANNELS = {color: channels for channels, color in _COLOR_TYPES.items()}


def to_pixels(images: Tensor) -> Tensor:
    """Convert images to bytes on the CPU.

    Args:
        images: [C, H, W] or [N, C, H, W]: `torch.uint8`, or floating point in [0, 1]. Values
            outside are clipped, and NaN is 0.

    Returns:
        [N, H, W, C], `torch.uint8`.

    Example:
        >>> from composable.loggers._images import to_pixels
        >>> to_pixels(torch.tensor([[[0.0, 0.5, 1.0]]])).flatten()
        tensor([  0, 128, 255], dtype=torch.uint8)
    """
    images = images.detach()
    if images.ndim == 3:
        images = images[None]
    if images.is_floating_point():
        images = images.float().nan_to_num(0.0).clamp(0, 1).mul(255).round().byte()
    return images.permute(0, 2, 3, 1).contiguous().cpu()


def png(pixels: Tensor) -> bytes:
    r"""Encode one image [H, W, C] of `torch.uint8` as PNG.

    Example:
        >>> from composable.loggers._images import png
        >>> png(torch.zeros(2, 3, 1, dtype=torch.uint8))[:4]
        b'\x89PNG'
    """
    height, width, channels = pixels.shape
    raw = bytes(pixels.flatten().tolist())
    row = width * channels
    lines = b"".join(b"\0" + raw[i * row : (i + 1) * row] for i in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    )


def png_size(picture: bytes) -> tuple[int, int, int]:
    """Return the width, the height and the number of channels of an image in the format PNG.

    Example:
        >>> from composable.loggers._images import png, png_size
        >>> png_size(png(torch.zeros(2, 3, 1, dtype=torch.uint8)))
        (3, 2, 1)
    """
    width, height, _, color = struct.unpack(">IIBB", picture[16:26])
    return width, height, _CHANNELS.get(color, 3)


def figure_png(figure: Any) -> bytes:
    """Encode a figure of Matplotlib as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
