"""Check uv.lock as it is, and that a package from elsewhere, or without a hash, is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from release.lock_file import LockFileError, read_lock_file

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
    lock = read_lock_file(ROOT / "uv.lock")
    assert lock.problems() == []
    assert len(lock.packages) > 100
    assert all(package.files for package in lock.packages if not package.is_own)


def test_a_package_with_hashes_from_the_registry_is_no_problem(tmp_path: Path) -> None:
    assert read_lock_file(lock_file(tmp_path, one(url=FILE, hash=GOOD_HASH))).problems() == []


@pytest.mark.parametrize(
    ("package", "problem"),
    [
        (one(url=FILE), "has no SHA-256 hash"),
        (one(url=FILE, hash="md5:00"), "has no SHA-256 hash"),
        (one(url="https://example.org/one-1.0.tar.gz", hash=GOOD_HASH), "is not on https://files.pythonhosted.org/"),
        (one('{ registry = "https://example.org/simple" }', url=FILE, hash=GOOD_HASH), "may be sources"),
        (one('{ git = "https://github.com/a/one#0123" }', url=FILE, hash=GOOD_HASH), "may be sources"),
        (one('{ path = "one.tar.gz" }', hash=GOOD_HASH), "may be sources"),
        ('[[package]]\nname = "one"\nversion = "1.0"\nsource = { registry = "https://pypi.org/simple" }', "no file"),
    ],
)
def test_what_can_not_be_checked_is_named(tmp_path: Path, package: str, problem: str) -> None:
    [found] = read_lock_file(lock_file(tmp_path, package)).problems()
    assert found.startswith("one 1.0")
    assert problem in found


def test_a_second_package_that_claims_to_be_this_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LockFileError, match="2 packages"):
        read_lock_file(lock_file(tmp_path, OWN.replace("forebay", "one")))


def test_a_file_that_is_no_lock_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "uv.lock"
    path.write_text("package", encoding="utf-8")
    with pytest.raises(LockFileError, match=r"uv\.lock can't be read"):
        read_lock_file(path)
