"""Make text from outside harmless for a terminal: control characters become escapes that can be read.

Record contents, error messages of senders and names of files reach terminals in tables, events and log lines. A
terminal obeys the control characters in them: it would retype the screen, change its title, or hide a line. This module
changes what is shown, never what is stored.
"""

from __future__ import annotations

import re

# All of Unicode's control characters except newline and tab, which the layout of a table handles, and the characters
# that change the direction of text, by which a line can be shown in another order.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    r"""Return the text with each unsafe character as ``\u001b``, which is also how JSON writes it."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
