"""A prediction laid beside a snapshot says whose it is."""

from types import SimpleNamespace

import pytest
from starlette.datastructures import QueryParams

from trainmem.job import TrainingJob
from trainmem.snapshot.summary import summary_of_estimate
from trainmem_space import answers
from trainmem_space.tabs.snapshot import _compare_prediction

JOB = TrainingJob(model="gpt2-124m", micro_batch=2, sequence_length=128, device="h200")


@pytest.mark.parametrize("can_be_replayed", [True, False])
def test_the_job_that_was_predicted_is_named(monkeypatch, can_be_replayed):
    monkeypatch.setattr(answers, "replayable", lambda job: can_be_replayed)
    file = summary_of_estimate(answers.answer(TrainingJob(model="gpt2-355m"), "fast").to_json(), "theirs")
    request = SimpleNamespace(query_params=QueryParams())
    *_, (status, comparison, _) = _compare_prediction(file.to_json(), JOB.to_json(), request)
    assert "the Calculator's job, gpt2-124m, micro batch 2, sequence length 128" in status
    assert "It need not be the job that the file recorded." in status
    assert "predicted" in comparison
