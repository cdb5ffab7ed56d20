"""Test the overview's picture: what its boxes and arrows say, where they are, and that no name breaks out of it."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.status_page.addresses import DagsterPages
from orchestration.status_page.flow import Flow, FlowRows, Layer, flow
from orchestration.status_page.flow_layout import HEIGHT, Drawing, crossings, cut, layers, narrow, wide
from orchestration.status_page.rendering import Renderer
from tracker_store.batches.readers import ReaderLag
from tracker_store.reports.flow import FlowOutput, FlowStream, StreamBatch
from tracker_store.reports.status import PipelineStatus, ReceiverStatus, StreamLag

if TYPE_CHECKING:
    from collections.abc import Sequence

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
# The tags of a picture, and nothing else.
TAGS = {"svg", "title", "desc", "g", "path", "text", "a", "rect"}
NAMES = st.one_of(
    st.sampled_from(
        ['"><script>alert(1)</script>', "'/><a href=javascript:x>", "</title></svg>", "&lt;b&gt;", "支払い" * 40]
    ),
    # NUL is in no name, and a carriage return is a newline to a parser of HTML.
    st.text(st.characters(exclude_characters="\x00\r", exclude_categories=["Cs"]), min_size=1, max_size=80),
)


def stream(name: str, *, is_read: bool = True) -> FlowStream:
    return FlowStream(name, "kafka", is_read)


def receiver(name: str, number: int = 1, **changed: Any) -> ReceiverStatus:  # noqa: ANN401  any of its fields
    found = ReceiverStatus(name, number, number, "ACTIVE", "running", "", "a", "h", 1, 9, 100, 1_000, NOON, 0, None, 0)
    return replace(found, **changed)


def pipeline(name: str, number: int, **changed: Any) -> PipelineStatus:  # noqa: ANN401  any of its fields
    found = PipelineStatus(name, "RUNNING", NOON, 10 * SECOND, NOON, 0, 0, 0, None, 0, 0, NOON, NOON, None)
    return replace(found, pipeline_id=number, **changed)


def reader(name: str, of: str, waiting: int = 0) -> ReaderLag:
    return ReaderLag(name, of, waiting, waiting, waiting, NOON if waiting else None, NOON, NOON)


def drawn(
    reads: dict[str, list[str]],
    *,
    receivers: list[ReceiverStatus] | None = None,
    outputs: int = 1,
    lag: timedelta | None = None,
    unread: tuple[str, ...] = (),
    readers: Sequence[ReaderLag] = (),
) -> Flow:
    """Draw pipelines, each with the streams that it reads."""
    names = list(dict.fromkeys(name for streams in reads.values() for name in streams))
    return flow(
        FlowRows(
            now=NOON + 4 * SECOND,
            streams=[*map(stream, names), *(stream(name, is_read=False) for name in unread)],
            receivers=[receiver(name) for name in names] if receivers is None else receivers,
            pipelines=[pipeline(name, number) for number, name in enumerate(reads)],
            lag=[StreamLag(name, read, 1, 1, 1, lag) for name, streams in reads.items() for read in streams],
            readers=readers,
            outputs=[
                FlowOutput(number, f"{name}_{n}", "parquet", 120, SECOND * 0, NOON, None)
                for number, name in enumerate(reads)
                for n in range(outputs)
            ],
            newest={},
            by_stream=[],
        ),
        most=50,
    )


@st.composite
def pictures(draw: st.DrawFn) -> Flow:
    names = draw(st.lists(NAMES, min_size=2, max_size=12, unique=True))
    streams = names[: draw(st.integers(1, len(names) - 1))]
    reads = {
        name: draw(st.lists(st.sampled_from(streams), min_size=1, max_size=4, unique=True))
        for name in names[len(streams) :]
    }
    nothing_reads = tuple(name for name in streams if not any(name in read for read in reads.values()))
    readers = [reader(name, draw(st.sampled_from(streams))) for name in draw(st.lists(NAMES, max_size=2, unique=True))]
    return drawn(reads, outputs=draw(st.integers(0, 3)), lag=3 * SECOND, unread=nothing_reads, readers=readers)


class Parsed(HTMLParser):
    """What a browser makes of a picture: its elements with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def of(self, name: str) -> list[dict[str, str]]:
        """Return the attributes of the elements that have one of this name."""
        return [attributes for _, attributes in self.elements if name in attributes]


def rendered(drawing: Drawing, said: str = "said") -> Parsed:
    template = Renderer("host:1", DagsterPages(None))._environment.get_template("flow.html")
    return Parsed(str(template.module.picture(drawing, said)))  # type: ignore[attr-defined]


@given(pictures())
@settings(max_examples=40, deadline=None)
def test_each_arrow_ends_at_two_boxes_and_no_name_breaks_out(picture: Flow) -> None:
    for drawing in (wide(picture), narrow(picture)):
        page = rendered(drawing)
        assert {tag for tag, _ in page.elements} <= TAGS
        boxes = {each["data-box"]: each for each in page.of("data-box")}
        assert sorted(each["aria-label"] for each in boxes.values()) == sorted(box.said for box in picture.boxes)
        assert all(each["href"].startswith("/status/") for each in boxes.values())
        arrows = page.of("data-from")
        assert len(arrows) == len(picture.arrows)
        assert {end for each in arrows for end in (each["data-from"], each["data-to"])} <= boxes.keys()
        places = {box.number: box for box in drawing.boxes}
        for arrow in drawing.arrows:
            numbers = [float(number) for number in re.findall(r"-?[\d.]+", arrow.path)]
            assert tuple(numbers[:2]) == arrow.start
            source, target = places[arrow.arrow.source], places[arrow.arrow.target]
            for box, point in ((source, arrow.start), (target, arrow.end)):
                assert box.at.x <= point.x <= box.at.x + box.width
                assert box.at.y <= point.y <= box.at.y + HEIGHT
            assert arrow.end.x == target.at.x
            assert arrow.path.endswith(f"H{arrow.end.x:g}")


@given(pictures())
@settings(max_examples=40, deadline=None)
def test_boxes_are_inside_of_the_picture_and_beside_each_other(picture: Flow) -> None:
    for drawing in (wide(picture), narrow(picture)):
        for box in drawing.boxes:
            assert 0 <= box.at.x < box.at.x + box.width <= drawing.width
            assert 0 <= box.at.y < box.at.y + HEIGHT <= drawing.height
        for one, other in combinations(drawing.boxes, 2):
            apart = abs(one.at.y - other.at.y) >= HEIGHT
            assert apart or one.at.x + one.width <= other.at.x or other.at.x + other.width <= one.at.x


@pytest.mark.parametrize(
    ("reads", "least"),
    [
        ({"a": ["z"], "b": ["y"], "c": ["x"]}, 0),
        ({"a": ["x", "y"], "b": ["y", "z"], "c": ["x"]}, 0),
        # Two streams that two pipelines read cross once, however they are sorted.
        ({"a": ["x", "y"], "b": ["x", "y"]}, 1),
        ({f"p{number:02}": [f"s{(number * 7) % 10}"] for number in range(40)}, 0),
    ],
)
def test_few_arrows_cross(reads: dict[str, list[str]], least: int) -> None:
    picture = drawn(reads)
    order = layers(picture)
    edges = [
        (arrow.source, arrow.target) for arrow in picture.arrows if picture.boxes[arrow.source].layer is Layer.STREAM
    ]
    assert crossings(edges, order[Layer.STREAM], order[Layer.PIPELINE]) == least
    for upper, lower in ((Layer.SOURCE, Layer.STREAM), (Layer.PIPELINE, Layer.OUTPUT)):
        edges = [(arrow.source, arrow.target) for arrow in picture.arrows if picture.boxes[arrow.source].layer is upper]
        assert crossings(edges, order[upper], order[lower]) == 0


def test_boxes_and_arrows_have_rates_lag_and_state() -> None:
    rows = FlowRows(
        readers=[],
        now=NOON + 4 * SECOND,
        streams=[stream("clicks"), stream("stray", is_read=False)],
        receivers=[
            receiver("clicks", 1, unread=12_000, unread_unit="records", source_lag=35 * SECOND, records_per_second=7.0),
            receiver("clicks", 2, unread=34, unread_unit="records", records_per_second=5.5),
            receiver("stray", 3, reason="degraded: the topic is missing"),
        ],
        pipelines=[pipeline("words", 1, quarantined_batches=2)],
        lag=[StreamLag("words", "clicks", 1, 1, 1, 3 * SECOND)],
        outputs=[
            FlowOutput(1, "counts", "parquet", 480, SECOND * 30, NOON, None),
            FlowOutput(1, "totals", "postgres", None, None, None, NOON),
        ],
        newest={},
        by_stream=[StreamBatch(1, NOON, NOON, "clicks", 50)],
    )
    picture = flow(rows, most=50)
    assert [box.said for box in picture.boxes] == [
        "Source kafka: 12,034 records unread",
        "Stream clicks: ACTIVE · 2 of 2 active",
        "Source kafka",
        "Stream stray: degraded · 1 of 1 active",
        "Pipeline words: QUARANTINED · every 10 s",
        "Output counts: parquet · 4.0 s ago",
        "Output totals: FAILED · nothing yet",
    ]
    assert [(arrow.said, arrow.tone) for arrow in picture.arrows] == [
        ("kafka to clicks: 12/s · 35 s behind", "plain"),
        ("kafka to stray", "bad"),
        ("clicks to words: lag 3.0 s", "plain"),
        ("words to counts: 12 rows/s", "plain"),
        ("words to totals", "bad"),
    ]
    assert picture.said.startswith("Sources: 2, streams: 2, pipelines: 1, outputs: 2.")


def test_forty_pipelines_have_all_their_names_and_labels() -> None:
    picture = drawn({f"pipeline_{number}": [f"stream_{number % 9}"] for number in range(40)}, lag=3 * SECOND)
    for drawing in (wide(picture), narrow(picture)):
        assert len(drawing.boxes) == 9 * 2 + 40 * 2
        labels = [arrow.label.at for arrow in drawing.arrows if arrow.label is not None and arrow.label.text]
        assert len(labels) == 80
        assert all(abs(one.y - other.y) >= 12 or abs(one.x - other.x) >= 80 for one, other in combinations(labels, 2))


@pytest.mark.parametrize(
    ("text", "shown"),
    [("short", "short"), ("a" * 60, "a" * 11 + "…"), ("支" * 60, "支" * 5 + "…"), ("", "")],
    ids=["short", "long", "wide", "empty"],
)
def test_a_long_name_is_cut_to_its_box(text: str, shown: str) -> None:
    assert cut(text, 100, per_character=8) == shown


def test_a_reader_stands_among_the_pipelines_with_what_waits_for_it() -> None:
    found = drawn(
        {"words": ["lines"]}, unread=("idle",), readers=[reader("query", "lines", 12), reader("done", "idle")]
    )
    boxes = {box.name: box for box in found.boxes}
    assert boxes["query"].said == "Reader query: reader · 12 waiting"
    assert boxes["done"].said == "Reader done: reader · all is read"
    arrows = {(found.boxes[arrow.source].name, found.boxes[arrow.target].name): arrow.label for arrow in found.arrows}
    assert (arrows["lines", "query"], arrows["idle", "done"]) == ("lag 4.0 s", "")
    assert found.said.startswith("Sources: 2, streams: 2, pipelines: 1, outputs: 1, readers: 2.")
