"""Find out whether a server of S3 has the conditional put that a commit of Delta is, by two puts of one object.

deltalake has no call for it that does not list what is there first. So this module signs its few requests itself, with
the keys that deltalake is given.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

if TYPE_CHECKING:
    from collections.abc import Mapping

_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_SECONDS = 20.0
_TRUTHS = ("1", "true", "on", "yes", "y")
_UNANSWERED = (
    *(HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.TOO_MANY_REQUESTS),
    *(HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE),
    HTTPStatus.GATEWAY_TIMEOUT,
)
_REFUSED = (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.CONFLICT)


def has_conditional_put(options: Mapping[str, str], url: str) -> bool:
    """Return whether the server refuses a put under the condition that there is no such object, if there is one.

    `options`: deltalake's, with names in lower case. Raises OSError if the server can't be asked.
    """
    endpoint = _option(options, "endpoint_url", "endpoint", "endpoint_url_s3") or ""
    host = urlsplit(endpoint).hostname or ""
    if not endpoint or host.endswith(_AMAZON):
        return True
    bucket, _, prefix = url.partition("://")[2].partition("/")
    # Readers skip what begins with an underscore.
    key = f"{prefix}/_forebay_probe/{secrets.token_hex(8)}"
    is_virtual = (_option(options, "virtual_hosted_style_request") or "").lower() in _TRUTHS
    address = f"{endpoint.rstrip('/')}/{quote(key if is_virtual else f'{bucket}/{key}')}"
    if _asked("PUT", address, options) not in (HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.CREATED):
        return False
    try:
        return _asked("PUT", address, options) in _REFUSED
    finally:
        _asked("DELETE", address, options)


def _option(options: Mapping[str, str], *names: str) -> str | None:
    """Return an option by its names, without and with `aws_`, else the variable that deltalake takes it from."""
    for name in names:
        for spelled in (name, f"aws_{name}"):
            if spelled in options:
                return options[spelled]
    return next((found for name in names if (found := os.environ.get(f"AWS_{name.upper()}"))), None)


def _asked(method: str, address: str, options: Mapping[str, str]) -> int:
    """Return the status of an answer. Raises OSError if there is none, or the server lets these keys do nothing."""
    body = b"x" if method == "PUT" else b""
    headers = {"If-None-Match": "*"} if method == "PUT" else {}
    request = Request(address, data=body or None, method=method, headers=headers)  # noqa: S310  http or https below
    if request.type not in ("http", "https"):
        raise OSError(f"its endpoint is no http:// or https:// address but {request.type}:")
    if (_option(options, "skip_signature") or "").lower() not in _TRUTHS:
        _sign(request, body, options)
    try:
        with urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            return int(answer.status)
    except HTTPError as error:
        with error:
            if error.code in _UNANSWERED:
                raise OSError(f"{method} answered {error.code} {error.reason}") from None
            return error.code


def _sign(request: Request, body: bytes, options: Mapping[str, str]) -> None:
    """Add AWS's signature, version 4, of a request without a query."""
    key, secret = _option(options, "access_key_id"), _option(options, "secret_access_key")
    if not key or not secret:
        raise OSError(
            "it is no server of Amazon's, and is asked with aws_access_key_id and aws_secret_access_key: give both in "
            "storage_options"
        )
    region = _option(options, "region", "default_region") or "us-east-1"
    now, parts = datetime.now(UTC), urlsplit(request.full_url)
    content = hashlib.sha256(body).hexdigest()
    signed = {"host": parts.netloc, "x-amz-content-sha256": content, "x-amz-date": f"{now:%Y%m%dT%H%M%SZ}"}
    if token := _option(options, "session_token", "token"):
        signed["x-amz-security-token"] = token
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(signed.items()))
    names = ";".join(sorted(signed))
    canonical = f"{request.get_method()}\n{parts.path}\n\n{lines}\n{names}\n{content}"
    scope = f"{now:%Y%m%d}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{signed['x-amz-date']}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    made = f"AWS4{secret}".encode()
    for part in (*scope.split("/"), text):
        made = hmac.new(made, part.encode(), hashlib.sha256).digest()
    for name, value in signed.items():
        request.add_header(name, value)
    request.add_header(
        "Authorization",
        f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={made.hex()}",
    )
