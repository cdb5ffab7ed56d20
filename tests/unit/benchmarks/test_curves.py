"""Check the growth curves' pictures: well-formed, on the right scale, with labels that can be read."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from benchmarks.curves import Line, label_heights, svg

SVG = "{http://www.w3.org/2000/svg}"


def picture(*lines: Line) -> ET.Element:
    return ET.fromstring(svg("a <title> & more", lines, x="receivers", y="ms"))


def texts(root: ET.Element) -> list[str]:
    return [(element.text or "").strip() for element in root.iter(f"{SVG}text")]


def test_names_are_escaped_and_each_line_has_a_label() -> None:
    root = picture(Line("a < b", [(1, 1), (10, 10)]), Line("c & d", [(1, 2), (10, 30)]))
    found = texts(root)
    assert found[0] == "a <title> & more"
    assert {"a < b", "c & d", "receivers", "ms"} <= set(found)


def test_ten_times_as_much_is_as_far_on_each_axis() -> None:
    root = picture(Line("linear", [(100, 0.1), (1_000, 1), (10_000, 10)]))
    places = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")]
    across = [after[0] - before[0] for before, after in pairwise(places)]
    up = [before[1] - after[1] for before, after in pairwise(places)]
    assert across[0] == pytest.approx(across[1], abs=0.2)
    assert up[0] == pytest.approx(up[1], abs=0.2)
    assert across[0] > 0
    assert up[0] > 0
    assert {"100", "1,000", "10,000", "0.1", "1", "10"} <= set(texts(root))


def test_one_point_is_a_picture_too() -> None:
    assert len(list(picture(Line("alone", [(100, 100)])).iter(f"{SVG}circle"))) == 1


def test_a_dashed_line_is_dashed() -> None:
    root = picture(Line("aim", [(1, 1), (10, 1)], dashed=True))
    assert [path.attrib["fill"] for path in root.iter(f"{SVG}path") if "stroke-dasharray" in path.attrib] == ["none"]


@pytest.mark.parametrize("points", [[], [(1, 0)], [(0, 1)]])
def test_nothing_and_nought_have_no_place_on_a_logarithmic_axis(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        picture(Line("none", points))


def test_labels_do_not_overlap_and_keep_their_order() -> None:
    wanted = [200.0, 201.0, 50.0, 200.5, 349.0, 350.0]
    heights = label_heights(wanted)
    assert sorted(range(6), key=wanted.__getitem__) == sorted(range(6), key=heights.__getitem__)
    assert min(after - before for before, after in pairwise(sorted(heights))) >= 15
    assert max(heights) <= 350
    assert heights[2] == 50
