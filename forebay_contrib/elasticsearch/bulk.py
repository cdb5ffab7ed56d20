"""Makes rows of a bulk request: each action that stores a document is a row, and an item of the answer.

The usual request is read as columns: its lines are cut and checked at once, and each action that is written differently
is read once. Any other one is read line by line, so that what is wrong with a document refuses no other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from forebay_contrib.elasticsearch.answers import Item, bulk_answer, set_aside, stored, unstored
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError, RejectedRecord, header, media_type
from receiver_runtime.receivers.http.requests.records import fault_of, lines_column
from receiver_runtime.receivers.http.requests.route import AnsweredRows
from receiver_runtime.receivers.http.requests.text_bodies import json_text
from receiver_runtime.receivers.http.rows import Rows, parameters, target_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
    from receiver_runtime.receivers.http.requests.pushed import Headers

_JSON = "application/json"
_STORING = frozenset({"create", "index"})
_CHECK_EVERY = 1024  # how many actions to read before the time is checked again
_KEY_BYTES = 16
#: What may stand in an action and is kept as an attribute, by the attribute's name.
_KEPT = {"_index": "_index", "routing": "_routing", "version": "_version", "pipeline": "pipeline"}
# Names of an action: older senders begin some of them with an underscore.
_OLDER = {"_routing": "routing", "_version": "version"}
_Text = str | int | float | bool | None


class _Meta(msgspec.Struct, gc=False):
    """Hold what an action says of its document."""

    index: str | None = msgspec.field(name="_index", default=None)
    id: str | int | None = msgspec.field(name="_id", default=None)
    routing: _Text = None
    older_routing: _Text = msgspec.field(name="_routing", default=None)
    version: int | str | None = None
    older_version: int | str | None = msgspec.field(name="_version", default=None)
    pipeline: str | None = None


class _Line(msgspec.Struct, gc=False):
    """Hold an action as it is in its line: it has one of these members."""

    create: _Meta | None = None
    index: _Meta | None = None
    update: _Meta | None = None
    delete: _Meta | None = None


_LINE = msgspec.json.Decoder(_Line)


@dataclass(slots=True)
class _Action:
    """Hold an action as it is answered, and the attributes of its row."""

    operation: str
    index: str
    id: str | None
    attributes: Mapping[str, str]
    version: str = ""

    def key(self, document: bytes) -> str | None:
        """Return the row's key. ``create`` is of one document for its id; ``index`` may replace it by another one."""
        if self.id is None:
            return None
        digest = hashlib.blake2b(digest_size=_KEY_BYTES)
        for part in (self.index, self.id, self.version):
            digest.update(b"%d:" % len(part) + part.encode())
        if self.operation == "index":
            digest.update(document)
        return f"elasticsearch {self.operation} {digest.hexdigest()}"


@dataclass(slots=True)
class _Request:
    """Hold what a request says for its actions that don't say it themselves, and what it became."""

    defaults: Mapping[str, str]
    rows: Rows
    most_bytes: int
    most_answer_bytes: int
    answer_bytes: int = 0
    items: list[Item] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    rejected: list[RejectedRecord] = field(default_factory=list)
    #: The place of the row with this key.
    seen: dict[str, int] = field(default_factory=dict)

    def action(self, line: bytes, number: int) -> _Action:
        """Read an action's line. Raises PushRefusedError: 400, it is none."""
        try:
            line.decode()
            found = _LINE.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _malformed(number, str(error)) from error
        metas = {name: meta for name in ("create", "index", "update", "delete") if (meta := getattr(found, name))}
        if len(metas) != 1:
            raise _malformed(number, "it names no action, or several: send one of create and index")
        [(operation, meta)] = metas.items()
        return self._action(operation, meta)

    def _action(self, operation: str, meta: _Meta) -> _Action:
        given = {
            "_index": meta.index,
            "_routing": meta.routing if meta.routing is not None else meta.older_routing,
            "_version": meta.version if meta.version is not None else meta.older_version,
            "pipeline": meta.pipeline,
        }
        attributes = {**self.defaults, **{name: str(value) for name, value in given.items() if value is not None}}
        attributes["_op"] = operation
        identity = None if meta.id is None else str(meta.id)
        return _Action(operation, attributes.get("_index", ""), identity, attributes, attributes.get("_version", ""))

    def take(self, action: _Action, document: bytes, shared: tuple[Sequence[str], Sequence[str], int]) -> None:
        """Make a row of a document that is good; one that is there already, by its key, is answered alone."""
        key = action.key(document)
        row = len(self.keys)
        if key is not None:
            row = self.seen.setdefault(key, row)
        if row == len(self.keys):
            self.rows.add(document, shared)
            self.keys.append(key)
            self.ids.append(action.id)
        self.items.append(self.item(stored(action.operation, action.index, action.id), row))

    def reject(self, action: _Action, letter: RejectedRecord) -> None:
        """Make a dead letter of a document."""
        self.rejected.append(letter)
        self.items.append(self.item(set_aside(action.operation, action.index, action.id), None))

    def refuse(self, action: _Action, why: str) -> None:
        """Answer an action that does not store a document."""
        content = unstored(action.operation, action.index, action.id, "illegal_argument_exception", why)
        self.items.append(self.item(content, None)._replace(is_refused=True))

    def item(self, content: bytes, row: int | None, *, times: int = 1) -> Item:
        """Return an item that the answer has ``times`` times: each repeats its index, which may be sent once for all.

        Raises PushRefusedError: 413, the answer is too large.
        """
        self.answer_bytes += len(content) * times
        if self.answer_bytes > self.most_answer_bytes:
            raise PushRefusedError(
                413,
                f"body: its answer has more than {self.most_answer_bytes} bytes, which is max_waiting_bytes: send "
                "fewer actions at once",
            )
        return Item(content, row)

    def pushed(self) -> AnsweredRows:
        """Return the rows, and how they are answered."""
        batch = self.rows.batch(_JSON, self.ids)
        answer = partial(bulk_answer, self.items)
        return AnsweredRows(batch, rejected=self.rejected, keys=self.keys, answer=answer)


def parse_bulk(headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> AnsweredRows:
    """Return the rows of a bulk request.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: 400 for lines that are no actions, 413 for too much, 415 for a charset that is not known here.
    """
    text = json_text(*media_type(header(headers, b"content-type")), body)
    found = _parsed(headers, text.body, source, limits)
    return replace(found, rejected=text.as_sent(found.rejected)) if found.rejected else found


def _parsed(headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> AnsweredRows:
    """Return the rows of a text in UTF-8."""
    limits.check_lines(body)
    request = _request(headers, source)
    lines = lines_column(body, max(source.max_record_bytes, len(body)), is_json=True)
    if lines is not None and not len(lines) % 2:
        found = _in_columns(request, lines, limits)
        if found is not None:
            return found
        request = _request(headers, source)
    _line_by_line(request, body, limits)
    return request.pushed()


def _request(headers: Headers, source: Http) -> _Request:
    return _Request(_defaults(headers), Rows(headers, source), source.max_record_bytes, source.max_waiting_bytes)


def _defaults(headers: Headers) -> Mapping[str, str]:
    """Return what the path and the query say for all actions."""
    path = target_path(headers).strip("/").split("/")
    asked = parameters(headers)
    defaults = {"_index": path[0]} if len(path) > 1 else {}
    for name, attribute in (("routing", "_routing"), ("pipeline", "pipeline")):
        if name in asked:
            defaults[attribute] = asked[name][-1]
    return defaults


def _in_columns(request: _Request, lines: pa.BinaryArray, limits: ParsingLimits) -> AnsweredRows | None:
    """Return the rows of lines that are actions and documents by turns; None: they are not, or a document is too large.

    Each line is an object.
    """
    places = np.arange(0, len(lines), 2)
    documents = lines.take(pa.array(places + 1))
    sizes = np.diff(np.frombuffer(documents.buffers()[1], np.int32)[: len(documents) + 1])
    if sizes.max() > request.most_bytes:
        return None
    coded = lines.take(pa.array(places)).dictionary_encode()
    try:
        actions = [request.action(line, 1) for line in coded.dictionary.to_pylist()]
    except PushRefusedError:
        return None
    if any(action.operation not in _STORING for action in actions):
        return None
    limits.check()
    if len(actions) == 1 and actions[0].id is None:
        [action] = actions
        item = request.item(stored(action.operation, action.index, None), 0, times=len(documents))
        batch = request.rows.batch_of(documents, _JSON, action.attributes)
        return AnsweredRows(batch, answer=partial(bulk_answer, [item], repeated=len(documents)))
    shared = [request.rows.add_shared(action.attributes) for action in actions]
    for number, (code, document) in enumerate(zip(coded.indices.to_pylist(), documents.to_pylist(), strict=True)):
        if not number % _CHECK_EVERY:
            limits.check()
        request.take(actions[code], document, shared[code])
    return request.pushed()


def _line_by_line(request: _Request, body: bytes, limits: ParsingLimits) -> None:
    lines = iter(enumerate(body.split(b"\n"), start=1))
    for number, line in lines:
        if not number % _CHECK_EVERY:
            limits.check()
        if not line.strip():
            continue
        action = request.action(line, number)
        if action.operation == "delete":
            request.refuse(action, "a stream deletes nothing: leave delete out")
            continue
        _, document = next(lines, (number, b""))
        document = document.strip()
        if not document:
            raise _malformed(number, "no document follows it: send one in the next line")
        if action.operation == "update":
            request.refuse(action, "a stream updates nothing: send index or create")
        elif (fault := _fault(document, request.most_bytes, limits)) is None:
            request.take(action, document, request.rows.add_shared(action.attributes))
        else:
            reason, why = fault
            request.reject(action, RejectedRecord(document, reason, f"line {number + 1}: {why}"))
    if not request.items:
        raise PushRefusedError(400, "body: it has no action: send at least one, and its document in the next line")


def _fault(document: bytes, most_bytes: int, limits: ParsingLimits) -> tuple[DeadLetterReason, str] | None:
    if document[:1] != b"{":
        return DeadLetterReason.UNPARSABLE, "a document is a JSON object"
    return fault_of(document, most_bytes, limits, is_json=True)


def _malformed(number: int, why: str) -> PushRefusedError:
    return PushRefusedError(400, f"Malformed action/metadata line [{number}]: {why}")
