"""Charts: widths follow the sizes, everything is named in words, and text is only ever text."""

import re
from html.parser import HTMLParser

import pytest

from trainmem.buckets import BUCKETS
from trainmem.units import GIB
from trainmem_space.charts.area import AreaPoint, area
from trainmem_space.charts.bar import Bar, CapacityLine, bars
from trainmem_space.charts.text import cell, size, tick

SPARK = CapacityLine(label="Spark 128 GB · 120 GiB", at_bytes=120 * GIB, chosen=True)


def bar(**sizes):
    total = sum(sizes.values())
    return Bar(caption="now", buckets_bytes=sizes, total_bytes=total, end_bytes=total)


def widths(html):
    pairs = re.findall(r'<i class="(\w+)" style="width:([\d.]+)%"', html)
    return {name: float(width) for name, width in pairs}


class Balanced(HTMLParser):
    VOID = frozenset({"input", "br"})

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_balanced(html):
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []


def test_segments_are_in_the_one_order_and_in_proportion():
    html = bars([bar(weights=30 * GIB, activations=60 * GIB)], [SPARK])
    found = widths(html)
    assert tuple(found) == (*BUCKETS, "unused")
    assert found["activations"] == pytest.approx(2 * found["weights"], abs=0.01)
    assert found["weights"] == pytest.approx(100 * 30 / (120 * 1.04), abs=0.01)
    check_balanced(html)


def test_what_does_not_fit_is_marked_beyond_the_chosen_line():
    html = bars([bar(weights=240 * GIB)], [SPARK])
    left, right = re.search(r'class="over" style="left:([\d.]+)%;right:([\d.]+)%"', html).groups()
    assert float(left) == pytest.approx(50 / 1.04, abs=0.01)
    assert float(right) == pytest.approx(100 - 100 / 1.04, abs=0.01)


def test_what_fits_is_not_marked():
    left, right = re.search(
        r'class="over" style="left:([\d.]+)%;right:([\d.]+)%"', bars([bar(weights=GIB)], [SPARK])
    ).groups()
    assert float(left) + float(right) == pytest.approx(100, abs=0.01)


def test_a_line_far_beyond_the_bars_is_drawn_only_when_chosen():
    far = CapacityLine(label="far", at_bytes=10_000 * GIB)
    assert "far" not in bars([bar(weights=GIB)], [far])
    chosen = CapacityLine(label="far", at_bytes=10_000 * GIB, chosen=True)
    assert "far" in bars([bar(weights=GIB)], [chosen])


def test_the_text_alternative_names_totals_parts_and_lines():
    html = bars([bar(weights=3 * GIB, logits=GIB)], [SPARK])
    said = re.search(r'aria-label="([^"]+)"', html)[1]
    assert "4.00 GiB" in said
    assert "weights 3.00 GiB" in said
    assert "Spark 128 GB · 120 GiB" in said


def test_an_empty_bar_is_a_bar():
    html = bars([bar()], [SPARK])
    assert set(widths(html).values()) == {0.0}
    check_balanced(html)


def test_labels_cannot_be_markup():
    evil = CapacityLine(label="<img src=x onerror=alert(1)>", at_bytes=GIB)
    html = bars([bar(weights=GIB)], [evil])
    assert "<img" not in html
    check_balanced(html)


def points():
    return [
        AreaPoint(x=0.0, phase="forward", buckets_bytes={"weights": 2 * GIB}),
        AreaPoint(x=0.5, phase="forward", buckets_bytes={"weights": 2 * GIB, "activations": 6 * GIB}),
        AreaPoint(x=0.5, phase="backward", buckets_bytes={"weights": 2 * GIB, "logits": 2 * GIB}),
        AreaPoint(x=1.0, phase="zero_grad", buckets_bytes={"weights": 2 * GIB}),
    ]


def test_the_area_has_a_path_a_bucket_and_a_ribbon_as_wide_as_the_chart():
    html = area(points(), peak_label="peak 8.00 GiB")
    paths = dict(re.findall(r'<path class="(\w+)" d="([^"]*)"', html))
    assert tuple(paths) == BUCKETS
    assert paths["weights"].startswith("M0 ")
    assert paths["gradients"] == ""
    ribbon = re.findall(r'<span style="width:([\d.]+)%" title="(\w+ ?\w*)"', html)
    assert re.findall(r'data-phase="(\w+)"', html) == ["forward", "backward", "zero_grad"]
    assert [name for _, name in ribbon] == ["forward", "backward", "zero grad"]
    assert sum(float(width) for width, _ in ribbon) == pytest.approx(100, abs=0.01)
    assert 'class="tm-peak" style="left:50.000%' in html
    check_balanced(html)


def test_a_limit_is_drawn_where_it_is_near():
    near = CapacityLine(label="near", at_bytes=10 * GIB)
    far = CapacityLine(label="far", at_bytes=100 * GIB)
    assert "near" in area(points(), peak_label="", limit=near)
    assert "far" not in area(points(), peak_label="", limit=far)


def test_a_limit_s_label_is_never_in_the_curve_s_way():
    peak = max(sum(point.buckets_bytes.values()) for point in points())
    above = area(points(), peak_label="", limit=CapacityLine(label="its label", at_bytes=peak))
    assert "<span>its label</span>" in above
    assert "tm-limit-key" not in above
    crossed = area(points(), peak_label="", limit=CapacityLine(label="its label", at_bytes=peak - 1))
    assert "<span>its label</span>" not in crossed
    assert crossed.index("its label</p>") < crossed.index("tm-canvas")


def test_paths_of_a_long_step_stay_small():
    many = [
        AreaPoint(x=i / 239, phase="forward", buckets_bytes=dict.fromkeys(BUCKETS, i * GIB))
        for i in range(240)
    ]
    assert len(area(many, peak_label="peak")) < 60_000


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0"), (GIB // 2, "0.5"), (20 * GIB, "20"), (100 * GIB, "100"), (1000 * GIB, "1,000")],
)
def test_ticks_have_no_needless_digits(size_bytes, text):
    assert tick(size_bytes) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (512, "&lt;0.001 GiB"),
        (GIB // 999, "0.001 GiB"),
        (GIB // 16 + 1, "0.063 GiB"),
        (GIB // 4, "0.250 GiB"),
        (44 * GIB, "44.0 GiB"),
        (0, "0 GiB"),
        (None, "–"),
    ],
)
def test_a_column_of_gib_has_one_unit(size_bytes, text):
    html = cell(size_bytes)
    assert re.sub(r"<[^>]*>", "", html) == text
    assert not size_bytes or f'title="{size_bytes:,} bytes"' in html


def test_sizes_carry_their_exact_bytes():
    assert size(1234567890) == '<span class="tm-num" title="1,234,567,890 bytes">1.15 GiB</span>'
    assert "–" in size(None)
