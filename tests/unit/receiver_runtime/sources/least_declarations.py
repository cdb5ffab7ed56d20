from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The smallest declaration of each kind that allows several receivers.
LEAST: Mapping[str, Mapping[str, Any]] = {
    "amqp": {"host": "b", "queues": ["q"]},
    "container_logs": {"path": "/in", "shared": True},
    "custom": {"receiver": "package.module:Class"},
    "datagrams": {"listen": "0.0.0.0:8125"},
    "file_lines": {"path": "/in", "shared": True},
    "fluent_forward": {"listen": "0.0.0.0:24224"},
    "followed_files": {"path": "/in", "shared": True},
    "gelf": {"listen": "0.0.0.0:12201"},
    "http": {"listen": "0.0.0.0:8080"},
    "kafka": {"bootstrap_servers": "b:9092", "topics": ["t"], "group": "g"},
    "mqtt": {"host": "b", "topics": ["t"], "client_id": "c", "group": "g"},
    "nats_jetstream": {"servers": "b:4222", "stream": "s", "durable": "d"},
    "otlp_logs": {"listen": "0.0.0.0:4318"},
    "otlp_metrics": {"listen": "0.0.0.0:4318"},
    "otlp_traces": {"listen": "0.0.0.0:4318"},
    "raw_socket": {"listen": "0.0.0.0:9998"},
    "redis_streams": {"host": "b", "streams": ["s"], "group": "g"},
    "socket_text": {"listen": "0.0.0.0:9999"},
    "syslog": {"listen": "0.0.0.0:5514"},
    "whole_files": {"path": "/in", "shared": True},
    "zeromq": {"endpoints": "tcp://b:5556", "socket": "pull"},
}
