"""What the tracker's HTTP server answers, as a test sees it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.polling import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestration.tracker.http.http import TrackerHttpServer

_SECONDS = 30.0


@dataclass(frozen=True)
class Answer:
    """An answer, or a refusal."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:  # noqa: ANN401  whatever it is
        return json.loads(self.text)

    @property
    def samples(self) -> dict[tuple[str, ...], float]:
        """Return the samples of the text format: (name, labels' values in the order of their names) and the value."""
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }


def answer_to(request: urllib.request.Request) -> Answer:
    """Send the request; return what comes, also if it is a refusal."""
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return Answer(answer.status, answer.read().decode(), dict(answer.headers))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode(), dict(error.headers))


@contextmanager
def served(server: TrackerHttpServer) -> Iterator[str]:
    """Run the server; yield its URL."""
    with server:
        eventually(lambda: server.url, "the server's address")
        assert server.url is not None
        yield server.url
    # On a machine that stands still the server may stop waiting for its thread.
    eventually(lambda: not server.serves, "the server's end")
