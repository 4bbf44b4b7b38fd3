"""The report as one self-contained HTML page: no request leaves it, and text from the file is only ever text."""

from trainmem.snapshot.page.render import render_comparison, render_page

__all__ = ["render_comparison", "render_page"]
