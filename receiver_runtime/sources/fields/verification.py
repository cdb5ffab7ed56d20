"""Declare how senders' requests are verified, and find the ways that installed packages register.

A way is an entry point of the group ``forebay.web_hooks``. ``Hmac`` is Forebay's own; a package registers a way of
another kind under its ``kind``. Only declarations: the class that ``check_class`` names checks requests.
"""

from __future__ import annotations

import importlib
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from receiver_runtime.sources.fields.several import Several

#: A package registers its senders in this entry point group: ``NAME = "package.module:Class"``.
WEB_HOOKS = "forebay.web_hooks"


class Verification(BaseModel):
    """One way to verify requests. A subclass sets ``kind`` to a ``Literal`` of its own, with that value as its default.

    Args:
        protocols: the protocols that go with these senders, such as one that answers what they ask before they send.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    #: What checks requests (a ``RequestCheck``), as ``module:Class``; loaded when a receiver starts.
    check_class: ClassVar[str] = ""

    kind: str
    protocols: Several = ()

    def load_check(self) -> type:
        """Import the class that checks requests, and return it."""
        module, _, name = self.check_class.partition(":")
        loaded: type = getattr(importlib.import_module(module), name)
        return loaded
