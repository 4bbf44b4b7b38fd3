"""One colour for each bucket, the same on every chart, table and report.

The ten fills were chosen together: in OKLab any two of them differ by at least 0.09, and neighbours in the
stack by at least 0.16, for normal sight and for full protanopia, deuteranopia and tritanopia (Machado et al.
2009; tritanopia, the rarest, at 0.8 of both). Each stands out from a white and from a dark page with a
contrast of 2.2 or more, so draw a hairline of the page's colour between segments.
"""

from __future__ import annotations

from trainmem.buckets import Bucket

__all__ = ["ACCENT", "ACCENT_DARK", "BUCKET_COLOURS", "LABEL_COLOURS"]

_LIGHT_INK = "#ffffff"
_DARK_INK = "#101214"

BUCKET_COLOURS: dict[Bucket, str] = {
    "weights": "#1d51a1",
    "master_weights": "#4c98df",
    "gradients": "#cd7b23",
    "optimizer_state": "#7e57e1",
    "cast_cache": "#19c2a9",
    "activations": "#407d5f",
    "logits": "#dca52f",
    "communication": "#bd3d07",
    "temporaries": "#a7719f",
    "workspace": "#515151",
}

LABEL_COLOURS: dict[Bucket, str] = {
    "weights": _LIGHT_INK,
    "master_weights": _DARK_INK,
    "gradients": _DARK_INK,
    "optimizer_state": _LIGHT_INK,
    "cast_cache": _DARK_INK,
    "activations": _LIGHT_INK,
    "logits": _DARK_INK,
    "communication": _LIGHT_INK,
    "temporaries": _DARK_INK,
    "workspace": _LIGHT_INK,
}
"""Text over a fill, with a contrast of 4.5 or more."""

ACCENT = "#c2185b"
"""The one accent, on a light page: what the reader is asked to look at or press."""

ACCENT_DARK = "#ff7aa2"
"""The same accent on a dark page."""
