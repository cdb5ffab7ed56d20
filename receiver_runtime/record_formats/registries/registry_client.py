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

from receiver_runtime.sources.fields.secret import SecretError
from receiver_runtime.sources.fields.tls_context import client_context

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from receiver_runtime.sources.fields.schema_registry import Registry

_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json;q=0.9"
# Bytes of an answer.
_MOST_BYTES = 2**24
_READ_BYTES = 2**16
# Seconds for which an id that the registry does not give is not asked for again, so that bad records cost no request
# each.
_MISSING_SECONDS = 30.0
# The same for the ids of rows that wait: longer than until they are tried again, with as many requests as one try has.
_HELD_SECONDS = 600.0
# Ids from which on those are dropped that are to be asked for again. The others are needed: rows that wait have them.
_MANY_MISSING = 16_384
# An id is a positive Java int; registries answer others with a 404 of their own.
_END_ID = 2**31
# Of Confluent's API: there is no such subject, version or schema; the user may not do this.
_NOT_THERE = (40401, 40402, 40403)
_DENIED = 40301
_DEEPEST = 32
# Schemas that one schema may use, each of which is asked for.
_MOST_REFERENCES = 1000


class RegistryAwayError(Exception):
    """Start the registry, or correct its declaration: it did not say whether it has a schema."""


class NoSuchSchemaError(Exception):
    """Register the schema, or grant the right to read it: the registry gives none of this id. The message says why."""


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
        # For each id until when it is not asked for again, and why.
        self._missing: dict[int, tuple[float, str]] = {}

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema of an id. The caller keeps it. Raises NoSuchSchemaError and RegistryAwayError."""
        with self._lock:
            if (refusal := self.refusal(number)) is not None:
                raise NoSuchSchemaError(refusal)
            try:
                found = self._get(f"/schemas/ids/{number}")
                references: dict[str, str] = {}
                self._add_references(found, references, 0)
            except NoSuchSchemaError as error:
                now = time.monotonic()
                if len(self._missing) >= _MANY_MISSING:
                    self._missing = {one: missing for one, missing in self._missing.items() if missing[0] > now}
                why = f"the schema registry gives no schema {number}: {error}"
                self._missing[number] = now + _MISSING_SECONDS, why
                raise NoSuchSchemaError(why) from None
            return self._registered(found, references)

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the newest schema of a subject. Raises NoSuchSchemaError: there is none; and RegistryAwayError."""
        with self._lock:
            found = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest")
            references: dict[str, str] = {}
            self._add_references(found, references, 0)
            return self._registered(found, references)

    def check(self) -> None:
        """Ask for something that each registry answers. Raises RegistryAwayError."""
        with self._lock:
            self._answer("/schemas/types")

    def refusal(self, number: int) -> str | None:
        """Return why ``schema`` raises NoSuchSchemaError without a request; None: it makes one."""
        if not 0 < number < _END_ID:
            return f"the schema registry gives no schema {number}: an id is from 1 to {_END_ID - 1}"
        until, why = self._missing.get(number, (0.0, ""))
        return why if until > time.monotonic() else None

    def hold(self, numbers: Iterable[int]) -> None:
        """Ask for none of these ids again, of those that are missing now, until rows that wait were tried again."""
        with self._lock:
            until = time.monotonic() + _HELD_SECONDS
            for number in numbers:
                if number in self._missing and (why := self.refusal(number)) is not None:
                    self._missing[number] = until, why

    def _add_references(self, schema: Mapping[str, Any], found: dict[str, str], depth: int) -> None:
        references = schema.get("references") or []
        if not isinstance(references, list):
            raise self._nonsense("references that are no list")
        if depth > _DEEPEST:
            raise NoSuchSchemaError(f"its references are more than {_DEEPEST} levels deep")
        for one in references:
            if not isinstance(one, dict) or not {"name", "subject", "version"} <= one.keys():
                raise self._nonsense("a reference without name, subject and version")
            if one["name"] in found:
                continue
            if len(found) >= _MOST_REFERENCES:
                raise NoSuchSchemaError(f"it uses more than {_MOST_REFERENCES} other schemas")
            subject, version = quote(str(one["subject"]), safe=""), quote(str(one["version"]), safe="")
            # What was deleted is still what a record was written with.
            referred = self._get(f"/subjects/{subject}/versions/{version}?deleted=true")
            self._add_references(referred, found, depth + 1)
            found[str(one["name"])] = self._text(referred)

    def _registered(self, schema: Mapping[str, Any], references: Mapping[str, str]) -> RegisteredSchema:
        return RegisteredSchema(str(schema.get("schemaType") or "AVRO"), self._text(schema), tuple(references.items()))

    def _text(self, schema: Mapping[str, Any]) -> str:
        text = schema.get("schema")
        if not isinstance(text, str):
            raise self._nonsense("no schema")
        return text

    def _get(self, path: str) -> Mapping[str, Any]:
        """Return an answer. Raises NoSuchSchemaError: the registry says that there is none."""
        found = self._answer(path)
        if not isinstance(found, dict):
            raise self._nonsense("no JSON object")
        return found

    def _answer(self, path: str) -> object:
        registry = self._registry
        try:
            # Here, so that a password that is changed counts.
            asked = urllib.request.Request(registry.url + path, headers=self._headers())  # noqa: S310  http or https
            handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
            if registry.url.startswith("https:"):
                handlers.append(urllib.request.HTTPSHandler(context=client_context(registry.tls)))
            with urllib.request.build_opener(*handlers).open(asked, timeout=registry.timeout) as answer:
                body = _body(answer, time.monotonic() + registry.timeout)
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
            found: object = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._nonsense(str(error)) from error
        return found

    def _judge(self, error: urllib.error.HTTPError) -> None:
        """Raise NoSuchSchemaError if the registry itself says so of what was asked for: a 404 of a wrong URL does not.

        Likewise a 403: one without the code may be a proxy's, for all schemas.
        """
        if error.code not in {http.client.NOT_FOUND, http.client.FORBIDDEN}:
            return
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            said = json.loads(error.read(_MOST_BYTES))
            if not isinstance(said, dict):
                return
            code, message = said.get("error_code"), str(said.get("message"))
            if error.code == http.client.NOT_FOUND and code in _NOT_THERE:
                raise NoSuchSchemaError(message)
            if error.code == http.client.FORBIDDEN and code == _DENIED:
                raise NoSuchSchemaError(f"its user has no right to read it; grant it ({message})")

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


def _body(answer: http.client.HTTPResponse, until: float) -> bytes:
    """Return the bytes of an answer, one more than allowed if there are more. Raises OSError: it comes too slowly."""
    parts: list[bytes] = []
    left = _MOST_BYTES + 1
    while left and (part := answer.read1(min(left, _READ_BYTES))):
        parts.append(part)
        left -= len(part)
        if time.monotonic() > until:
            raise TimeoutError("its answer takes longer than the timeout")
    return b"".join(parts)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse to follow: a password must not go to another host."""

    def redirect_request(self, *_: object) -> None:
        return None


def texts_of(references: Sequence[tuple[str, str]]) -> list[str]:
    """Return the references' schemas without their names."""
    return [text for _, text in references]
