"""A tile map as PNG, drawn with Pillow where it is installed: the same map, without the words of the SVG."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ..pipeline.tile_svg import COLOURS

_SIDE = 512
_KINDS = "EPF"


class NoPicture(Exception):
    """Why there is no PNG."""


def png_of(tiles: Mapping[str, Any]) -> bytes:
    """The cells of a result's ``tiles`` as a picture of about 512 pixels, with a frame. Raises NoPicture."""
    try:
        from PIL import Image, ImageDraw  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise NoPicture("the package pillow is not installed") from None
    rows: list[str] = tiles["cells"]
    side = max(2, _SIDE // max(len(rows), len(rows[0])))
    image = Image.new("RGB", (side * len(rows[0]) + 2, side * len(rows) + 2), "#24292f")
    pen = ImageDraw.Draw(image)
    for r, row in enumerate(rows):
        for c, kind in enumerate(row):
            x, y = 1 + c * side, 1 + r * side
            pen.rectangle((x, y, x + side - 1, y + side - 1), fill=COLOURS[_KINDS.index(kind)])
    out = io.BytesIO()
    image.save(out, format="PNG", optimize=True)
    return out.getvalue()
