"""Test /metrics: the receivers with series of their own are bounded, and the sums of streams are of all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from orchestration.tracker.http.metrics import MAX_RECEIVERS, METRICS, metrics_page
from orchestration.tracker.http.streaming_progress import ReceiverProgress, SystemProgress
from tracker_store.reports.state_status import OutputState
from tracker_store.reports.streaming_statistics import ReceiverCounters, StreamCodec
from tracker_store.schema.states import ReceiverState


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
        not_storing=receiver_id == 1,
        degraded=receiver_id == 1,
    )
    return ReceiverProgress(counters, 5.0, None, restarts=1, dead_letters=3, replica_problems=0)


def samples(receivers: list[ReceiverProgress], max_receivers: int) -> dict[tuple[str, ...], float]:
    progress = SystemProgress([], receivers, [], [], [])
    text, _ = metrics_page(progress, term=None, lease_ages={}, max_receivers=max_receivers)
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
    assert found["forebay_stream_degraded_receivers", "storing", "lines"] == 1
    assert found["forebay_stream_degraded_receivers", "source", "lines"] == 0
    assert found["forebay_stream_bytes_total", "lines"] == 3_000
    assert found["forebay_stream_records_per_second", "lines"] == 15
    assert ("forebay_stream_bytes_per_second", "lines") not in found, "no receiver has a rate yet"
    assert found["forebay_stream_wal_bytes", "lines"] == 30
    assert found["forebay_stream_queue_blocks", "lines"] == 4
    assert found["forebay_stream_restarts_total", "lines"] == 3
    assert found["forebay_stream_dead_letters_total", "lines"] == 9
    assert not any(name.startswith("forebay_receiver_") for name, *_ in found)


def test_what_sources_have_is_summed_by_unit_and_the_oldest_counts() -> None:
    said = [receiver(number, "lines") for number in range(1, 5)]
    for number, partitions, unread, unit, lag in (
        (1, 2, 5, "records", 7.5),
        (2, 1, 0, "records", 0.0),
        (3, 1, 3, "messages", None),
    ):
        counters = replace(
            said[number - 1].counters,
            partitions=partitions,
            unread=unread,
            unread_unit=unit,
            source_lag=lag,
            fetched=None if number == 3 else 10 * number,
        )
        said[number - 1] = replace(said[number - 1], counters=counters)
    found = samples(said, 10)
    assert {key: value for key, value in found.items() if "unread" in key[0] or "source_lag" in key[0]} == {
        ("forebay_stream_unread", "lines", "records"): 5,
        ("forebay_stream_unread", "lines", "messages"): 3,
        ("forebay_stream_source_lag_seconds", "lines"): 7.5,
        ("forebay_receiver_unread", "1", "lines", "records"): 5,
        ("forebay_receiver_unread", "2", "lines", "records"): 0,
        ("forebay_receiver_unread", "3", "lines", "messages"): 3,
        ("forebay_receiver_source_lag_seconds", "1", "lines"): 7.5,
        ("forebay_receiver_source_lag_seconds", "2", "lines"): 0,
    }
    assert found["forebay_stream_partitions", "lines"] == 4
    assert found["forebay_stream_fetched_records", "lines"] == 30
    assert found["forebay_receiver_fetched_records", "2", "lines"] == 20
    assert ("forebay_receiver_fetched_records", "3", "lines") not in found
    assert ("forebay_receiver_partitions", "4", "lines") not in found


def test_a_state_has_its_keys_its_bytes_and_whether_it_is_replayed() -> None:
    nothing = (None, None, None, None, None, None, None)
    states = [
        OutputState("words", "totals", None, 3, 100, None, *nothing),
        OutputState("words", "visits", None, None, 200, None, None, 7, "STOPPED", None, None, None, replay_runs=False),
    ]
    text = metrics_page(SystemProgress([], [], [], [], [], states=states), term=None, lease_ages={})[0].decode()
    assert 'forebay_state_keys{output="totals",pipeline="words"} 3.0' in text
    assert 'forebay_state_keys{output="visits"' not in text, "it is not known"
    assert 'forebay_state_bytes{output="visits",pipeline="words"} 200.0' in text
    assert 'forebay_state_replay{output="totals",pipeline="words"} 0.0' in text
    assert 'forebay_state_replay{output="visits",pipeline="words"} 1.0' in text


def test_an_output_by_event_time_has_its_watermark_s_lag_and_its_late_records() -> None:
    nothing = (None, None, None, None, None, None)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    kept = OutputState("words", "windows", noon, 3, 100, None, *nothing, late=1, late_total=7)
    states = [
        replace(kept, watermark=noon - timedelta(minutes=10)),
        replace(kept, output="new", late_total=0),
        OutputState("words", "totals", noon, 3, 100, None, *nothing),
    ]
    text = metrics_page(SystemProgress([], [], [], [], [], states=states), term=None, lease_ages={})[0].decode()
    found = {line for line in text.splitlines() if line.startswith(("forebay_watermark", "forebay_late"))}
    assert found == {
        'forebay_watermark_lag_seconds{output="windows",pipeline="words"} 600.0',
        'forebay_late_records_total{output="windows",pipeline="words"} 7.0',
        'forebay_late_records_total{output="new",pipeline="words"} 0.0',
    }


def test_what_a_stream_stored_is_counted_by_codec() -> None:
    codecs = [StreamCodec("lines", "lz4", 7, 700), StreamCodec("lines", "none", 3, 600)]
    text = metrics_page(SystemProgress([], [], [], [], [], codecs), term=None, lease_ages={})[0].decode()
    for codec, blocks, nbytes in (("lz4", 7, 700), ("none", 3, 600)):
        assert f'forebay_stream_stored_blocks_total{{codec="{codec}",stream="lines"}} {blocks}.0' in text
        assert f'forebay_stream_stored_bytes_total{{codec="{codec}",stream="lines"}} {nbytes}.0' in text


def test_every_receiver_has_series_by_default_until_there_are_very_many() -> None:
    assert samples([receiver(1, "lines")], MAX_RECEIVERS)["forebay_receivers_without_samples",] == 0


def test_every_metric_has_its_type_and_help_and_samples_have_its_labels() -> None:
    page, _ = metrics_page(SystemProgress([], [receiver(1, "lines")], [], [], []), term=3, lease_ages={})
    families = text_string_to_metric_families(page.decode())
    found = {f"{family.name}_total" if family.type == "counter" else family.name: family for family in families}
    assert list(found) == list(METRICS)
    for name, (kind, labels, text) in METRICS.items():
        assert (found[name].type, found[name].documentation) == (kind, text)
        assert all(sample.labels.keys() == set(labels) for sample in found[name].samples)


def test_openmetrics_has_the_same_series_for_a_scraper_that_asks_for_it() -> None:
    accept = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2"
    progress = SystemProgress([], [receiver(number, "lines") for number in range(3)], [], [], [])
    text, content_type = metrics_page(progress, term=3, lease_ages={}, accept=accept)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    families = list(openmetrics_families(text.decode()))  # type: ignore[no-untyped-call]
    plain, content_type = metrics_page(progress, term=3, lease_ages={})
    assert content_type.startswith("text/plain; version=0.0.4")
    assert families == list(text_string_to_metric_families(plain.decode()))


@pytest.mark.parametrize(
    "accept", ["*/*", "text/html", "application/openmetrics-text; version=x", 'text/plain; version="1.0.0"']
)
def test_what_names_no_format_that_is_known_gets_the_text_format(accept: str) -> None:
    assert metrics_page(None, term=None, lease_ages={}, accept=accept) == metrics_page(None, term=None, lease_ages={})
