"""Watch the files of the project for `forebay up`, and have each new version checked and put in force.

It owns which version was looked at last, and what people are told of it: one line for each change. It loads no code of
the project (``code_change`` does, in a process of its own), and never waits for that process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

from forebay.cli.checks.code_change import CodeAnswer, Outcome, Request
from orchestration.declarations.compatibility import declared_changes
from orchestration.declarations.project_code import CodeCopies, ProjectReader
from receiver_runtime.agent.child_environment import environment_without
from tracker_store.connection.errors import sentence
from tracker_store.host.code_in_force import CODE_VARIABLE
from tracker_store.host.log_files import open_log

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from orchestration.declarations.project_code import ProjectCode

# How long a module may take to be imported and compared.
CHECK_SECONDS = 120.0
# How long a change waits at most for a driver with the one before: a driver takes seconds to start, and with a change
# every few seconds none would ever run a batch.
HELD_SECONDS = 60.0
# How long until a check is tried again that the driver log or a target did not answer, or whose port is taken: each is
# a process of seconds.
AGAIN_SECONDS = 10.0
# When that is said: a driver is mostly there sooner.
SAID_AFTER_SECONDS = 10.0
# How many changed declarations a line of the terminal names.
MOST_CHANGES = 5
OTHER = (
    "Somebody has applied other declarations than those of code {}, whose pipelines therefore make no "
    "batches. `forebay apply` here writes them again."
)
REMOVED = (
    "Pipeline {} was removed, so that no batch of it is made. Take it out of the module, then run `forebay apply`: "
    "while the module has it, that begins it again, as a new pipeline."
)


@dataclass(slots=True)
class _Check:
    """Hold the process that checks a version, and where its answer comes."""

    code: ProjectCode
    process: subprocess.Popen[bytes]
    answer: IO[bytes]
    end_by: float


class CodeWatch:
    """Watch one project. Only one thread calls it."""

    def __init__(self, module: str, home: Path, *, tell: Callable[[str], None], watches: bool = True) -> None:
        """Prepare; `first` comes next.

        Args:
            module: the pipeline module, as `load_pipelines` takes it.
            home: FOREBAY_HOME.
            tell: called with a line for people.
            watches: whether a change of a file counts by itself; else only one that a person applies does.
        """
        self.copies = CodeCopies(home)
        self._module = module
        self._reader = ProjectReader(module)
        self._log_file = home / "logs" / "code-change.log"
        self._tell = tell
        self._watches = watches
        self._in_force: ProjectCode | None = None
        self._declared: Mapping[str, Any] = {}
        self._of_outputs: Sequence[str] = ()
        # The version that was read last, and the one that was checked last.
        self._read = self._checked = ""
        self._rung = False
        self._applied = self.copies.applied()
        # The version that a person has applied, until it is in force: a later change back to it is another decision.
        self._agreed = ""
        # Without a watch a change counts if somebody has applied declarations since, here or elsewhere.
        self._is_applied = False
        self._said = ""
        # How the driver log differs from what the version in force declares, which the files have; empty: it does not.
        self._other = ""
        self._check: _Check | None = None
        self._changed_at = self._again_at = float("-inf")

    def first(self) -> str:
        """Put the version that the files have now in force, and return it: nothing runs yet."""
        code = self._reader.read()
        self.copies.of(self._module)
        self.copies.put_in_force(self.copies.keep(code))
        self.copies.note("")
        self.copies.declares(None)
        self._in_force = code
        self._read = self._checked = code.version
        return code.version

    def runs(
        self,
        declared: Mapping[str, Any],
        environment: Mapping[str, str],
        withheld: Collection[str],
        of_outputs: Collection[str] = (),
        *,
        waits: str = "",
    ) -> None:
        """Take what the version in force declares, and the environment that it is loaded in.

        Args:
            declared: all of its pipelines and streams.
            environment: of the services.
            withheld: variables of this process that the check is not given.
            of_outputs: the variables that receivers are not given.
            waits: what of it is not applied, and why.
        """
        self._declared = declared
        self._other = waits
        self._of_outputs = sorted(of_outputs)
        self.copies.declares(declared)
        self._environment = {**environment_without(withheld), **environment}

    def look(
        self,
        *,
        rung: bool = False,
        is_applied: bool = False,
        differs: Callable[[Mapping[str, Any], str], str] = lambda *_: "",
        waits: Callable[[], bool] = lambda: False,
    ) -> CodeAnswer | None:
        """Look once; return the result of a version that is in force from now on. Returns at once.

        What the disk or the system refuses is said, and tried again.

        Args:
            rung: the driver log's declarations have changed.
            is_applied: some of them are new or have changed, and are not just gone.
            differs: says how the driver log differs from what the version in force declares, which it is given with
                the version's name; empty: it does not.
            waits: whether no driver is ready, or a batch waits for one.
        """
        self._rung = self._rung or rung
        self._is_applied = self._is_applied or is_applied
        try:
            return self._look(differs, waits)
        except OSError as error:
            line = f"Changes of the code take no effect for now, because it can't be read or copied: {error}."
            if line != self._said:
                self._said = line
                self._tell(line)
            return None

    def _look(self, differs: Callable[[Mapping[str, Any], str], str], waits: Callable[[], bool]) -> CodeAnswer | None:
        self._look_for_an_apply()
        if self._check is not None:
            return self._answered(self._check)
        code = self._reader.read()
        is_whole = code.version == self._read
        self._read = code.version
        # A file that is being written has other content a moment later.
        if not is_whole or time.monotonic() < self._again_at:
            return None
        if self._in_force is not None and code.version == self._in_force.version:
            if self._rung:
                # Applied from somewhere else: no change of these files would follow.
                self._other = differs(self._declared, code.version)
            self._rung = False
            self._agreed = ""
            self._checked = code.version
            if self._said and not self._other:
                self._tell(f"That is over: code {code.version} runs, as the files have it.")
            self._say(self._other)
        elif not (self._watches or self._is_applied):
            if code.version != self._checked:
                changed = ", ".join(code.changed_since(self._in_force))
                self._say(f"{changed} changed and waits for `forebay apply` (--no-watch).")
        elif self._rung or (code.version != self._checked and not self._is_held(waits)):
            self._begin(code)
            self._checked = code.version
            self._rung = self._is_applied = False
        elif code.version != self._checked and time.monotonic() - self._changed_at > SAID_AFTER_SECONDS:
            changed = ", ".join(code.changed_since(self._in_force))
            self._say(f"{changed} changed and is looked at when a batch driver has the version before, or in a minute.")
        return None

    def _is_held(self, waits: Callable[[], bool]) -> bool:
        return time.monotonic() - self._changed_at < HELD_SECONDS and waits()

    def close(self) -> None:
        """End a check that is under way, and what is said: the next `forebay up` takes the files as they are."""
        self.copies.note("")
        self.copies.declares(None)
        if self._check is not None:
            self._end(self._check)

    def _request(self, version: str) -> Request:
        return Request(
            self._declared,
            agreed=self._agreed == version,
            runs=None if self._in_force is None else str(self.copies.file_of(self._in_force.version)),
            of_outputs=self._of_outputs,
        )

    def _begin(self, code: ProjectCode) -> None:
        if self._agreed != code.version:
            # What a person has applied is not what the files have now.
            self._agreed = ""
        request = self._request(code.version)
        answer = tempfile.TemporaryFile()  # noqa: SIM115  closed with the check
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        with open_log(self._log_file) as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "forebay.cli.checks.code_change"],
                env={**self._environment, CODE_VARIABLE: str(self.copies.keep(code))},
                stdin=subprocess.PIPE,
                stdout=answer,
                stderr=log,
                start_new_session=True,
            )
        assert process.stdin is not None
        self._check = _Check(code, process, answer, time.monotonic() + CHECK_SECONDS)
        try:
            process.stdin.write(json.dumps(asdict(request)).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            # It has ended already; its answer is missing.
            return

    def _answered(self, check: _Check) -> CodeAnswer | None:
        late = time.monotonic() > check.end_by
        if check.process.poll() is None and not late:
            return None
        code = self._end(check)
        check.answer.seek(0)
        said = check.answer.read()
        check.answer.close()
        # One that was killed may have written a part of it.
        if said.endswith(b"\n"):
            found = json.loads(said)
            result = CodeAnswer(**{**found, "outcome": Outcome(found["outcome"])})
        elif self.copies.in_force() == self.copies.file_of(check.code.version) or not (late or code > 0):
            # It was killed, or may have begun with the driver log: whatever it did can be done again.
            result = CodeAnswer(Outcome.UNKNOWN, "the process that checks it was ended")
        elif late:
            result = CodeAnswer(Outcome.REFUSED, f"it is not loaded within {CHECK_SECONDS:g} s")
        else:
            result = CodeAnswer(Outcome.REFUSED, f"its process ended with code {code}; see {self._log_file}")
        return self._concluded(check.code, result)

    def _end(self, check: _Check) -> int:
        self._check = None
        check.process.kill()
        assert check.process.stdin is not None
        check.process.stdin.close()
        return check.process.wait()

    def _concluded(self, code: ProjectCode, result: CodeAnswer) -> CodeAnswer | None:
        changed = ", ".join(code.changed_since(self._in_force))
        runs_on = f"code {'' if self._in_force is None else self._in_force.version} runs on."
        match result.outcome:
            case Outcome.IN_FORCE:
                self._in_force = code
                if self._agreed == code.version:
                    self._agreed = ""
                self._changed_at = time.monotonic()
                changes = declared_changes(self._declared, result.declared)
                more = [f"and {len(changes) - MOST_CHANGES} more"] if len(changes) > MOST_CHANGES else []
                otherwise = "; ".join([*changes[:MOST_CHANGES], *more])
                self._declared = result.declared
                self.copies.declares(result.declared)
                self.copies.note("")
                self._said = self._other = ""
                self._tell(
                    f"{changed} changed: from the next batch on, code {code.version} runs"
                    f"{f' ({otherwise})' if otherwise else ''}.{f' {result.why}' if result.why else ''}"
                )
                return result
            case Outcome.WAITS:
                self._say(
                    f"{changed} changed and waits for `forebay apply`: {sentence(result.why)} Until then, {runs_on}"
                )
            case Outcome.REFUSED:
                self._say(
                    f"{changed} changed and can't be used: {sentence(result.why)} Until that is corrected, {runs_on}"
                )
            case Outcome.UNKNOWN:
                self._checked = ""
                self._again_at = time.monotonic() + AGAIN_SECONDS
                # Without a watch it was begun because a person has applied it.
                self._rung = self._is_applied = not self._watches
                self._say(f"{changed} changed and is looked at again: {result.why}. Until then, {runs_on}")
        return None

    def _look_for_an_apply(self) -> None:
        applied = self.copies.applied()
        if applied is not None and applied != self._applied:
            self._rung, self._is_applied, self._agreed = True, True, applied[0]
        self._applied = applied

    def _say(self, line: str) -> None:
        """Say a line once, and keep it for `forebay status`; an empty one ends what was said."""
        if line == self._said:
            return
        self._said = line
        self.copies.note(line)
        if line:
            self._tell(line)
