"""Serving the app: local, private and offline unless the host says otherwise."""

from __future__ import annotations

import os
import sys

import gradio as gr

from trainmem_space import api, theme
from trainmem_space.shell import build

__all__ = ["DEFAULT_PORT", "launch_settings", "serve"]

DEFAULT_PORT = 7860
MAX_UPLOAD = "200mb"


def launch_settings() -> dict[str, object]:
    """What `gr.Blocks.launch` is told, whatever the environment holds: no share link, no page rendered by
    another process, no run history, no monitoring page, no service worker.
    """
    return {
        "share": False,
        "ssr_mode": False,
        "run_history": False,
        "enable_monitoring": False,
        "pwa": False,
        "mcp_server": False,
        "footer_links": ["api"],
        "max_file_size": MAX_UPLOAD,
        "theme": theme.THEME,
        "js": theme.page_script(),
        "quiet": True,
    }


def serve(host: str | None = None, port: int | None = None, *, block: bool = True) -> gr.Blocks:
    """Serve the app until interrupted.

    ``host`` and ``port`` default to ``GRADIO_SERVER_NAME`` and ``GRADIO_SERVER_PORT``, then to 127.0.0.1 and
    `DEFAULT_PORT`. ``block=False`` returns at once with the server running.
    """
    host = host or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    port = port if port is not None else int(os.environ.get("GRADIO_SERVER_PORT") or DEFAULT_PORT)
    page = build()
    # In the head rather than as ``css``: Gradio rewrites that and drops container queries.
    page.demo.launch(
        server_name=host,
        server_port=port,
        head=f"<style>{page.style}</style>",
        prevent_thread_lock=True,
        **launch_settings(),
    )
    api.answer_the_page_about_it(page.demo.app)
    if block:
        sys.stdout.write(
            f"\n  trainmem is ready: open {page.demo.local_url} in a browser. Ctrl+C stops it.\n\n"
        )
        sys.stdout.flush()
        page.demo.block_thread()
    return page.demo
