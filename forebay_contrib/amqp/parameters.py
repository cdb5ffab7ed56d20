"""Make pika's parameters of a connection from the declaration. Must never connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pika

from receiver_runtime.sources.fields.tls_context import client_context

if TYPE_CHECKING:
    from forebay_contrib.amqp.declaration import Amqp


def connection_parameters(source: Amqp, receiver_id: int) -> pika.ConnectionParameters:
    """Return the parameters; raises where a secret or a file is missing."""
    tls = None
    if source.tls is not None:
        tls = pika.SSLOptions(client_context(source.tls), source.tls.server_hostname or source.host)
    password = "guest" if source.password is None else source.password.resolve()
    return pika.ConnectionParameters(
        host=source.host,
        port=source.broker_port,
        virtual_host=source.virtual_host,
        credentials=pika.PlainCredentials(source.username, password),
        heartbeat=int(source.heartbeat),
        socket_timeout=source.connect_timeout,
        stack_timeout=source.connect_timeout,
        ssl_options=tls,
        client_properties={"connection_name": f"forebay receiver {receiver_id}"},
    )
