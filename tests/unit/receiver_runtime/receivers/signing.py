"""Sign a request as any ``Hmac`` says: written from its fields' documentation, and not from what checks them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from typing import TYPE_CHECKING

from forebay_contrib.web_hooks.declaration import GitHub, Meta, Shopify, Slack, StandardWebhooks, Stripe, Twilio
from receiver_runtime.sources.fields.hmac_signature import Hmac

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Good also as a key in Base64, which some senders want.
SECRET = "c2VjcmV0LXRoYXQtbm9ib2R5LXNlZXM="
TOKEN = "verify-token-that-nobody-sees"
_URL = "https://events.example.com/v1/orders"
_GITHUB = GitHub("env:A_HOOK")

#: Each registered kind of signature that is an HMAC; and a plain one.
SIGNED: Mapping[str, Hmac] = {
    "github": _GITHUB,
    "meta": Meta("env:A_HOOK", verify_token="env:A_TOKEN"),
    "shopify": Shopify("env:A_HOOK"),
    "slack": Slack("env:A_HOOK"),
    "standard_webhooks": StandardWebhooks("env:A_HOOK"),
    "stripe": Stripe("env:A_HOOK"),
    "twilio": Twilio("env:A_HOOK", url=_URL),
    "hmac": Hmac(secrets="env:A_HOOK", header="X-Signature", algorithm="sha512"),
}


def signature_headers(declared: Hmac, body: bytes, secret: str = SECRET) -> tuple[str, dict[str, str]]:
    """Return the query and the headers of a request with a body that is no form."""
    key = base64.b64decode(secret) if declared.secret_encoding == "base64" else secret.encode()
    now = str(int(time.time()))
    query = f"{declared.body_hash_parameter}={hashlib.sha256(body).hexdigest()}" if declared.body_hash_parameter else ""
    values = {
        "body": body,
        "form": b"",
        "id": b"msg_1",
        "timestamp": now.encode(),
        "url": b"%b?%b" % ((declared.url or "").encode(), query.encode()),
    }
    payload = b"".join(
        values[part] if index % 2 else part.encode()
        for index, part in enumerate(re.split(r"\{(\w+)\}", declared.payload))
    )
    digest = hmac.new(key, payload, declared.algorithm).digest()
    signature = declared.prefix + (digest.hex() if declared.encoding == "hex" else base64.b64encode(digest).decode())
    headers = {}
    if declared.id_from is not None:
        headers[declared.id_from.removeprefix("header:")] = "msg_1"
    if declared.timestamp_from is not None:
        kind, _, name = declared.timestamp_from.partition(":")
        if kind == "header":
            headers[name] = now
        else:
            signature = f"{name}={now}{declared.separator}{signature}"
    return query, {**headers, declared.header: signature}
