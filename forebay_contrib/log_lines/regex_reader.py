"""Read log lines by a pattern, with RE2 as Arrow has it: all lines at once, in time that is linear in their length."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_contrib.log_lines.declaration import Regex
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.text_reader import Lines, TextReader, not_empty

if TYPE_CHECKING:
    from receiver_runtime.sources.records.declared import Records

_GROUP = re.compile(r"\(\?P?<(\w+)>")


class RegexReader(TextReader):
    """Read lines that a pattern matches as a whole; see the module. Safe from any thread."""

    def __init__(self, records: Records) -> None:
        """Raise ValueError if RE2 does not take the pattern, or a column has no group."""
        super().__init__(records)
        assert isinstance(records, Regex)
        nothing = pa.array([], pa.string())
        try:
            # By itself too: what stands around it must not complete it.
            groups = [field.name for field in pc.extract_regex(nothing, records.pattern).type]
            self._pattern = f"^(?:{records.pattern})$"
            pc.extract_regex(nothing, self._pattern)
        except pa.ArrowInvalid as error:
            raise ValueError(f"pattern: {error}: write one that RE2 takes, with named groups only") from error
        for name in self.schema.names:
            if groups.count(name) != 1:
                many = "two groups" if name in groups else "no group"
                raise ValueError(f"pattern: there is {many} for column {name!r}: write (?P<{name}>…) once")

    def columns(self, lines: Lines) -> list[pa.StringArray]:
        """Return what the groups matched."""
        found = pc.extract_regex(lines.texts(), self._pattern)
        others = np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False) & ~lines.blank)
        lines.refuse(others.tolist(), DeadLetterReason.UNPARSABLE, "the pattern does not match all of it")
        return [not_empty(pc.struct_field(found, name)) for name in self.schema.names]
