"""Fetching a config.json: the sentences for every way it fails, and nothing but huggingface.co asked."""

import email.message
import io
import threading
import urllib.error
import urllib.request

import pytest

from trainmem import hub


@pytest.fixture(autouse=True)
def _online(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    hub._download.cache_clear()


class Opener:
    """Stands in for urllib's opener: answers with bytes or raises."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.urls = []

    def open(self, request, timeout):
        self.urls.append(request.full_url)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return io.BytesIO(self.outcome)


@pytest.fixture
def answer(monkeypatch):
    def install(outcome):
        opener = Opener(outcome)
        monkeypatch.setattr(urllib.request, "build_opener", lambda *_: opener)
        return opener

    return install


def refused(status, code=None):
    headers = email.message.Message()
    if code:
        headers["X-Error-Code"] = code
    return urllib.error.HTTPError("https://huggingface.co/x", status, "no", headers, io.BytesIO())


def test_reads_the_config_once(answer):
    opener = answer(b'{"model_type": "llama"}')
    assert hub.fetch_config("meta-llama/Llama-3.2-1B") == {"model_type": "llama"}
    assert hub.fetch_config("meta-llama/Llama-3.2-1B") == {"model_type": "llama"}
    assert opener.urls == ["https://huggingface.co/meta-llama/Llama-3.2-1B/resolve/main/config.json"]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (refused(401, "GatedRepo"), "is gated"),
        (refused(403), "is gated"),
        (refused(401, "RepoNotFound"), "is not a public model"),
        (refused(401), "is not a public model"),
        (refused(404), "is not a public model"),
        (refused(404, "EntryNotFound"), "has no config.json"),
        (refused(503), "answered 503"),
        (urllib.error.URLError("Name or service not known"), "cannot be reached from here (Name or service"),
        (urllib.error.URLError(OSError(-2, "Name or service not known")), "from here (Name or service"),
        (TimeoutError("timed out"), "cannot be reached"),
        (b"<html>", "is not a JSON object"),
        (b"[1]", "is not a JSON object"),
        (b"\xff\xfe\x00", "is not a JSON object"),
        (b" " * (hub.MOST_BYTES + 1), "larger than 1 MiB"),
    ],
)
def test_says_why_in_one_line(answer, outcome, said):
    answer(outcome)
    with pytest.raises(hub.HubError, match=r"^model: ") as raised:
        hub.fetch_config("owner/name")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "model_id",
    [
        "gpt2",
        "a/b/c",
        "../etc/passwd",
        "owner/..",
        "owner/name?x",
        "https://example.org/a",
        "-a/b",
        "",
        "a/" + "b" * 97,
    ],
)
def test_asks_nobody_about_what_is_not_an_id(answer, model_id):
    opener = answer(b"{}")
    with pytest.raises(hub.HubError, match="not a Hub id"):
        hub.fetch_config(model_id)
    assert opener.urls == []


def test_offline_is_said_and_nothing_asked(answer, monkeypatch):
    opener = answer(b"{}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(hub.HubError, match="HF_HUB_OFFLINE is set"):
        hub.fetch_config("owner/name")
    assert opener.urls == []


def test_gives_up_at_the_deadline(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(hub, "_download", lambda *_: released.wait(30) and b"{}")
    with pytest.raises(hub.HubError, match=r"did not answer for owner/name within 0\.05 s"):
        hub.fetch_config("owner/name", timeout_seconds=0.05)
    released.set()


@pytest.mark.parametrize(
    "target", ["http://huggingface.co/x", "https://example.org/x", "https://huggingface.co.evil/x"]
)
def test_redirects_stay_on_the_hub(target):
    request = urllib.request.Request("https://huggingface.co/a/b/resolve/main/config.json")
    with pytest.raises(hub.HubError, match="not followed"):
        hub._SameHost().redirect_request(request, io.BytesIO(), 307, "", email.message.Message(), target)
    kept = hub._SameHost().redirect_request(
        request, io.BytesIO(), 307, "", email.message.Message(), "https://huggingface.co/api/resolve-cache/x"
    )
    assert kept is not None
