"""The band of a sum's errors: the worst of the measured steps like a job."""

from trainmem.capacity import WORST, sum_answer
from trainmem.device import device
from trainmem.estimate import estimate
from trainmem.job import Lora, Sharding, TrainingJob
from trainmem.results import band, typical_error
from trainmem.results.band import _ALIKE, _FEWEST_ROWS
from trainmem.results.likeness import TRAITS, traits
from trainmem.results.published import predictions
from trainmem.units import GIB
from trainmem.verdict import verdict

JOB = TrainingJob(
    model="qwen2.5-7b",
    micro_batch=8,
    sequence_length=2048,
    lora=Lora(),
    checkpointing="full",
    sharding=Sharding(mode="fsdp2", data_parallel=2),
    device="h100-80gb",
)


def _errors(job, alike):
    known, own = predictions(), dict(zip(TRAITS, traits(job), strict=True))
    for row, values in known.traits_of_row.items():
        error, row_traits = known.error(row, "whiteboard"), dict(zip(TRAITS, values, strict=True))
        if error is not None and all(row_traits[name] == own[name] for name in alike):
            yield error


def test_the_band_is_the_worst_of_enough_steps_like_the_job():
    for job in (JOB, JOB.with_(checkpointing="none"), JOB.with_(checkpointing="selective")):
        found = band(100 * GIB, job)
        errors = [*_errors(job, found.alike)]
        assert (found.least_error, found.most_error, found.rows) == (min(errors), max(errors), len(errors))
        assert found.rows >= _FEWEST_ROWS
        longer = _ALIKE[: len(found.alike) + 1]
        assert longer == found.alike or len([*_errors(job, longer)]) < _FEWEST_ROWS
        assert found.least_error <= 0 <= found.most_error
        assert typical_error(job, "whiteboard") <= max(-found.least_error, found.most_error)
    assert band(GIB, JOB).alike == ("checkpointing",)


def test_nearly_every_step_lies_in_the_band_of_the_others():
    """Each row left out once, as the docstring of `band` says."""
    known = predictions()
    rows = [
        (dict(zip(TRAITS, values, strict=True)), error)
        for row, values in known.traits_of_row.items()
        if (error := known.error(row, "whiteboard")) is not None
    ]
    outside = 0
    for at, (own, error) in enumerate(rows):
        others = [row for other, row in enumerate(rows) if other != at]
        for length in range(len(_ALIKE), -1, -1):
            like = [e for found, e in others if all(found[n] == own[n] for n in _ALIKE[:length])]
            if len(like) >= _FEWEST_ROWS:
                break
        outside += not min(like) <= error <= max(like)
    assert outside / len(rows) < 0.05


def test_a_verdict_of_a_sum_says_which_error_it_goes_by():
    found = verdict(JOB, estimate(JOB, "whiteboard"), device("h100-80gb"))
    assert found.note.startswith(f"{WORST}: on ")
    assert "measured steps of the same checkpointing such a figure was between" in found.note


def test_a_sum_with_room_for_its_worst_error_probably_fits():
    answer = estimate(JOB, "whiteboard")
    found = band(answer.peak_allocated_bytes, JOB)
    assert sum_answer(answer, found.high_bytes) == "probably_fits"
    assert sum_answer(answer, found.high_bytes - 1) == sum_answer(answer, found.low_bytes) == "unsure"
    assert sum_answer(answer, found.low_bytes - 1) == "probably_out_of_memory"
