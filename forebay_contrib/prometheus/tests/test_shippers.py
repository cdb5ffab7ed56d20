"""Write by real senders: Prometheus of Debian and a newer one, the Collector, and Telegraf. ``make senders``."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from forebay.testing.receiver_processes import eventually
from forebay_contrib.prometheus.tests.scraping import Scraping, await_equal, page, scraping, written
from receiver_runtime.receivers.http.declaration import Http
from tests.support.machine.held_ports import held_port
from tests.support.shippers.built import Program
from tests.support.shippers.scenes import (
    TELEGRAF_METRICS,
    TOKEN,
    Shipper,
    Stage,
    fields_of,
    program,
    receiving,
    stage_at,
    telegraf,
)
from tests.support.shippers.tests_of_lines import (  # noqa: F401  the tests
    make_rig,
    pytest_generate_tests,
    test_each_line_arrives,
    test_nothing_is_lost_by_kills,
    token,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from forebay.testing.source_rig import MakeRig

pytestmark = [pytest.mark.senders, pytest.mark.timeout(1800)]

_SECOND = "protobuf_message: io.prometheus.write.v2.Request"
# Without it Prometheus knows no metric's type when it writes by the second version.
_WITH_TYPES = "--enable-feature=metadata-wal-records"
#: What runs, and what is added to its configuration: of the scraping, and of remote_write.
PROMETHEUS: Mapping[str, tuple[str, str, str]] = {
    "2.42": ("/usr/bin/prometheus", "", ""),
    "3.16 by 1.0": ("prometheus", "scrape_native_histograms: true", ""),
    "3.16 by 2.0": ("prometheus", "scrape_native_histograms: true", _SECOND),
}
_SCRAPES = 12


@pytest.fixture(params=list(PROMETHEUS))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.contextmanager
def running(version: str, stage: Stage, large: int = 0) -> Iterator[Scraping]:
    """Run a Prometheus of a version."""
    name, scraped, more = PROMETHEUS[version]
    found = Program(name) if name.startswith("/") else program(name)
    with (
        held_port() as own,
        page(large) as of_page,
        scraping(
            stage, found, own, of_page, flags=[_WITH_TYPES] if more else [], scraped=scraped, written=more
        ) as made,
    ):
        yield made


def test_each_sample_arrives_once(version: str, tmp_path: Path) -> None:
    with receiving("prometheus", tmp_path) as (made, stage), running(version, stage) as scraped:
        eventually(lambda: scraped.scrapes() > _SCRAPES, "scrapes")
        until = time.time() - 1
        stored = scraped.stored(until)
        assert len(stored) > _SCRAPES * 200
        await_equal(stored, lambda: written(made.rows(), until))
        assert max(written(made.rows(), until).values()) == 1
        bodies = [json.loads(row["body"]) for row in made.rows()]
        assert any("histogram" in one for one in bodies) is ("3.16" in version)
        assert any(one.get("type") == "counter" for one in bodies) is ("2.0" in version)


def test_a_series_that_is_too_large_holds_up_no_other(version: str, tmp_path: Path) -> None:
    with (
        receiving("prometheus", tmp_path, max_record_bytes="8 KB") as (made, stage),
        running(version, stage, 20_000) as scraped,
    ):
        eventually(lambda: scraped.scrapes() > _SCRAPES, "scrapes")
        until = time.time() - 1
        stored = Counter({one: 1 for one in scraped.stored(until) if "shop_large" not in one[0]})
        await_equal(stored, lambda: written(made.rows(), until))
        assert {reason for reason, _, _ in made.rig.dead_letters()} == {"record_too_large"}


def test_no_sample_is_lost_by_kills(version: str, make_rig: MakeRig, tmp_path: Path) -> None:  # noqa: F811  a fixture
    with held_port() as port:
        rig = make_rig(Http.model_validate({**fields_of("prometheus"), "listen": f"127.0.0.1:{port}"}))
        process = rig.start()
        eventually(lambda: rig.said("listening on"), "the receiver to listen")
        with running(version, stage_at(tmp_path, port)) as scraped:
            for kills in range(1, 3):
                eventually(lambda: scraped.scrapes() > kills * _SCRAPES, "scrapes")  # noqa: B023  ends here
                process.kill()
                process.wait(60)
                eventually(lambda: scraped.scrapes() > (kills + 0.5) * _SCRAPES, "scrapes")  # noqa: B023  ends here
                process = rig.start(assignment=kills + 1)
            eventually(lambda: scraped.scrapes() > 3 * _SCRAPES, "scrapes")
            until = time.time() - 1
            await_equal(scraped.stored(until), lambda: written(rig.rows(), until), seconds=150)
            assert rig.failed_checks() == []


# Telegraf's output http, as remote-write.
_TELEGRAF = """
[[outputs.http]]
  url = "http://127.0.0.1:{port}/api/v1/write"
  non_retryable_statuscodes = [400, 413, 415]
  data_format = "prometheusremotewrite"
  [outputs.http.headers]
    Authorization = "Bearer {token}"
    Content-Type = "application/x-protobuf"
    Content-Encoding = "snappy"
    X-Prometheus-Remote-Write-Version = "0.1.0"
"""


def metric(row: Mapping[str, Any]) -> str:
    """Return the line from which a sample was made."""
    one = json.loads(row["body"])
    assert one["name"] == "app_n"
    return f"app,line={one['labels']['line']} n={one['value']:.0f}i {one['timestamp_ms']}000000"


SHIPPERS = {
    "telegraf": Shipper(
        lambda stage: telegraf(stage, _TELEGRAF, reads=TELEGRAF_METRICS), metric, "prometheus", has_text=False
    ),
}


_COLLECTOR = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{own}"}}}}}}}}
exporters:
  prometheusremotewrite:
    endpoint: http://127.0.0.1:{port}/api/v1/write
    headers: {{Authorization: "Bearer {token}"}}
    {version}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{metrics: {{receivers: [otlp], exporters: [prometheusremotewrite]}}}}
"""


@pytest.mark.parametrize("version", ["", _SECOND])
def test_the_collector_writes_points(version: str, tmp_path: Path) -> None:
    now = time.time_ns() // 10**6
    points = [
        {
            "timeUnixNano": str((now + number) * 10**6),
            "asDouble": number / 7,
            "attributes": [{"key": "line", "value": {"stringValue": f"über {number}"}}],
        }
        for number in range(1000)
    ]
    metrics = [{"name": "orders", "unit": "s", "gauge": {"dataPoints": points}}]
    body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}
    with receiving("prometheus", tmp_path) as (made, stage), held_port() as own:
        configuration = stage.root / "collector.yaml"
        text = _COLLECTOR.format(own=own, port=stage.port, token=TOKEN, version=version)
        configuration.write_text(text, encoding="utf-8")
        gates = ["--feature-gates=+exporter.prometheusremotewritexporter.enableSendingRW2"] if version else []
        with stage.run(program("collector"), "--config", f"file:{configuration}", *gates):

            def is_sent() -> bool:
                asked = urllib.request.Request(
                    f"http://127.0.0.1:{own}/v1/metrics",
                    json.dumps(body).encode(),
                    {"Content-Type": "application/json"},
                )
                with contextlib.suppress(OSError), urllib.request.urlopen(asked, timeout=30) as answer:
                    return bool(answer.status == 200)
                return False

            eventually(is_sent, "the Collector")
            eventually(lambda: len(made.rows()) >= 1000, "the points")
        found = [json.loads(row["body"]) for row in made.rows()]
    found = [one for one in found if one["name"] == "orders_seconds"]
    assert Counter((one["labels"]["line"], one["timestamp_ms"], one["value"]) for one in found) == Counter(
        (f"über {number}", now + number, number / 7) for number in range(1000)
    )
