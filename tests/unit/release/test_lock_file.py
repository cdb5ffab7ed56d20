"""Check uv.lock as it is, and that a package from elsewhere, or without a hash, is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from release.lock_file import files, locked_packages, problems

ROOT = Path(__file__).parents[3]
OWN = """
[[package]]
name = "forebay"
version = "0.1.0"
source = { editable = "." }
"""
GOOD_HASH = f"sha256:{'a' * 64}"
FILE = "https://files.pythonhosted.org/packages/one-1.0.tar.gz"


def lock_file(folder: Path, package: str) -> Path:
    path = folder / "uv.lock"
    path.write_text(f"version = 1\n{OWN}\n{package}", encoding="utf-8")
    return path


def one(source: str = '{ registry = "https://pypi.org/simple" }', **file: str) -> str:
    content = "".join(f'{name.replace("_", "-")} = "{value}", ' for name, value in file.items()).rstrip(", ")
    return f'[[package]]\nname = "one"\nversion = "1.0"\nsource = {source}\nsdist = {{ {content} }}\n'


def test_the_lock_file_of_this_repository_has_a_hash_for_each_file_and_one_registry() -> None:
    packages = locked_packages(ROOT / "uv.lock")
    assert list(problems(packages)) == []
    assert len(packages) > 100
    assert all(map(files, packages))


def test_a_package_with_hashes_from_the_registry_is_no_problem(tmp_path: Path) -> None:
    assert list(problems(locked_packages(lock_file(tmp_path, one(url=FILE, hash=GOOD_HASH))))) == []


@pytest.mark.parametrize(
    ("package", "problem"),
    [
        (one(url=FILE), "has no SHA-256 hash"),
        (one(url=FILE, hash="md5:00"), "has no SHA-256 hash"),
        (one(url="https://example.org/one-1.0.tar.gz", hash=GOOD_HASH), "is not on https://files.pythonhosted.org/"),
        (one('{ registry = "https://example.org/simple" }', url=FILE, hash=GOOD_HASH), "may be sources"),
        (one('{ git = "https://github.com/a/one#0123" }', url=FILE, hash=GOOD_HASH), "may be sources"),
        (one('{ editable = "." }', hash=GOOD_HASH), "may be sources"),
        (one('{ path = "one.tar.gz" }', hash=GOOD_HASH), "may be sources"),
        ('[[package]]\nname = "one"\nversion = "1.0"\nsource = { registry = "https://pypi.org/simple" }', "no file"),
    ],
)
def test_what_can_not_be_checked_is_named(tmp_path: Path, package: str, problem: str) -> None:
    [found] = problems(locked_packages(lock_file(tmp_path, package)))
    assert found.startswith("one 1.0")
    assert problem in found
