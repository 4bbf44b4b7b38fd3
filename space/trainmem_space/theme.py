"""How the app looks: the Gradio theme, the style sheet with one variable a bucket, and the page's script."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import gradio as gr

from trainmem.palette import ACCENT, ACCENT_DARK, BUCKET_COLOURS, LABEL_COLOURS

__all__ = ["THEME", "nested", "page_script", "style"]

# Fonts of the reader's own machine: nothing to download, and tabular figures exist in all of them.
_SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
_MONO = ("ui-monospace", "SF Mono", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")

_LIGHT = {
    "page": "#ffffff",
    "soft": "#f4f5f7",
    "ink": "#16181d",
    "muted": "#5a606a",
    "rule": "#dcdfe4",
    "edge": "#b9bfc8",
    "accent": ACCENT,
    "on_accent": "#ffffff",
}
_DARK = {
    "page": "#14161a",
    "soft": "#1d2026",
    "ink": "#e9e9e6",
    "muted": "#a0a7b1",
    "rule": "#2f343c",
    "edge": "#4a515c",
    "accent": ACCENT_DARK,
    "on_accent": "#14161a",
}

_ROLES = {
    "page": (
        "body_background_fill",
        "background_fill_primary",
        "input_background_fill",
        "input_background_fill_focus",
        "input_background_fill_hover",
        "checkbox_background_color",
        "checkbox_label_background_fill",
        "button_secondary_background_fill",
        "table_even_background_fill",
        "table_odd_background_fill",
    ),
    "soft": (
        "background_fill_secondary",
        "checkbox_label_background_fill_hover",
        "button_secondary_background_fill_hover",
        "color_accent_soft",
    ),
    "ink": (
        "body_text_color",
        "block_title_text_color",
        "block_label_text_color",
        "checkbox_label_text_color",
        "button_secondary_text_color",
        "button_secondary_text_color_hover",
    ),
    "muted": ("body_text_color_subdued", "block_info_text_color", "input_placeholder_color"),
    "rule": ("border_color_primary", "table_border_color", "input_border_color_hover"),
    "edge": ("input_border_color", "checkbox_border_color", "button_secondary_border_color"),
    "accent": (
        "border_color_accent",
        "input_border_color_focus",
        "checkbox_background_color_selected",
        "checkbox_border_color_selected",
        "checkbox_border_color_focus",
        "link_text_color",
        "link_text_color_active",
        "link_text_color_hover",
        "link_text_color_visited",
        "button_primary_background_fill",
        "button_primary_background_fill_hover",
        "button_primary_border_color",
        "loader_color",
        "error_text_color",
    ),
    "on_accent": ("button_primary_text_color", "button_primary_text_color_hover"),
}

_PLAIN = {
    "body_text_size": "15px",
    "block_background_fill": "transparent",
    "block_background_fill_dark": "transparent",
    "block_border_width": "0px",
    "block_border_width_dark": "0px",
    "block_label_background_fill": "transparent",
    "block_label_background_fill_dark": "transparent",
    "block_label_border_width": "0px",
    "block_label_border_width_dark": "0px",
    "block_title_text_size": "13px",
    "block_title_text_weight": "400",
    "block_info_text_size": "13px",
    "block_padding": "0px",
    "block_radius": "0px",
    "block_shadow": "none",
    "block_shadow_dark": "none",
    "container_radius": "0px",
    "form_gap_width": "0px",
    "layout_gap": "12px",
    "input_radius": "4px",
    "input_padding": "6px 8px",
    "input_border_width": "1px",
    "input_border_width_dark": "1px",
    "input_text_size": "15px",
    "input_shadow": "none",
    "input_shadow_focus": "0 0 0 1px var(--border-color-accent)",
    "checkbox_label_padding": "5px 9px",
    "checkbox_label_gap": "0px",
    "checkbox_label_shadow": "none",
    "checkbox_label_text_size": "14px",
    "checkbox_shadow": "none",
    "button_large_radius": "4px",
    "button_medium_radius": "4px",
    "button_small_radius": "4px",
    "button_primary_shadow": "none",
    "button_secondary_shadow": "none",
    "table_radius": "0px",
}


def _theme() -> gr.themes.Base:
    values = dict(_PLAIN)
    for role, names in _ROLES.items():
        for name in names:
            values[name] = _LIGHT[role]
            values[f"{name}_dark"] = _DARK[role]
    return gr.themes.Base(font=_SANS, font_mono=_MONO).set(**values)


THEME = _theme()


def _variables(values: dict[str, str]) -> str:
    return "".join(f"--tm-{name.replace('_', '-')}:{value};" for name, value in values.items())


@cache
def style() -> str:
    """The style sheet, with the roles and the palette as variables: ``--tm-ink``, ``--tm-weights`` and so on.

    It is nested in the app's container, so that it outranks the components' own rules.
    """
    buckets = dict(BUCKET_COLOURS) | {f"on_{bucket}": ink for bucket, ink in LABEL_COLOURS.items()}
    sheet = files("trainmem_space").joinpath("static/style.css").read_text(encoding="utf-8")
    variables = f":root{{{_variables(_LIGHT | buckets)}}}\n.dark{{{_variables(_DARK)}}}"
    return f"{variables}\n{nested(sheet)}"


def nested(sheet: str) -> str:
    """Rules that count inside the app's container only."""
    return f".gradio-container{{\n{sheet}\n}}"


@cache
def page_script() -> str:
    """JavaScript that runs once when the page is open: keyboard, focus hints, folding on the phone."""
    return files("trainmem_space").joinpath("static/page.js").read_text(encoding="utf-8")
