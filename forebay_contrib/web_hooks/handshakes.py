"""Answer senders of web hooks that ask, before they send, whether an address is right.

They are Slack, Meta, Azure Event Grid and Amazon SNS. None of these answers stores anything. Questions of Slack and SNS
are signed as their other requests are; Meta shows a token.
"""

from __future__ import annotations

import hmac
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs

import msgspec

from forebay_contrib.web_hooks.sns import Sns
from receiver_runtime.receivers.http.requests.protocol import HttpProtocol
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError, header
from receiver_runtime.receivers.http.requests.route import Reply
from receiver_runtime.sources.fields.hmac_signature import Hmac
from receiver_runtime.sources.fields.secret import SecretError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.receivers.http.requests.route import Handshake, Route

_LONGEST = 4096  # bytes of a question: the known ones have less than 2 KiB
_MOST_PARAMETERS = 20
_EVENT_TYPE = b"aeg-event-type"
_VALIDATION = "SubscriptionValidation"


class _OnlyType(msgspec.Struct):
    Type: str


_TYPE = msgspec.json.Decoder(_OnlyType)


class _Questions(HttpProtocol):
    """Has no requests with records of its own."""

    def routes(self) -> Sequence[Route]:
        """See ``HttpProtocol``."""
        return []


class SlackQuestions(_Questions):
    """Answers Slack's ``url_verification``."""

    def handshakes(self) -> Mapping[Literal["GET", "POST"], Handshake]:
        """See ``HttpProtocol``."""
        return {"POST": answer_slack}


class HubQuestions(_Questions):
    """Answers ``hub.challenge``, by which Meta asks, if it comes with the token."""

    def handshakes(self) -> Mapping[Literal["GET", "POST"], Handshake]:
        """See ``HttpProtocol``."""
        return {"GET": answer_hub}


class EventGridQuestions(_Questions):
    """Answers ``SubscriptionValidation`` of Azure Event Grid's own schema. CloudEvents has ``webhook_origins``."""

    def handshakes(self) -> Mapping[Literal["GET", "POST"], Handshake]:
        """See ``HttpProtocol``."""
        return {"POST": answer_event_grid}


class SnsQuestions(_Questions):
    """Answers SNS's messages that are no notification. Their check did what they ask for."""

    def handshakes(self) -> Mapping[Literal["GET", "POST"], Handshake]:
        """See ``HttpProtocol``."""
        return {"POST": answer_sns}


def answer_slack(_: Headers, body: bytes, __: Http) -> Reply | None:
    """Return Slack's challenge, or None for its other requests."""
    if b"url_verification" not in body[:_LONGEST]:
        return None
    asked = _parsed(body)
    if not isinstance(asked, dict) or asked.get("type") != "url_verification":
        return None
    return _text(asked.get("challenge"), "challenge")


def answer_event_grid(headers: Headers, body: bytes, _: Http) -> Reply | None:
    """Return Event Grid's code, or None for its other requests."""
    if header(headers, _EVENT_TYPE) != _VALIDATION:
        return None
    asked = _parsed(body)
    event = asked[0] if isinstance(asked, list) and len(asked) == 1 else None
    data = event.get("data") if isinstance(event, dict) else None
    code = data.get("validationCode") if isinstance(data, dict) else None
    if not isinstance(code, str) or not code:
        raise PushRefusedError(400, "data.validationCode: there is none: send one event, with its code")
    return Reply(HTTPStatus.OK, "application/json", json.dumps({"validationResponse": code}).encode())


def answer_hub(_: Headers, query: bytes, source: Http) -> Reply | None:
    """Return the challenge of ``hub.mode=subscribe``, or None if the query has no ``hub.mode``."""
    try:
        asked = parse_qs(query.decode(), max_num_fields=_MOST_PARAMETERS, errors="strict")
    except ValueError as error:
        raise PushRefusedError(400, f"query: it is no UTF-8, or has more than {_MOST_PARAMETERS} parameters") from error
    if "hub.mode" not in asked:
        return None
    if asked["hub.mode"] != ["subscribe"]:
        raise PushRefusedError(400, f"hub.mode: {asked['hub.mode'][0]!r:.100} is not answered: ask with 'subscribe'")
    secret = source.verify.challenge_secret if isinstance(source.verify, Hmac) else None
    try:
        wanted = "" if secret is None else secret.resolve()
    except SecretError:
        wanted = ""
    [given, *more] = asked.get("hub.verify_token", [""])
    if not wanted or more or not hmac.compare_digest(given.encode(), wanted.encode()):
        raise PushRefusedError(403, "hub.verify_token: it is not this stream's: compare it with challenge_secret")
    return _text(asked.get("hub.challenge", [None])[0], "hub.challenge")


def answer_sns(_: Headers, body: bytes, source: Http) -> Reply | None:
    """Return an answer to a confirmation, or None for a notification. ``Sns`` has checked that it is one of the two."""
    if not isinstance(source.verify, Sns) or _TYPE.decode(body).Type == "Notification":
        return None
    return Reply(HTTPStatus.OK, "application/json", b"{}")


def _parsed(body: bytes) -> Any:  # noqa: ANN401  JSON
    if len(body) > _LONGEST:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _text(challenge: object, name: str) -> Reply:
    if not isinstance(challenge, str) or not challenge or not challenge.isascii() or not challenge.isprintable():
        raise PushRefusedError(400, f"{name}: there is none, or it is no printable text: send one")
    return Reply(HTTPStatus.OK, "text/plain", challenge.encode())
