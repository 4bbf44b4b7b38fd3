"""Published rows beside predictions: each is found by its own job, and only timings that say something count."""

from trainmem.fit.measured import rows_of, timed_steps
from trainmem.results import published_rows, published_rows_where, throughput_doubt


def test_every_measured_step_is_found_by_its_job_on_any_device():
    steps = [row for row in published_rows() if row.kind == "step" and row.outcome in ("ok", "oom")]
    assert len(steps) > 100
    for row in steps:
        assert row in rows_of(row.job.with_(device="l40s")), row.id
    assert not rows_of(steps[0].job.with_(micro_batch=steps[0].job.micro_batch + 97))


def test_timed_steps_are_all_that_have_seconds_nobody_doubts():
    wanted = {
        row.id
        for row in published_rows()
        if row.kind == "step" and row.step_seconds and not throughput_doubt(row)
    }
    assert {row.id for _, row in timed_steps()} == wanted


def test_rows_read_because_of_their_text_are_all_that_there_are():
    found = [row for row in published_rows() if row.kind == "largest_batch"]
    assert found == list(published_rows_where(lambda data: True, saying=[r'"kind":\s*"largest_batch"']))
    assert list(published_rows()) == list(published_rows_where(lambda data: True))
