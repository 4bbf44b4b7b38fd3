"""The app keeps its promises: nothing leaves the machine, the API answers JSON, a registry makes the tabs."""

import json
import os
import urllib.error
import urllib.request

import pytest

import trainmem_space
from trainmem.buckets import BUCKETS
from trainmem_space import api
from trainmem_space.server import launch_settings
from trainmem_space.tabs import TABS


def fetch(url, data=None):
    body = json.dumps(data).encode() if data is not None else None
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_nothing_is_reported_to_anyone():
    assert trainmem_space.__doc__
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    settings = launch_settings()
    for name in ("share", "ssr_mode", "run_history", "enable_monitoring", "pwa", "mcp_server"):
        assert settings[name] is False, name


def test_every_tab_of_the_registry_has_a_key_and_a_title_of_its_own():
    assert TABS[0].key == "calculator"
    assert len({tab.key for tab in TABS}) == len({tab.title for tab in TABS}) == len(TABS)
    built = [tab.module() for tab in TABS]
    assert all(hasattr(module, "build") for module in built if module is not None)


def test_the_page_shows_the_verdict_before_any_event(app_url):
    """The first answer is part of the page's configuration, so it is drawn with it."""
    components = fetch(f"{app_url}config")["components"]
    verdict = next(part for part in components if part["props"].get("elem_id") == "verdict")
    assert "tm-sentence" in verdict["props"]["value"]


def test_the_server_gives_no_more_than_the_app(app_url):
    config = fetch(f"{app_url}config")
    assert not config.get("analytics_enabled")
    assert not config.get("is_space")
    assert not config.get("pwa")
    for path in ("monitoring", "gradio_api/monitoring", "gradio_api/file=/etc/passwd", "gradio_api/runs"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(app_url + path, timeout=30)
        assert refused.value.code in (401, 403, 404)
        refused.value.close()


def test_there_are_no_tools_and_no_monitoring(app_url):
    assert fetch(f"{app_url}gradio_api/mcp/schema") == []
    assert fetch(f"{app_url}monitoring/summary") == {"functions": {}}


def test_the_api_names_one_endpoint(app_url):
    info = fetch(f"{app_url}gradio_api/info")
    assert list(info["named_endpoints"]) == ["/estimate"]


@pytest.mark.browser
def test_the_page_about_the_api_logs_no_error(visit):
    page = visit()  # which asserts that nothing was logged
    asked = ("**/gradio_api/mcp/schema", "**/monitoring/summary")
    with page.expect_response(asked[0]) as schema, page.expect_response(asked[1]) as summary:
        page.get_by_role("button", name="Use via API").click()
    assert (schema.value.status, summary.value.status) == (200, 200)


def call(app_url, job):
    return fetch(f"{app_url}gradio_api/run/estimate", {"data": [job]})["data"][0]


def test_the_api_answers_as_the_command_line_does(app_url):
    answer = call(app_url, {"model": "gpt2-774m", "micro_batch": 8})
    assert answer["schema"] == "trainmem.estimate/1"
    assert answer == api.estimate({"model": "gpt2-774m", "micro_batch": 8})
    assert tuple(answer["buckets_at_peak"]) == BUCKETS
    assert sum(answer["buckets_at_peak"].values()) == answer["peak_allocated_bytes"]


def test_a_fault_of_ours_is_a_line_too(monkeypatch):
    def broken(*_):
        raise RuntimeError("secret")

    monkeypatch.setattr(api.answers, "answer", broken)
    assert api.estimate({"model": "gpt2-124m"}) == {"error": "trainmem failed on this job; please report it"}


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"model": "gpt2-774m", "micro_batch": -1}, "micro_batch: -1 is not"),
        ({"model": "nope"}, 'model: "nope" is not'),
        ({"model": "gpt2-774m", "sequence_length": 4096}, "sequence_length: 4,096"),
        ({"config": {"model_type": "llama", "hidden_size": "x"}}, "hidden_size"),
        ({"surprise": 1}, "surprise"),
        ([], "job: "),
        ("text", "job: "),
        (None, "job: "),
    ],
)
def test_wrong_jobs_get_one_line(app_url, job, said):
    answer = call(app_url, job)
    assert list(answer) == ["error"]
    assert said in answer["error"]
    assert "\n" not in answer["error"]
