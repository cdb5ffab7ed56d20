"""For your streams: how senders sign their web hooks, for ``Http(verify=...)``.

Each sender is imported when it is asked for. Type checkers read `web_hooks.pyi`.
"""

# ruff: noqa: F822  `__getattr__` finds what `__all__` names
from __future__ import annotations

from receiver_runtime.sources import plugins
from receiver_runtime.sources.fields.hmac_signature import Hmac

#: A package registers its senders in this entry point group: ``NAME = "package.module:Class"``, a child of ``Hmac``.
GROUP = "forebay.web_hooks"

__all__ = [
    "GitHub",
    "Hmac",
    "Meta",
    "Shopify",
    "Slack",
    "StandardWebhooks",
    "Stripe",
    "Twilio",
]


def __getattr__(name: str) -> object:
    """Return the registered sender of this name. Raises AttributeError, and PluginError if its package is broken."""
    known = None if name.startswith("_") else plugins.class_names(GROUP).get(name)
    if known is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return plugins.load(GROUP, known, Hmac)


def __dir__() -> list[str]:
    """Return every public name, those of registered senders among them."""
    return sorted({*__all__, *plugins.class_names(GROUP)})
