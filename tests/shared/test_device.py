"""Devices: the facts agree with each other, names are found, wrong ones get a hint."""

from __future__ import annotations

import pytest

from trainmem.device import ASSUMED_CONTEXT_BYTES, Device, device, devices
from trainmem.job import JobError, TrainingJob
from trainmem.units import GB, GIB, MIB


@pytest.mark.parametrize("item", devices(), ids=lambda item: item.name)
def test_figures_agree_with_each_other(item: Device) -> None:
    assert 0 < item.usable_bytes <= item.visible_bytes <= item.visible_high_bytes
    # Chips count in GiB what the box calls GB.
    assert 0.85 * item.marketed_bytes < item.visible_bytes < item.marketed_bytes / GB * GIB + 1
    assert item.bandwidth_bytes_per_second > 100 * GB
    assert item.sources
    assert all(source.strip() for source in item.sources)
    assert item.name == item.name.lower()
    assert bool(item.os_share_bytes) == item.integrated
    if item.cuda:
        assert item.compute_capability is not None
        assert item.cublas_workspace_bytes in (32 * MIB, 8_519_680)
        assert (item.cublas_workspace_bytes == 32 * MIB) == (item.compute_capability >= (9, 0))
        assert 0 < item.allocator_limit_bytes < item.usable_bytes
    else:
        assert item.allocator_limit_bytes == 0
        assert any("no CUDA" in note for note in item.notes)


def test_names_and_aliases_are_one_of_a_kind() -> None:
    names = [name for item in devices() for name in (item.name, *item.aliases)]
    assert len(names) == len(set(names))


def test_the_spark_is_sold_as_128_gb_and_shows_less() -> None:
    spark = device("spark")
    assert spark.marketed_bytes == 128 * GB
    assert round(spark.visible_bytes / GIB, 1) == 119.7
    assert round(spark.visible_high_bytes / GIB, 1) == 121.7
    assert spark.os_share_bytes == 10 * GIB
    assert spark.integrated
    assert any("assumed" in note for note in spark.notes)


def test_a_measured_context_wins_over_the_assumed_one() -> None:
    h200 = device("h200")
    assert h200.context_bytes == 619 * MIB
    assert h200.allocator_limit_bytes == h200.visible_bytes - 619 * MIB
    l4 = device("l4")
    assert l4.context_bytes is None
    assert l4.allocator_limit_bytes == l4.visible_bytes - ASSUMED_CONTEXT_BYTES


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H100-80GB", "h100-80gb"),
        (" RTX 4090 ", "rtx-4090"),
        ("rtx_pro_6000", "rtx-pro-6000"),
        ("A100", "a100-80gb"),
    ],
)
def test_found_in_any_spelling(name: str, found: str) -> None:
    assert device(name).name == found


def test_the_default_device_of_a_job_is_known() -> None:
    assert device(TrainingJob(model="gpt2-124m").device).name == "spark"


@pytest.mark.parametrize("name", ["h1000", "", "rtx-4900", "x" * 5000])
def test_an_unknown_device_is_refused_with_the_names_allowed(name: str) -> None:
    with pytest.raises(JobError, match=r"^device: ") as error:
        device(name)
    assert "h100-80gb" in str(error.value)
    assert "\n" not in str(error.value)
