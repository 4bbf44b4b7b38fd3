"""The app as a visitor meets it: a server process of its own, a Chromium that talks to nothing else."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90

# A busy machine is no failure; nothing waits this long where all is well.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def app_url(tmp_path_factory):
    """The address of a running app. It is told to be offline, so that the Hub is never asked."""
    port, folder = _free_port(), tmp_path_factory.mktemp("app")
    paths = [str(ROOT / name) for name in ("shared", "space")]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "GRADIO_TEMP_DIR": str(folder / "uploads"),
    }
    log = (folder / "log").open("wb")
    command = [sys.executable, "-m", "trainmem_space", "--port", str(port)]
    with log, subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log) as server:
        try:
            _wait(f"http://127.0.0.1:{port}/config", server, folder / "log")
            yield f"http://127.0.0.1:{port}/"
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    pytest.fail(f"the app did not start:\n{log.read_text(errors='replace')[-4000:]}")


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium: the system's, or the one that Playwright installed."""
    api = pytest.importorskip("playwright.sync_api")
    system = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with api.sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=system, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"no Chromium here: {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture
def visit(browser, app_url):
    """Open the app: ``visit("?model=...", width=390, dark=True)`` gives a page.

    Afterwards every page must have asked this server alone and logged no error.
    """
    contexts, strangers, errors = [], [], []
    host = urlsplit(app_url).netloc

    def open_page(query: str = "", *, width: int = 1280, dark: bool = False):
        phone = width < 600
        context = browser.new_context(
            viewport={"width": width, "height": 844 if phone else 900},
            color_scheme="dark" if dark else "light",
            has_touch=phone,
            is_mobile=phone,
            accept_downloads=True,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: _note(request.url, host, strangers))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.goto(app_url + query)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert strangers == []
    assert errors == []


def _note(url: str, host: str, strangers: list[str]) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("data", "blob") and parts.netloc != host:
        strangers.append(url)
