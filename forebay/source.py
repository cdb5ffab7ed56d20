"""For kinds of source of your own: what their declarations are made of. See ``docs/how-to/add-a-source.md``.

Importing this loads no receiver, neither Dagster nor Spark. What receivers are made of is in ``forebay.receiver``.
"""

from __future__ import annotations

from receiver_runtime.sources.fields.secret import EnvVar, Secret, SecretError
from receiver_runtime.sources.fields.several import Several
from receiver_runtime.sources.fields.tcp import Host, Servers, Tls, address_of, parse_listen, parse_tls
from receiver_runtime.sources.fields.units import parse_bytes, parse_duration
from receiver_runtime.sources.source import Guarantee, Source, SourceError, SourceRule

__all__ = [
    "EnvVar",
    "Guarantee",
    "Host",
    "Secret",
    "SecretError",
    "Servers",
    "Several",
    "Source",
    "SourceError",
    "SourceRule",
    "Tls",
    "address_of",
    "parse_bytes",
    "parse_duration",
    "parse_listen",
    "parse_tls",
]
