import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmem.allocator import AllocatorSettings
from trainmem.units import GIB, MIB

DIVISIONS = st.sampled_from([0, 1, 2, 4, 8, 16])


def test_an_empty_string_is_the_default():
    assert AllocatorSettings.parse("") == AllocatorSettings()
    assert str(AllocatorSettings()) == ""


def test_every_option_is_read():
    settings = AllocatorSettings.parse(
        "max_split_size_mb:128, expandable_segments:True ,garbage_collection_threshold:0.8,"
        "roundup_power2_divisions:[1:2,4:8,>:4],per_process_memory_fraction:0.5,large_segment_size_mb:40,"
        "max_non_split_rounding_mb:64,pinned_num_register_threads:8,backend:native"
    )
    assert settings == AllocatorSettings(
        max_split_size_bytes=128 * MIB,
        max_non_split_rounding_bytes=64 * MIB,
        roundup_power2_divisions=(2, 0, 8, *[4] * 13),
        garbage_collection_threshold=0.8,
        expandable_segments=True,
        large_segment_size_bytes=40 * MIB,
        per_process_memory_fraction=0.5,
    )


def test_the_first_interval_of_a_list_holds_below_it_too():
    settings = AllocatorSettings.parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert settings.roundup_power2_divisions == (*[1] * 9, 2, 4, *[8] * 5)


@given(
    max_split=st.none() | st.integers(20, 4096),
    rounding=st.integers(20, 200),
    divisions=st.lists(DIVISIONS, min_size=16, max_size=16) | DIVISIONS.map(lambda value: [value] * 16),
    threshold=st.floats(0, 0.99),
    expandable=st.booleans(),
    segment=st.integers(11, 200),
    fraction=st.floats(0.01, 1),
)
def test_settings_print_what_reads_back(
    max_split, rounding, divisions, threshold, expandable, segment, fraction
):
    settings = AllocatorSettings(
        max_split_size_bytes=None if max_split is None else max_split * MIB,
        max_non_split_rounding_bytes=rounding * MIB,
        roundup_power2_divisions=tuple(divisions),
        garbage_collection_threshold=threshold,
        expandable_segments=expandable,
        large_segment_size_bytes=segment * MIB,
        per_process_memory_fraction=fraction,
    )
    assert AllocatorSettings.parse(str(settings)) == settings


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("max_split_size_mb:10", "max_split_size_bytes: 10485760"),
        ("max_non_split_rounding_mb:1", "max_non_split_rounding_bytes: 1048576"),
        ("large_segment_size_mb:10", "large_segment_size_bytes: 10485760"),
        ("garbage_collection_threshold:1.5", "garbage_collection_threshold: 1.5"),
        ("per_process_memory_fraction:0", "per_process_memory_fraction: 0.0"),
        ("roundup_power2_divisions:3", "roundup_power2_divisions"),
        ("roundup_power2_divisions:[3:2]", "roundup_power2_divisions"),
        ("expandable_segments:true", "expandable_segments: cannot read 'true'"),
        ("backend:cudaMallocAsync", "backend: 'cudaMallocAsync'"),
        ("speed:11", "'speed' is not an option"),
        ("expandable_segments", "cannot read 'expandable_segments'"),
    ],
)
def test_wrong_settings_are_refused_by_name(text, names):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refusal:
        AllocatorSettings.parse(text)
    assert names in str(refusal.value)


def test_power_of_two_divisions_round_to_their_step():
    settings = AllocatorSettings.parse("roundup_power2_divisions:4")
    assert settings.rounded(1200 * MIB) == 1280 * MIB
    assert settings.rounded(1 * GIB) == 1 * GIB
    # Up to 512 bytes a division there is nothing to divide.
    assert settings.rounded(1500) == 1536


@pytest.mark.torch
@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("max_split_size_mb:21", True),
        ("max_split_size_mb:10", False),
        ("max_non_split_rounding_mb:10", False),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", True),
        ("roundup_power2_divisions:3", False),
        ("large_segment_size_mb:11", True),
        ("large_segment_size_mb:10", False),
        ("garbage_collection_threshold:1.0", False),
        ("expandable_segments:true", False),
    ],
)
def test_pytorch_allows_and_refuses_the_same(text, is_allowed):
    torch = pytest.importorskip("torch")
    before = torch._C._accelerator_getAllocatorSettings()
    for read in (AllocatorSettings.parse, torch._C._accelerator_setAllocatorSettings):
        if is_allowed:
            read(text)
        else:
            with pytest.raises(ValueError):  # noqa: PT011 - PyTorch's words are its own
                read(text)
    torch._C._accelerator_setAllocatorSettings(before)
