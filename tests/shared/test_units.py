import pytest

from trainmem.units import GIB, format_bytes, format_gib, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GIB),
        ("80 GB", 80 * 10**9),
        ("19.8e9", 19_800_000_000),
        ("1,024 MiB", GIB),
        (512, 512),
        ("0", 0),
        ("2kb", 2000),
    ],
)
def test_sizes_are_read_in_either_kind_of_unit(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-3 GiB", "12 parsecs", "nan", "1e999", True, None, [1]])
def test_a_size_that_is_none_names_the_field(text: object) -> None:
    with pytest.raises(ValueError, match=r"^budget: "):
        parse_bytes(text, field="budget")  # type: ignore[arg-type]


def test_three_significant_digits() -> None:
    assert format_gib(47_720_312_832) == "44.4 GiB"
    assert format_gib(0) == "0 GiB"
    assert format_gib(5_000_000) == "0.0047 GiB"
    assert format_gib(700 * GIB) == "700 GiB"


def test_pytorchs_own_wording() -> None:
    assert format_bytes(4_198_498_304) == "3.91 GiB"
    assert format_bytes(100) == "100 bytes"
