"""The palette keeps its promises: readable on both pages, apart for every kind of sight."""

from itertools import pairwise

import pytest

from trainmem.buckets import BUCKETS
from trainmem.palette import ACCENT, ACCENT_DARK, BUCKET_COLOURS, LABEL_COLOURS

WHITE, DARK = "#ffffff", "#14161a"
# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
SIGHT = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def linear(colour):
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)


def contrast(one, other):
    lights = sorted(
        sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(x), strict=True)) for x in (one, other)
    )
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def times(matrix, vector):
    return tuple(sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix)


def oklab(colour, sight):
    rgb = [min(1, max(0, c)) for c in times(SIGHT[sight], linear(colour))]
    cone = times(
        (
            (0.4122214708, 0.5363325363, 0.0514459929),
            (0.2119034982, 0.6806995451, 0.1073969566),
            (0.0883024619, 0.2817188376, 0.6299787005),
        ),
        rgb,
    )
    return times(
        (
            (0.2104542553, 0.7936177850, -0.0040720468),
            (1.9779984951, -2.4285922050, 0.4505937099),
            (0.0259040371, 0.7827717662, -0.8086757660),
        ),
        [c ** (1 / 3) for c in cone],
    )


def distance(one, other, sight):
    a, b = oklab(one, sight), oklab(other, sight)
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5


def test_every_bucket_has_one_colour_in_the_one_order():
    assert tuple(BUCKET_COLOURS) == tuple(LABEL_COLOURS) == BUCKETS
    assert len(set(BUCKET_COLOURS.values())) == len(BUCKETS)


@pytest.mark.parametrize("bucket", BUCKETS)
def test_fills_stand_out_from_both_pages_and_carry_their_label(bucket):
    assert contrast(BUCKET_COLOURS[bucket], WHITE) >= 2.2
    assert contrast(BUCKET_COLOURS[bucket], DARK) >= 2.2
    assert contrast(BUCKET_COLOURS[bucket], LABEL_COLOURS[bucket]) >= 4.5


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_stay_apart(sight):
    scale = 0.8 if sight == "tritanopia" else 1
    colours = list(BUCKET_COLOURS.values())
    for i, one in enumerate(colours):
        assert all(distance(one, other, sight) >= 0.09 * scale for other in colours[i + 1 :])
    assert all(distance(one, other, sight) >= 0.16 * scale for one, other in pairwise(colours))


def test_the_accent_reads_as_text():
    assert contrast(ACCENT, WHITE) >= 4.5
    assert contrast(ACCENT_DARK, DARK) >= 4.5
