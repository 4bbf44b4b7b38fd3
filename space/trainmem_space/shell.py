"""The page around the tabs: one `gr.Blocks`, the shared job, and the tabs of the registry in order."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from trainmem_space import api, theme
from trainmem_space.tabs import TABS
from trainmem_space.views import view

__all__ = ["Page", "Shell", "build"]

UPLOADS_KEPT_SECONDS = 600


@dataclass(frozen=True, kw_only=True, slots=True)
class Shell:
    """What a tab may use while it is built.

    ``job`` is a `gr.State` that holds the job of the Calculator as its JSON object (`TrainingJob.to_json`),
    so that other tabs answer for the same job; ``tab`` is the tab being built (its ``select`` event says
    when it is opened); ``tabs`` lets a tab open another one, with ``gr.Tabs(selected="calculator")`` as
    output.
    """

    demo: gr.Blocks
    job: gr.State
    tabs: gr.Tabs
    tab: gr.Tab


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The built app and the style sheet to launch it with."""

    demo: gr.Blocks
    style: str


def build() -> Page:
    """Build the whole app. Tabs whose module does not exist are left out."""
    styles = [theme.style()]
    with gr.Blocks(title="trainmem", delete_cache=(UPLOADS_KEPT_SECONDS, UPLOADS_KEPT_SECONDS)) as demo:
        job = gr.State(None)
        view(
            '<p class="tm-name"><b>trainmem</b><span>Will this training job fit, what fills the memory, '
            "and when is the peak?</span></p>",
            elem_id="name",
        )
        with gr.Tabs(elem_id="tabs") as tabs:
            for entry in TABS:
                module = entry.module()
                if module is None:
                    continue
                styles.append(theme.nested(getattr(module, "CSS", "")))
                with gr.Tab(entry.title, id=entry.key, elem_id=f"tab-{entry.key}") as tab:
                    # The address says which tab is open; from the overflow menu too, which a script cannot see.
                    tab.select(
                        None, js=f"() => window.trainmem.opened({entry.key!r})", api_visibility="private"
                    )
                    module.build(Shell(demo=demo, job=job, tabs=tabs, tab=tab))
        api.register()
    return Page(demo=demo, style="\n".join(styles))
