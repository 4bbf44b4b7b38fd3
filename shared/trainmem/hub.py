"""Reading one model's ``config.json`` from the Hugging Face Hub: one anonymous request, no weights, no code.

Only https://huggingface.co is ever asked and redirects that leave it are refused. The answer is data: it is
parsed as JSON and handed to the same reader as a pasted config.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from typing import IO, Any

__all__ = ["HubError", "fetch_config", "is_hub_id"]

HOST = "huggingface.co"
TIMEOUT_SECONDS = 5.0
MOST_BYTES = 1 << 20

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_HUB_ID = re.compile(rf"{_PART}/{_PART}")
_GIVE = "give its config.json itself"


class HubError(ValueError):
    """The config could not be had; the message says why and what to do, in one line."""


def is_hub_id(text: str) -> bool:
    """Whether ``text`` is written like an id on the Hub: ``owner/name``."""
    return _HUB_ID.fullmatch(text) is not None and "--" not in text and ".." not in text


def fetch_config(model_id: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> dict[str, Any]:
    """The ``config.json`` of ``model_id`` on the Hub's main branch, within ``timeout_seconds`` in all.

    Raises `HubError` with a sentence each for an id that is not one, a gated or missing model, a model
    without config.json, a config that is not JSON, and no way to the Hub.
    """
    if not is_hub_id(model_id):
        raise HubError(
            f"model: {model_id[:60]!r} is not a Hub id; write owner/name, for example Qwen/Qwen2.5-7B"
        )
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        raise HubError(f"model: {model_id} was not fetched because HF_HUB_OFFLINE is set; {_GIVE}")
    body = _within(timeout_seconds, model_id, functools.partial(_download, model_id, timeout_seconds))
    try:
        config = json.loads(body)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise HubError(f"model: the config.json of {model_id} is not a JSON object; {_GIVE}")
    return config


def _within(timeout_seconds: float, model_id: str, work: Callable[[], bytes]) -> bytes:
    """Run ``work`` and give up on it after ``timeout_seconds``: a socket timeout alone does not bound the
    lookup of the name nor a server that sends one byte a second.
    """
    outcome: list[bytes | HubError] = []

    def run() -> None:
        try:
            outcome.append(work())
        except HubError as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True, name="trainmem-hub")
    thread.start()
    thread.join(timeout_seconds)
    if not outcome:
        raise HubError(f"model: {HOST} did not answer for {model_id} within {timeout_seconds:g} s; {_GIVE}")
    if isinstance(outcome[0], HubError):
        raise outcome[0]
    return outcome[0]


class _SameHost(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        target = urllib.parse.urlsplit(newurl)
        if target.scheme != "https" or target.netloc != HOST:
            raise HubError(f"model: {HOST} sent its config.json elsewhere, which is not followed; {_GIVE}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@functools.lru_cache(maxsize=64)
def _download(model_id: str, timeout_seconds: float) -> bytes:
    request = urllib.request.Request(
        f"https://{HOST}/{model_id}/resolve/main/config.json", headers={"User-Agent": "trainmem"}
    )
    try:
        with urllib.request.build_opener(_SameHost).open(request, timeout=timeout_seconds) as answer:
            body: bytes = answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise HubError(_refusal(model_id, error.code, error.headers.get("X-Error-Code"))) from None
    except (OSError, HTTPException) as error:
        cause = getattr(error, "reason", error)
        reason = getattr(cause, "strerror", None) or cause
        raise HubError(f"model: {HOST} cannot be reached from here ({reason}); {_GIVE}") from None
    if len(body) > MOST_BYTES:
        raise HubError(f"model: the config.json of {model_id} is larger than 1 MiB; {_GIVE}")
    return body


def _refusal(model_id: str, status: int, code: str | None) -> str:
    # The Hub answers 401 both for a gated model and for one that does not exist; the code header tells them
    # apart.
    if code == "GatedRepo" or status == 403:
        return (
            f"model: {model_id} is gated, its config.json needs an account that accepted its terms; {_GIVE}"
        )
    if code == "EntryNotFound":
        return f"model: {model_id} has no config.json on {HOST}; {_GIVE}"
    if code == "RepoNotFound" or status in {401, 404}:
        return f"model: {model_id} is not a public model on {HOST}; check the spelling of owner/name"
    return f"model: {HOST} answered {status} for {model_id}; try again, or {_GIVE}"
