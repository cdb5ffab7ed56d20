"""Hold the URL of a server or a store, which may have secrets in it, and is printed without them.

Owns what is a secret in a URL: the password, the user of an object store (an access key), and options with such names.
It must find them however the URL is malformed, because a malformed one is what gets printed. It loads nothing, because
settings, sinks and Spark's workers use it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote, unquote_plus

_MASK = "***"
_SECRET_OPTION = re.compile(
    r"pass(?!file)|pwd|secret|token|credential|(access|account|private|api)[-_]?key|^sig|session", re.IGNORECASE
)
_PORT = re.compile(r"\d{0,5}")
_MOST_PORT = 65_535
# Schemes in which the user is an access key, and so a secret too.
_ACCESS_KEYS = ("s3", "gs", "gcs")
# A bucket has no port: a colon before the path belongs to a login.
_OBJECT_STORES = ("s3", "gs", "gcs", "abfs", "abfss")
# Characters. A shorter secret may be any part of a text.
_LEAST_SECRET = 4


@dataclass(frozen=True, slots=True)
class SecretUrl:
    """Hold a URL, or a path. ``str`` and ``repr`` are without secrets; ``reveal`` has them."""

    _text: str = field(repr=False)

    def reveal(self) -> str:
        """Return the URL as it was written, with its secrets: for the library that connects, never for people."""
        return self._text

    @property
    def name(self) -> str:
        """Return it without login and options: the name of a store, also in the driver log."""
        scheme, separator, _, host, path, _ = self._parts()
        return f"{scheme}{separator}{host}{path}"

    @property
    def shown(self) -> str:
        """Return it for people, with ``***`` in the place of a password, an access key and options that are secrets."""
        scheme, separator, login, host, path, query = self._parts()
        user, colon, password = login.partition(":")
        if login and _names_its_user(scheme):
            login = f"{user}:{_MASK}@" if colon and password else f"{user}@"
        elif login:
            login = f"{_MASK}@"
        options = [
            f"{name}{equals}{_MASK if _is_secret(name) else value}"
            for name, equals, value in (one.partition("=") for one in query.split("&"))
        ]
        hosts = ",".join(f"{name}{colon}{port if _is_port(port) else _MASK}" for name, colon, port in _hosts(host))
        return f"{scheme}{separator}{login}{hosts}{path}{'?' if query else ''}{'&'.join(options)}"

    @property
    def has_secret(self) -> bool:
        """Return whether there is a secret in it: a password, an access key, or an option."""
        return _MASK in self.shown

    @property
    def has_unescaped_login(self) -> bool:
        """Return whether its login has a character that ends a login (``/``, ``?``, ``#``): write it as ``%2F``."""
        login = self._parts()[2]
        return any(character in login for character in "/?#")

    @property
    def fault(self) -> str | None:
        """Return why a server's address is none, and what to write; None if nothing speaks against it."""
        _, separator, login, host, _, _ = self._parts()
        if "#" in self._text.partition(separator or "://")[2][len(login) :]:
            return "what follows '#' is no part of an address: leave it out, or write %23 for a '#' in a name"
        if any(port and _is_port(port) and int(port) not in range(1, _MOST_PORT + 1) for _, _, port in _hosts(host)):
            return f"its port is none: give one from 1 to {_MOST_PORT}"
        return None

    def scrub(self, text: str) -> str:
        """Return a text, such as a library's error, with ``***`` in the place of every secret of this URL."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, _MASK)
        return text

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"SecretUrl({self.shown!r})"

    def _secrets(self) -> set[str]:
        scheme, _, login, host, _, query = self._parts()
        user, _, password = login.partition(":")
        found = {password} if _names_its_user(scheme) else {user, password}
        found |= {value for name, _, value in (one.partition("=") for one in query.split("&")) if _is_secret(name)}
        found |= {port for _, _, port in _hosts(host) if not _is_port(port)}
        # A library may have read only a part of a password with a special character.
        found |= {part for secret in set(found) for part in re.split(r"[/?#@:]", secret)}
        found |= {unquote(secret) for secret in found} | {unquote_plus(secret) for secret in found}
        return {secret for secret in found if len(secret) >= _LEAST_SECRET}

    def _parts(self) -> tuple[str, str, str, str, str, str]:
        """Return scheme, ``://``, login (without its ``@``), host, path and query; together, all but a fragment."""
        scheme, separator, rest = self._text.partition("://")
        if not separator:
            return "", "", "", "", self._text, ""
        scheme = scheme.lower()
        authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
        login, at, _ = authority.rpartition("@")
        if not at and _begins_a_login(scheme, authority, rest):
            login, at, _ = rest.rpartition("@")
        rest = rest[len(login) + len(at) :]
        rest, _, _ = rest.partition("#")
        place, _, query = rest.partition("?")
        host, slash, path = place.partition("/")
        return scheme, separator, login, host, slash + path, query


def _begins_a_login(scheme: str, authority: str, rest: str) -> bool:
    """Return whether what is before the first slash is the begin of ``user:pass/word@host``, and not a host.

    In doubt it is a login: a secret that is printed does more harm than a name that is cut.
    """
    _, colon, after = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        return False
    return scheme in _OBJECT_STORES or not _PORT.fullmatch(after) or "@" in re.split(r"[?#]", rest, maxsplit=1)[0]


def _hosts(hosts: str) -> list[tuple[str, str, str]]:
    """Return the hosts of an authority, each with its colon and its port, or what stands in the port's place."""
    found = []
    for one in hosts.split(","):
        name, colon, port = ("", "", "") if one.endswith("]") else one.rpartition(":")
        found.append((name, colon, port) if colon else (one, "", ""))
    return found


def _is_port(text: str) -> bool:
    return _PORT.fullmatch(text) is not None


def _names_its_user(scheme: str) -> bool:
    return scheme not in _ACCESS_KEYS


def _is_secret(option: str) -> bool:
    return bool(_SECRET_OPTION.search(option))
