"""A family's curve: real models at their places, and sizes between that are models too."""

from itertools import pairwise

import pytest

from trainmem.fit.family import FAMILIES, family, ladder
from trainmem.job import JobError, TrainingJob
from trainmem.model import architecture_of, resolve
from trainmem.model.catalogue import find

LIKE = TrainingJob(model="gpt2-124m", micro_batch=2, sequence_length=512)


@pytest.mark.parametrize("key", [found.key for found in FAMILIES])
def test_parameters_grow_in_small_steps(key):
    sizes = [rung.parameters for rung in ladder(key)]
    assert len(ladder(key)) == len(sizes) > 20
    steps = [high / low for low, high in pairwise(sizes)]
    assert min(steps) > 1
    assert max(steps) < 1.06


@pytest.mark.parametrize("key", [found.key for found in FAMILIES])
def test_the_size_near_a_number_of_parameters(key):
    rungs = ladder(key)
    for index, rung in enumerate(rungs):
        assert abs(rungs.near(rung.parameters) - index) <= 1
    assert rungs.near(rungs[0].parameters / 10) == 0
    assert rungs.near(rungs[-1].parameters * 10) == len(rungs) - 1


@pytest.mark.parametrize("found", FAMILIES, ids=lambda found: found.key)
def test_the_members_are_rungs(found):
    rungs = {rung.name: rung for rung in ladder(found.key) if rung.name}
    assert tuple(rungs) == found.members
    for name, rung in rungs.items():
        assert rung.parameters == find(name).architecture("causal_lm").parameter_count


@pytest.mark.parametrize("key", [found.key for found in FAMILIES])
def test_a_size_between_is_what_its_config_says(key):
    rungs = ladder(key)
    for rung in rungs[:: max(1, len(rungs) // 12)]:
        job = rung.job(LIKE)
        assert resolve(job).architecture.parameter_count == rung.parameters
        assert (job.micro_batch, job.sequence_length) == (2, 512)
        assert job.model == rung.name


@pytest.mark.parametrize("key", [found.key for found in FAMILIES])
def test_sizes_between_keep_the_proportions_of_their_neighbours(key):
    shapes = [architecture_of(rung.config) for rung in ladder(key)]
    ends = [architecture_of(rung.config) for rung in ladder(key).anchors]
    ratios = [end.intermediate_size / end.hidden_size for end in ends]
    for shape in shapes:
        assert min(end.layers for end in ends) <= shape.layers <= max(end.layers for end in ends)
        ratio = shape.intermediate_size / shape.hidden_size
        assert 0.6 * min(ratios) < ratio < 1.5 * max(ratios)


def test_gpt2_goes_on_to_gpt3():
    last = ladder("gpt2")[-1]
    assert last.name is None
    assert last.parameters == pytest.approx(175e9, rel=0.01)


def test_a_ladder_is_a_sequence():
    rungs = ladder("llama3")
    assert rungs[-1] is rungs[len(rungs) - 1]
    assert rungs[1:3] == (rungs[1], rungs[2])
    with pytest.raises(IndexError):
        rungs[len(rungs)]


def test_another_family_is_one_line():
    with pytest.raises(JobError, match=r'family: "nope" is not one of llama3, '):
        family("nope")
