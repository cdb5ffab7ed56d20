"""Give every command its console: a rich console that prints what it is given, with control characters escaped.

Use this class in place of rich's own. It must never change text that Forebay did not print as text: styles are rich's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import console

from tracker_store.host.terminal_text import escaped

if TYPE_CHECKING:
    from rich.text import Text


def printed_link(to: console.Console, url: str, token: str | None, *, kept_in: str) -> str:
    """Return what a line says of an address: a link with its token on a terminal, and elsewhere where the token is.

    A file or a journal that the line goes to may be read by others. `kept_in`: a file, or a setting.
    """
    from orchestration.dagster_instance.browser_token import link_with_token  # noqa: PLC0415  loads starlette, and most commands do not

    # Not `is_terminal`, which variables such as FORCE_COLOR set.
    if token is None or to.file.isatty():
        return link_with_token(url, token)
    return f"{url} (its token is in {kept_in})"


class Console(console.Console):
    """Print as rich does, but let no text, even in the cells and titles of tables, send commands to the terminal.

    Nor is a name such as ``a:key:b`` an emoji.
    """

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401  rich's own
        """Return a string as rich's text. Rich calls it for each string that it prints or measures."""
        return super().render_str(escaped(text), **{**options, "emoji": False})
