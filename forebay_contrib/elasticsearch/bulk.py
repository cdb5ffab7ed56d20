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

from forebay_contrib.elasticsearch.answers import (
    Item,
    answer_in_order,
    bulk_answer,
    set_aside,
    stored,
    stored_in,
    unstored,
)
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError, RejectedRecord, header, media_type
from receiver_runtime.receivers.http.requests.records import fault_of, lines_column
from receiver_runtime.receivers.http.requests.route import AnsweredRows
from receiver_runtime.receivers.http.requests.text_bodies import json_text
from receiver_runtime.receivers.http.rows import Rows, parameters, target_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
    from receiver_runtime.receivers.http.requests.pushed import Headers

_JSON = "application/json"
_STORING = frozenset({"create", "index"})
_CHECK_EVERY = 1024  # how many actions to read before the time is checked again
_KEY_BYTES = 16
#: The attributes of what an action says, in the order of ``_Meta.said``.
_ATTRIBUTES = ("_index", "_routing", "_version", "pipeline")
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

    def said(self) -> tuple[str | None, ...]:
        """Return all but the id, as text, because 1 and true are equal: index, routing, version and pipeline."""
        routing = self.older_routing if self.routing is None else self.routing
        version = self.older_version if self.version is None else self.version
        return (
            self.index,
            None if routing is None else str(routing),
            None if version is None else str(version),
            self.pipeline,
        )

    def text_id(self) -> str | None:
        """Return the id as text."""
        return str(self.id) if isinstance(self.id, int) else self.id


class _Line(msgspec.Struct, gc=False):
    """Hold an action as it is in its line: it has one of these members."""

    create: _Meta | None = None
    index: _Meta | None = None
    update: _Meta | None = None
    delete: _Meta | None = None

    def storing(self) -> tuple[str, _Meta] | None:
        """Return the operation that stores a document, and what it says; None: it is another one, or several."""
        if self.update is not None or self.delete is not None:
            return None
        if self.create is None:
            return None if self.index is None else ("index", self.index)
        return ("create", self.create) if self.index is None else None


_LINE = msgspec.json.Decoder(_Line)


@dataclass(slots=True)
class _Action:
    """Hold an action as it is answered, and the attributes of its row."""

    operation: str
    index: str
    id: str | None
    attributes: Mapping[str, str]
    version: str = ""

    def key_of(self, identity: str, document: bytes) -> str:
        """Return the key of a row with an id: ``create`` is of one document for it, ``index`` may replace that one."""
        parts = (self.index, identity, self.version)
        digest = hashlib.blake2b(
            "".join([f"{len(part)}:{part}" for part in parts]).encode(), digest_size=_KEY_BYTES, usedforsecurity=False
        )
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
        made = self.action_of(operation, meta.said())
        made.id = meta.text_id()
        return made

    def action_of(self, operation: str, said: tuple[str | None, ...]) -> _Action:
        """Return an action that says this, without an id."""
        given = zip(_ATTRIBUTES, said, strict=True)
        attributes = {**self.defaults, **{name: value for name, value in given if value is not None}}
        attributes["_op"] = operation
        return _Action(operation, attributes.get("_index", ""), None, attributes, attributes.get("_version", ""))

    def take(self, action: _Action, document: bytes, shared: tuple[Sequence[str], Sequence[str], int]) -> None:
        """Make a row of a document that is good; one that is there already, by its key, is answered alone."""
        key = None if action.id is None else action.key_of(action.id, document)
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
        self.count_answer(len(content) * times)
        return Item(content, row)

    def count_answer(self, more: int) -> None:
        """Count bytes of the answer. Raises PushRefusedError: 413, it is too large."""
        self.answer_bytes += more
        if self.answer_bytes > self.most_answer_bytes:
            raise PushRefusedError(
                413,
                f"body: its answer has more than {self.most_answer_bytes} bytes, which is max_waiting_bytes: send "
                "fewer actions at once",
            )

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
    found = _Actions.read(request, coded.dictionary.to_pylist(), limits)
    if found is None:
        return None
    if len(found.groups) == 1 and found.ids is None:
        [action] = found.groups
        item = request.item(stored(action.operation, action.index, None), 0, times=len(documents))
        batch = request.rows.batch_of(documents, _JSON, action.attributes)
        return AnsweredRows(batch, answer=partial(bulk_answer, [item], repeated=len(documents)))
    return _in_groups(request, found, documents, coded.indices.to_numpy(), limits)


@dataclass(slots=True)
class _Actions:
    """Hold the different actions of a request: for each, its group, of which all say the same except their ids."""

    groups: Sequence[_Action]
    codes: npt.NDArray[np.int32]
    #: None: no action has one.
    ids: Sequence[str | None] | None

    @classmethod
    def read(cls, request: _Request, lines: Sequence[bytes], limits: ParsingLimits) -> _Actions | None:
        """Read lines; None: some are no actions that store a document."""
        joined = b"\n".join(lines)
        try:
            joined.decode()
            found = _LINE.decode_lines(joined)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        groups: dict[tuple[str, tuple[str | None, ...]], int] = {}
        codes: list[int] = []
        ids: list[str | None] = []
        for number, line in enumerate(found):
            if not number % _CHECK_EVERY:
                limits.check()
            storing = line.storing()
            if storing is None:
                return None
            operation, meta = storing
            codes.append(groups.setdefault((operation, meta.said()), len(groups)))
            ids.append(meta.text_id())
        actions = [request.action_of(operation, said) for operation, said in groups]
        return cls(actions, np.array(codes, np.int32), ids if any(one is not None for one in ids) else None)


def _in_groups(
    request: _Request, found: _Actions, documents: pa.BinaryArray, places: npt.NDArray[np.int32], limits: ParsingLimits
) -> AnsweredRows | None:
    """Return the rows of documents, each with the action at its place; None: a key is there twice."""
    groups = found.codes[places]
    ids = None if found.ids is None else [found.ids[place] for place in places.tolist()]
    contents = _contents(request, found.groups, groups.tolist(), ids, limits)
    keys = None
    if ids is not None:
        keys = _keys(found.groups, groups.tolist(), ids, documents, limits)
        if keys is None:
            return None
    attributes = [action.attributes for action in found.groups]
    batch = request.rows.batch_in_groups(documents, _JSON, attributes, groups, ids)
    return AnsweredRows(batch, rejected=request.rejected, keys=keys, answer=partial(answer_in_order, contents))


def _contents(
    request: _Request,
    actions: Sequence[_Action],
    groups: Sequence[int],
    ids: Sequence[str | None] | None,
    limits: ParsingLimits,
) -> list[bytes]:
    """Return the item of each row. Raises PushRefusedError: 413, the answer is too large."""
    # Many groups may have one long index, so what is made of it is made once.
    named = [(action.operation, action.index) for action in actions]
    makers = {each: stored_in(*each) for each in set(named)}
    same = {each: make(None) for each, make in makers.items()}
    contents: list[bytes] = []
    for number, group in enumerate(groups):
        if not number % _CHECK_EVERY:
            limits.check()
        content = same[named[group]] if ids is None else makers[named[group]](ids[number])
        request.count_answer(len(content))
        contents.append(content)
    return contents


def _keys(
    actions: Sequence[_Action],
    groups: Sequence[int],
    ids: Sequence[str | None],
    documents: pa.BinaryArray,
    limits: ParsingLimits,
) -> list[str | None] | None:
    """Return the key of each row; None: one is there twice."""
    contents = documents.to_pylist() if any(action.operation == "index" for action in actions) else [b""] * len(ids)
    keys: list[str | None] = []
    for number, (group, identity, document) in enumerate(zip(groups, ids, contents, strict=True)):
        if not number % _CHECK_EVERY:
            limits.check()
        keys.append(None if identity is None else actions[group].key_of(identity, document))
    some = [key for key in keys if key is not None]
    return keys if len(set(some)) == len(some) else None


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
