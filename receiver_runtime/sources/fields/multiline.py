r"""Declare which lines of a file, connection or program belong together and make one record.

Only the declaration and its checks; ``joined_lines`` and ``keyed_joins`` of ``receiver_runtime.record_formats`` join.
"""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from receiver_runtime.sources.fields.units import parse_duration

#: What Python's syntax has and RE2's has not, whose time grows with the line's length alone: looks around, references
#: back, atomic groups and some escapes.
_NOT_IN_RE2 = re.compile(
    r"(?<!\\)(?:\\\\)*(\(\?(?:<?[=!]|>|P=|\(|#|[a-zA-Z-]*[axuL])|\\(?:[1-9ZuUN]|[^\x00-\x7f])|[*+?}]\+|\[[^\]]*\\b)"
)

#: Lines of stack traces that continue a record, by language. Fluent Bit's rules of the same names, without their
#: states: so that a line's meaning does not depend on the lines before it.
_CONTINUATIONS = {
    "java": (
        r"^[\t ]+(?:eval )?at |^[\t ]*\.\.\. \d+ (?:more|common frames omitted)|^[\t ]*(?:Caused by|Suppressed): "
        r"|^[\t ]*nested exception is:|^[\t ]*--- End of (?:inner exception )?stack trace"
        r"|^(?:[A-Za-z_$][\w$]*\.)+[A-Z][\w$]*(?:Exception|Error|Throwable)(?::|\r?$)"
    ),
    "python": (
        r"^[\t ]|^\r?$|^Traceback \(most recent call last\):|^During handling of the above exception, another "
        r"|^The above exception was the direct cause of "
        r"|^(?:\w+\.)*\w*(?:Error|Exception|ExceptionGroup|Warning|Exit|Interrupt|StopIteration)(?::|\r?$)"
    ),
    "go": (
        r"^\t|^\r?$|^goroutine \d+ |^\[signal |^created by |^exit status \d"
        r"|^(?:[\w\-./]+\.)+(?:\(\*?[\w.\[\]]+\)\.)?[\w.\[\]]+\(.*\)\r?$"
    ),
}


class Multiline(BaseModel):
    r"""Say which lines belong together: by a pattern of first lines, or by one of the lines that continue a record.

    A record is complete when the next one begins, when it is as large as it may be, when its file or connection ends,
    or ``timeout`` after its first line was read. Lines that come later begin a record of their own: none is lost.

    Args:
        start: a regular expression (RE2) that a record's first line matches somewhere, as ``r"^\d{4}-\d\d-\d\d "``.
        continuation: one that every other line of a record matches. Give this or ``start``.
        timeout: how long a record may wait for more lines.
        max_lines: the most lines of a record. Those that follow begin another one, as behind ``max_record_bytes``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: str | None = None
    continuation: str | None = None
    timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0)] = 5.0
    max_lines: Annotated[int, Field(ge=2, le=1_000_000)] = 1000

    @property
    def pattern(self) -> str:
        """Return the one pattern that is given."""
        return self.start or self.continuation or ""

    @field_validator("start", "continuation")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        if not pattern:
            raise ValueError("an empty pattern matches each line: give one as r'^\\d{4}-'")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        if (found := _NOT_IN_RE2.search(pattern)) is not None:
            raise ValueError(
                f"{pattern!r}: {found[0]!r} is not in RE2's syntax, which takes the same time for any line"
            )
        return pattern

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.start is None) == (self.continuation is None):
            raise ValueError("give either `start` or `continuation`, as Multiline(start=r'^\\d{4}-')")
        return self


def _by_name(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in _CONTINUATIONS:
        raise ValueError(
            f"{value!r} is not known: use {', '.join(map(repr, _CONTINUATIONS))}, or Multiline(start=r'^\\d{{4}}-')"
        )
    return Multiline(continuation=_CONTINUATIONS[value])


#: ``Multiline(...)``, or the name of a language whose stack traces make one record: "java", "python" or "go".
MultilineField = Annotated[Multiline, BeforeValidator(_by_name)]
