"""Run a real Prometheus that scrapes itself and a page of ours, and writes to a receiver; read what it stored."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.shippers.scenes import TOKEN, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.support.shippers.built import Program

_CONFIGURATION = """
global: {{scrape_interval: 500ms, scrape_timeout: 400ms, external_labels: {{site: "über"}}}}
scrape_configs:
  - job_name: itself
    {scraped}
    static_configs: [{{targets: ["127.0.0.1:{own}"]}}]
  - job_name: page
    static_configs: [{{targets: ["127.0.0.1:{page}"]}}]
remote_write:
  - url: http://127.0.0.1:{port}/api/v1/write
    authorization: {{credentials: {token}}}
    send_native_histograms: true
    {written}
    queue_config: {{batch_send_deadline: 200ms, min_backoff: 100ms, max_backoff: 1s}}
"""

#: A series by its labels, a time in milliseconds, and the value, or the count of a histogram, as text.
Sample = tuple[str, int, str]


@dataclass(frozen=True)
class Scraping:
    """Hold the address of a Prometheus that runs."""

    url: str

    def stored(self, until: float) -> Counter[Sample]:
        """Return all samples that it has stored until a time, in seconds."""
        query = urllib.parse.urlencode({"query": '{__name__=~".+"}[10m]', "time": until})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=30) as answer:
            found = json.load(answer)["data"]["result"]
        samples: Counter[Sample] = Counter()
        for series in found:
            labels = _key(series["metric"] | {"site": "über"})
            for at, value in series.get("values", ()):
                samples[labels, round(at * 1000), _text(float(value))] += 1
            for at, histogram in series.get("histograms", ()):
                samples[labels, round(at * 1000), _text(float(histogram["count"]))] += 1
        return samples

    def scrapes(self) -> int:
        """Return how often it has scraped the page."""
        query = urllib.parse.urlencode({"query": 'count_over_time(up{job="page"}[10m])'})
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=30) as answer:
                found = json.load(answer)["data"]["result"]
            return int(found[0]["value"][1]) if found else 0
        return 0


@contextlib.contextmanager
def scraping(
    stage: Stage,
    program: Program,
    own: int,
    page: int,
    *,
    flags: Sequence[str] = (),
    scraped: str = "",
    written: str = "",
) -> Iterator[Scraping]:
    """Run a Prometheus.

    Args:
        stage: where it works, and the receiver's port.
        program: its program.
        own: the port at which it listens.
        page: the port of a page to scrape.
        flags: more arguments.
        scraped: more fields of the scraping of itself.
        written: more fields of remote_write.
    """
    configuration = stage.root / "prometheus.yml"
    text = _CONFIGURATION.format(own=own, page=page, port=stage.port, token=TOKEN, scraped=scraped, written=written)
    configuration.write_text(text, encoding="utf-8")
    arguments = (
        *flags,
        f"--config.file={configuration}",
        f"--storage.tsdb.path={stage.root / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
    )
    with stage.run(program, *arguments):
        yield Scraping(f"http://127.0.0.1:{own}")


@contextlib.contextmanager
def page(large: int = 0) -> Iterator[int]:
    """Serve a page of metrics that grow, with awkward labels, and one label of this many characters; give its port."""

    class Page(http.server.BaseHTTPRequestHandler):
        """Answer with the metrics."""

        def do_GET(self) -> None:
            """Answer a scrape."""
            now = time.monotonic_ns() % 10**12
            lines = [f'shop_orders_total{{shop="s{n}",name="a \\"b\\" \\\\ ü\\n"}} {now + n}' for n in range(200)]
            lines += ['shop_odd{is="nan"} NaN', 'shop_odd{is="inf"} +Inf', 'shop_odd{is="small"} 1e-320']
            if large:
                lines.append(f'shop_large{{text="{"x" * large}"}} 1')
            body = "".join(f"{line}\n" for line in lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:  # noqa: ANN401  of the server
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def written(rows: Sequence[Mapping[str, Any]], until: float) -> Counter[Sample]:
    """Return the samples that rows hold until a time, in seconds, without the marks of series that ended."""
    found: Counter[Sample] = Counter()
    for row in rows:
        one = json.loads(row["body"])
        if one["timestamp_ms"] > until * 1000 or one.get("special") == "stale" or "exemplar" in one:
            continue
        value = one["histogram"]["count"] if "histogram" in one else one["value"]
        text = one["special"] if value is None else _text(float(value))
        found[_key({"__name__": one["name"], **one["labels"]}), one["timestamp_ms"], text] += 1
    return found


def await_equal(stored: Counter[Sample], found: Callable[[], Counter[Sample]], *, seconds: float = 60) -> None:
    """Wait until all samples that were stored are found; fail if others are."""
    deadline = time.monotonic() + seconds
    while missing := stored.keys() - (rows := found()).keys():
        assert time.monotonic() < deadline, f"{len(missing)} of {len(stored)} samples are missing: {list(missing)[:3]}"
        time.sleep(0.2)
    others = rows.keys() - stored.keys()
    assert not others, f"{len(others)} samples were never stored: {list(others)[:3]}"


def _key(labels: Mapping[str, str]) -> str:
    return json.dumps(labels, sort_keys=True, ensure_ascii=False)


def _text(value: float) -> str:
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(repr(value), repr(value))
