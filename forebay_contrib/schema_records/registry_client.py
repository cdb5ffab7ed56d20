"""Ask a schema registry for schemas, by Confluent's API, and keep them: an id never means another schema.

Tells what the registry says of an id from a registry that does not say: the first is the record's fault, the second is
not, and is raised as RegistryAwayError.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from receiver_runtime.receivers.tcp import client_context
from receiver_runtime.sources.fields.secret import SecretError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from receiver_runtime.sources.fields.schema_registry import Registry

_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json;q=0.9"
# Bytes of an answer.
_MOST_BYTES = 2**24
# Seconds for which an id that the registry does not have is not asked for again, so that bad records cost no request
# each.
_MISSING_SECONDS = 30.0
# Ids that are kept as missing: bytes that only look like a header may have any.
_MOST_MISSING = 4096
# Of Confluent's API: there is no such subject, version or schema.
_NOT_THERE = frozenset({40401, 40402, 40403})
_DEEPEST = 32


class RegistryAwayError(Exception):
    """Start the registry, or correct its declaration: it did not say whether it has a schema."""


class NoSuchSchemaError(Exception):
    """Register the schema: the registry says that it has none of this id. The message says so."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """Hold a schema. ``kind``: as the registry names it, such as ``AVRO``.

    ``references``: by name the schemas that it uses, each after those that it uses itself.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class RegistryClient:
    """Ask one registry. Safe from any thread: one request at a time."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._missing: dict[int, float] = {}

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema of an id. The caller keeps it. Raises NoSuchSchemaError and RegistryAwayError."""
        with self._lock:
            if self._missing.get(number, 0.0) > time.monotonic():
                raise NoSuchSchemaError(f"the schema registry has no schema {number}")
            try:
                found = self._get(f"/schemas/ids/{number}")
            except NoSuchSchemaError:
                if len(self._missing) >= _MOST_MISSING:
                    self._missing.clear()
                self._missing[number] = time.monotonic() + _MISSING_SECONDS
                raise NoSuchSchemaError(f"the schema registry has no schema {number}") from None
            references: dict[str, str] = {}
            self._add_references(found, references, 0)
            return RegisteredSchema(
                str(found.get("schemaType") or "AVRO"), self._text(found), tuple(references.items())
            )

    def is_missing(self, number: int) -> bool:
        """Return whether ``schema`` raises NoSuchSchemaError without a request."""
        return self._missing.get(number, 0.0) > time.monotonic()

    def _add_references(self, schema: Mapping[str, Any], found: dict[str, str], depth: int) -> None:
        references = schema.get("references") or ()
        if depth > _DEEPEST:
            raise NoSuchSchemaError(f"its references are more than {_DEEPEST} levels deep")
        for one in references:
            if not isinstance(one, dict) or not {"name", "subject", "version"} <= one.keys():
                raise self._nonsense("a reference without name, subject and version")
            if one["name"] in found:
                continue
            subject, version = quote(str(one["subject"]), safe=""), quote(str(one["version"]), safe="")
            # What was deleted is still what a record was written with.
            referred = self._get(f"/subjects/{subject}/versions/{version}?deleted=true")
            self._add_references(referred, found, depth + 1)
            found[str(one["name"])] = self._text(referred)

    def _text(self, schema: Mapping[str, Any]) -> str:
        text = schema.get("schema")
        if not isinstance(text, str):
            raise self._nonsense("no schema")
        return text

    def _get(self, path: str) -> Mapping[str, Any]:
        """Return an answer. Raises NoSuchSchemaError: the registry says that there is none."""
        registry = self._registry
        try:
            # Here, so that a password that is changed counts.
            asked = urllib.request.Request(registry.url + path, headers=self._headers())  # noqa: S310  http or https
            handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
            if registry.url.startswith("https:"):
                handlers.append(urllib.request.HTTPSHandler(context=client_context(registry.tls)))
            with urllib.request.build_opener(*handlers).open(asked, timeout=registry.timeout) as answer:
                body = answer.read(_MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                self._judge(error)
            raise RegistryAwayError(
                f"the schema registry {registry.url} answered {error.code} {error.reason}"
            ) from error
        except (OSError, http.client.HTTPException, SecretError) as error:
            raise RegistryAwayError(f"the schema registry {registry.url} does not answer: {error}") from error
        if len(body) > _MOST_BYTES:
            raise self._nonsense(f"more than {_MOST_BYTES} bytes")
        try:
            found = json.loads(body)
        except ValueError as error:
            raise self._nonsense(str(error)) from error
        if not isinstance(found, dict):
            raise self._nonsense("no JSON object")
        return found

    def _judge(self, error: urllib.error.HTTPError) -> None:
        """Raise NoSuchSchemaError if the registry itself says that there is none: a 404 of a wrong URL does not."""
        if error.code != http.client.NOT_FOUND:
            return
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            said = json.loads(error.read(_MOST_BYTES))
            if isinstance(said, dict) and said.get("error_code") in _NOT_THERE:
                raise NoSuchSchemaError(str(said.get("message")))

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": _ACCEPT, "User-Agent": "forebay"}
        registry = self._registry
        if registry.token is not None:
            headers["Authorization"] = f"Bearer {registry.token.resolve()}"
        elif registry.username is not None and registry.password is not None:
            pair = f"{registry.username}:{registry.password.resolve()}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return headers

    def _nonsense(self, what: str) -> RegistryAwayError:
        return RegistryAwayError(f"the schema registry {self._registry.url} answered no schema: {what}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse to follow: a password must not go to another host."""

    def redirect_request(self, *_: object) -> None:
        return None


def texts_of(references: Sequence[tuple[str, str]]) -> list[str]:
    """Return the references' schemas without their names."""
    return [text for _, text in references]
