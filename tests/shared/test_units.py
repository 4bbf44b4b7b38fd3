import pytest

from trainmem.units import GIB, format_bytes, format_gib, parse_bytes, parse_number


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


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-3 GiB", "12 parsecs", "nan", "1e999", "1_", "1,", "1__0", "٣", "9" * 5000, None, [1], True],
)
def test_a_size_that_is_none_names_the_field(text: object) -> None:
    with pytest.raises(ValueError, match=r"^budget: "):
        parse_bytes(text, field="budget")  # type: ignore[arg-type]


def test_a_number_that_python_would_not_write_out() -> None:
    with pytest.raises(ValueError, match=r"^budget: a number of more than three hundred digits"):
        parse_bytes(10**5000, field="budget")


@pytest.mark.parametrize(
    ("text", "number"),
    [("8", 8), (" 8.0 ", 8), ("1e3", 1000), ("1,024", 1024), ("1_000.5", 1000.5), ("-4", -4)],
)
def test_numbers_as_people_write_them(text: str, number: float) -> None:
    assert parse_number(text) == number


@pytest.mark.parametrize("text", ["", "1_", "_1", "1,,0", ",8", "nan", "inf", "0x10", "٣", "8 8"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        parse_number(text)


def test_three_significant_digits() -> None:
    assert format_gib(47_720_312_832) == "44.4 GiB"
    assert format_gib(0) == "0 GiB"
    assert format_gib(5_000_000) == "0.0047 GiB"
    assert format_gib(700 * GIB) == "700 GiB"


def test_pytorchs_own_wording() -> None:
    assert format_bytes(4_198_498_304) == "3.91 GiB"
    assert format_bytes(100) == "100 bytes"
