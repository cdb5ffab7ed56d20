"""For your streams: how senders sign their web hooks, for ``Http(verify=...)``.

Each sender is imported when it is asked for. Type checkers read `web_hooks.pyi`.
"""

# ruff: noqa: F822  `__getattr__` finds what `__all__` names
from __future__ import annotations

from receiver_runtime.sources import plugins
from receiver_runtime.sources.fields.hmac_signature import Hmac
from receiver_runtime.sources.fields.verification import WEB_HOOKS, Verification

__all__ = [
    "GitHub",
    "Hmac",
    "Meta",
    "Shopify",
    "Slack",
    "Sns",
    "StandardWebhooks",
    "Stripe",
    "Twilio",
    "Verification",
]


def __getattr__(name: str) -> object:
    """Return the registered sender of this name. Raises AttributeError, and PluginError if its package is broken."""
    known = None if name.startswith("_") else plugins.class_names(WEB_HOOKS).get(name)
    if known is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return plugins.load(WEB_HOOKS, known, Verification)


def __dir__() -> list[str]:
    """Return every public name, those of registered senders among them."""
    return sorted({*__all__, *plugins.class_names(WEB_HOOKS)})
