"""Serve a schema registry in memory, with the answers of Confluent's API that were recorded of Apicurio 3.3.3.

It is enough for confluent-kafka's serializers, which register schemas, and for the receivers, which ask for them.
"""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.support.polling import joined

if TYPE_CHECKING:
    from collections.abc import Iterator


class RegistryServer:
    """Hold schemas; ``fails`` is a status with which it answers everything, or 0."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self.fails = 0
        self.body: bytes | None = None
        self.requests: list[str] = []
        self.authorizations: list[str | None] = []
        self.url = ""

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        """Return the id of a schema: ``{"schema": text, "schemaType": kind, "references": […]}``."""
        kept = {name: value for name, value in schema.items() if name in {"schema", "schemaType", "references"}}
        with self._lock:
            if kept not in self._schemas:
                self._schemas.append(kept)
            number = self._schemas.index(kept) + 1
            versions = self._subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
        return number

    def rewrite(self, kind: str, text: str) -> None:
        """Answer with a text in place of what was registered: Confluent's registry makes .proto of a descriptor."""
        for schema in self._schemas:
            if schema.get("schemaType") == kind:
                schema["schema"] = text

    def answer(self, path: str, posted: dict[str, Any] | None) -> tuple[int, object]:
        parts = path.partition("?")[0].strip("/").split("/")
        if posted is not None:
            number = self.register(parts[1], posted)
            return 200, {"id": number, "version": self._subjects[parts[1]].index(number) + 1, "subject": parts[1]}
        if parts[:2] == ["schemas", "ids"]:
            number = int(parts[2])
            if not 0 < number <= len(self._schemas):
                return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
            return 200, self._schemas[number - 1]
        if parts[0] == "subjects" and len(parts) == 4:
            return self._version(parts[1], parts[3])
        if parts == ["schemas", "types"]:
            return 200, ["JSON", "PROTOBUF", "AVRO"]
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _version(self, subject: str, named: str) -> tuple[int, object]:
        numbers = self._subjects.get(subject, [])
        version = len(numbers) if named == "latest" else int(named)
        if not 0 < version <= len(numbers):
            code, what = (40402, "Version") if numbers else (40401, "Subject")
            return 404, {"error_code": code, "message": f"{what} not found"}
        number = numbers[version - 1]
        return 200, {"subject": subject, "id": number, "version": version, **self._schemas[number - 1]}


@contextlib.contextmanager
def registry_server() -> Iterator[RegistryServer]:
    """Serve until the block ends."""
    made = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, posted: dict[str, Any] | None) -> None:
            # Confluent's serializer asks for more than schemas.
            if posted is None and not self.path.startswith("/associations"):
                made.requests.append(self.path)
            made.authorizations.append(self.headers["Authorization"])
            status, answer = (made.fails, {"error_code": made.fails}) if made.fails else made.answer(self.path, posted)
            body = json.dumps(answer).encode() if made.body is None else made.body
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            if status == 302:
                self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            joined(thread)
