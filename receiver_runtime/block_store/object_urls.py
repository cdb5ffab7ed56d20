"""Check the URL of an object store, and the options of S3, where they are declared: what is wrong fails no batch later.

Opens and loads nothing, and repeats nothing that may be a secret.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from receiver_runtime.block_store.roots import without_secrets
from receiver_runtime.block_store.secret_url import SecretUrl

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Options in the URL of S3 that are no secrets.
S3_OPTIONS = ("endpoint_override", "force_virtual_addressing", "region", "scheme", "tls_ca_file_path")
TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_CHOICES = {"force_virtual_addressing": tuple(TRUTHS), "scheme": ("http", "https")}
_ENDPOINT = re.compile(
    r"(?:https?://)?(?:\[[0-9A-Fa-f:.]+\]|[^\s/@,:\[\]?#*\0]+)(?::(?P<port>\d{1,5}))?(?:/[^\s?#@]*)?"
)
_MOST_PORT = 65_535


def option_fault(name: str, value: str) -> str | None:
    """Return why an option of S3 is none, and what to write; None if nothing speaks against it."""
    if name in _CHOICES and (value if name == "scheme" else value.lower()) not in _CHOICES[name]:
        return f"{name}={value!r} is none of {', '.join(_CHOICES[name])}"
    if name == "endpoint_override":
        endpoint = _ENDPOINT.fullmatch(value)
        if "@" in value:
            return f"{name} has no login in it: give it as access_key and secret_key, by reference"
        if endpoint is None or not 0 < int(endpoint["port"] or 1) <= _MOST_PORT:
            return f"{name}={value!r} is no server: write HOST:PORT with a port from 1 to {_MOST_PORT}, as 'minio:9000'"
    elif value != value.strip():
        return f"{name}={value!r}: leave out the blanks at its ends"
    return None


def url_fault(url: str) -> str | None:
    """Return why a URL can't be one of an object store, and what to write; None if nothing speaks against it."""
    return next(_url_faults(url), None)


def _url_faults(url: str) -> Iterator[str]:
    address, name = SecretUrl(url), repr(without_secrets(url))
    if address.has_unescaped_login:
        yield (
            f"the access key or the secret key of {name} has a special character: write / as %2F, ? as %3F and # as %23"
        )
    try:
        parts = urlsplit(url)
    except ValueError as error:
        yield f"{name}: {error}"
        return
    if parts.fragment or url.endswith("#"):
        yield f"{name}: what follows '#' would be left out: write %23 for a '#' in a key, and none in an option"
    if not parts.netloc:
        yield f"{name} names no bucket: write {parts.scheme}://BUCKET/PREFIX"
    given = parse_qsl(parts.query, keep_blank_values=True) if parts.scheme == "s3" else []
    for at, (option, value) in enumerate(given):
        if option not in S3_OPTIONS:
            yield f"the option {option!r} of {name} is not known: known are {', '.join(S3_OPTIONS)}"
        if option in dict(given[:at]):
            yield f"{name} has the option {option!r} twice: give it once"
        if (why := option_fault(option, value)) is not None:
            yield f"{name}: {why}"
