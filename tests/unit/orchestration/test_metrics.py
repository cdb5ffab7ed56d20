"""Test /metrics: the receivers with series of their own are bounded, and the sums of streams are of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from orchestration.tracker.metrics import MAX_RECEIVERS, prometheus_text
from orchestration.tracker.streaming_progress import Progress, ReceiverProgress
from tracker_store.states import ReceiverState
from tracker_store.streaming_statistics import ReceiverCounters, StreamCodec

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


def receiver(receiver_id: int, stream: str, *, state: ReceiverState = ReceiverState.ACTIVE) -> ReceiverProgress:
    counters = ReceiverCounters(
        receiver_id=receiver_id,
        stream=stream,
        ordinal=receiver_id,
        state=state,
        process_id=None,
        rate_limit=None,
        records=100,
        bytes=1_000,
        kept_bytes=10,
        queued=None if state is ReceiverState.FAILED else 2,
        hindered=receiver_id == 1,
        degraded=receiver_id == 1,
    )
    return ReceiverProgress(counters, 5.0, None, restarts=1, dead_letters=3, replica_problems=0)


def samples(receivers: list[ReceiverProgress], max_receivers: int) -> dict[tuple[str, ...], float]:
    text = prometheus_text(Progress([], receivers, [], [], []), term=None, lease_ages={}, max_receivers=max_receivers)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_the_oldest_receivers_have_series_and_the_others_are_counted() -> None:
    # In the order of the driver log's statement: by name.
    found = samples([receiver(number, stream) for number, stream in [(9, "a"), (1, "b"), (2, "b"), (7, "c")]], 2)
    assert {key[1:] for key in found if key[0] == "forebay_receiver_records_total"} == {("1", "b"), ("2", "b")}
    assert found["forebay_receivers_without_samples",] == 2
    assert {key[1]: value for key, value in found.items() if key[0] == "forebay_stream_records_total"} == {
        "a": 100,
        "b": 200,
        "c": 100,
    }


def test_the_page_grows_with_streams_beyond_the_limit_and_not_with_receivers() -> None:
    pages = [samples([receiver(number, "lines") for number in range(1, last)], 100) for last in (200, 2_000)]
    assert len(pages[0]) == len(pages[1])
    assert pages[1]["forebay_stream_records_total", "lines"] == 1_999 * 100


def test_a_stream_s_sums_are_of_all_its_receivers() -> None:
    found = samples([receiver(1, "lines"), receiver(2, "lines"), receiver(3, "lines", state=ReceiverState.FAILED)], 0)
    assert found["forebay_stream_receivers", "ACTIVE", "lines"] == 2
    assert found["forebay_stream_receivers", "FAILED", "lines"] == 1
    assert found["forebay_stream_receivers", "PAUSED", "lines"] == 0
    assert found["forebay_stream_hindered_receivers", "lines"] == 1
    assert found["forebay_stream_degraded_receivers", "lines"] == 1
    assert found["forebay_stream_bytes_total", "lines"] == 3_000
    assert found["forebay_stream_records_per_second", "lines"] == 15
    assert ("forebay_stream_bytes_per_second", "lines") not in found, "no receiver has a rate yet"
    assert found["forebay_stream_wal_bytes", "lines"] == 30
    assert found["forebay_stream_queue_blocks", "lines"] == 4
    assert found["forebay_stream_restarts_total", "lines"] == 3
    assert found["forebay_stream_dead_letters_total", "lines"] == 9
    assert not any(name.startswith("forebay_receiver_") for name, *_ in found)


def test_what_a_stream_stored_is_counted_by_codec() -> None:
    codecs = [StreamCodec("lines", "lz4", 7, 700), StreamCodec("lines", "none", 3, 600)]
    text = prometheus_text(Progress([], [], [], [], [], codecs), term=None, lease_ages={}).decode()
    for codec, blocks, nbytes in (("lz4", 7, 700), ("none", 3, 600)):
        assert f'forebay_stream_stored_blocks_total{{codec="{codec}",stream="lines"}} {blocks}.0' in text
        assert f'forebay_stream_stored_bytes_total{{codec="{codec}",stream="lines"}} {nbytes}.0' in text


def test_every_receiver_has_series_by_default_until_there_are_very_many() -> None:
    assert samples([receiver(1, "lines")], MAX_RECEIVERS)["forebay_receivers_without_samples",] == 0


def test_labels_are_escaped_and_the_page_is_what_the_client_library_writes() -> None:
    """Write the parsed page with prometheus_client: same metrics, types, help, labels, escapes and order."""
    name = 'a"b\\c\nd\\ne{},='
    receivers = [receiver(number, name if number % 2 else "lines") for number in range(1, 6)]
    text = prometheus_text(Progress([], receivers, [], [], []), term=3, lease_ages={})
    families = list(text_string_to_metric_families(text.decode()))
    assert {sample.labels["stream"] for family in families for sample in family.samples if sample.labels} == {
        name,
        "lines",
    }

    class Parsed:
        def collect(self) -> list[Metric]:
            return families

    registry = CollectorRegistry()
    registry.register(Parsed())
    assert generate_latest(registry) == text
