"""Render the status page's templates: every value is escaped, and every answer has the headers that keep it closed.

Owns the templates' environment and the headers. It reads nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from orchestration.status_page import addresses, shown
from tracker_store.long_texts import one_line

if TYPE_CHECKING:
    from orchestration.status_page.addresses import DagsterPages

# Nothing from elsewhere, no script in a page, and no page in a frame. Charts set styles by script, which this allows.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
RELOAD_SECONDS = 5


class Renderer:
    """Renders pages of one tracker."""

    def __init__(self, tracker: str, dagster: DagsterPages) -> None:
        self._environment = Environment(
            loader=PackageLoader("orchestration.status_page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "count": shown.count,
            "moment": shown.moment,
            "one_line": one_line,
            "rate": shown.rate,
            "second": shown.second,
            "since": shown.since,
            "size": shown.size,
            "span": shown.span,
            "tone": shown.tone,
        }
        self._environment.globals |= {
            "address": addresses,
            "dagster": dagster,
            "nothing": shown.NOTHING,
            "reload_seconds": RELOAD_SECONDS,
            "tracker": tracker,
        }

    def page(self, template: str, status_code: int = 200, **values: object) -> HTMLResponse:
        """Return a template as a page."""
        now = datetime.now(UTC)
        text = self._environment.get_template(f"{template}.html").render(now=now, **values)
        return HTMLResponse(text, status_code, headers=HEADERS)
