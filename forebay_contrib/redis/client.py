"""Make a Redis client that retries nothing, and hands on answers as the server sends them. It must send no command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

if TYPE_CHECKING:
    from forebay_contrib.redis.declaration import RedisStreams


def connect(source: RedisStreams) -> redis.Redis:
    """Return a client, which connects with its first command; raises where a secret or a file is missing."""
    tls: dict[str, Any] = {}
    if source.tls is not None:
        tls = {
            "ssl": True,
            "ssl_ca_certs": source.tls.ca_file,
            "ssl_certfile": source.tls.certificate_file,
            "ssl_keyfile": source.tls.key_file,
            "ssl_password": None if source.tls.key_password is None else source.tls.key_password.resolve(),
            "ssl_cert_reqs": "required" if source.tls.verify else "none",
            "ssl_check_hostname": source.tls.verify,
        }
    client = redis.Redis(
        host=source.host,
        port=source.port,
        db=source.database,
        username=source.username,
        password=None if source.password is None else source.password.resolve(),
        socket_timeout=source.connect_timeout,
        socket_connect_timeout=source.connect_timeout,
        protocol=2,
        # The library would retry by itself and get only new entries. Entries in an answer that was lost would wait
        # until they are taken over.
        retry=Retry(NoBackoff(), 0),
        **tls,
    )
    # Take answers as the server sends them: the library makes a dict of an entry, whose fields may repeat a name.
    for command in ("XREADGROUP", "XAUTOCLAIM", "XRANGE", "XREVRANGE"):
        client.set_response_callback(command, lambda response, **_: response)
    return client
