"""Classes that packages register: found by name, and an error that says which package to look at."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.sources.plugins import PluginError, load, registered
from tests.support.installed_package import install_package

if TYPE_CHECKING:
    from pathlib import Path

_GROUP = "forebay.test_plugins"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on the path, in which packages can be installed."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_registered_class_is_imported_when_it_is_asked_for(install: Path) -> None:
    install_package(install, "good", _GROUP, "boom = good_code:Boom", "class Boom(ValueError): pass")
    install_package(install, "bad", _GROUP, "apart = bad_code:Apart", "raise RuntimeError('unplugged')")
    assert list(registered(_GROUP)) == ["apart", "boom"]
    assert load(_GROUP, "boom", ValueError).__name__ == "Boom"


@pytest.mark.parametrize(
    ("entry", "module", "words"),
    [
        ("other = p_code:X", "", "no package that is installed here registers 'x'"),
        ("x = p_code:X", "raise RuntimeError('unplugged')", "registered by p 1.5, .*RuntimeError: unplugged"),
        ("x = p_code:X", "import sys; sys.exit(3)", "registered by p 1.5, .*SystemExit: 3"),
        ("x = p_code:X", "", "registered by p 1.5, .*AttributeError"),
        ("x = p_code:X", "X = 5", "registered by p 1.5, is no child of ValueError"),
        ("x = p_code:X", "class X: pass", "registered by p 1.5, is no child of ValueError"),
    ],
)
def test_what_cannot_be_loaded_names_its_package(
    install: Path, monkeypatch: pytest.MonkeyPatch, entry: str, module: str, words: str
) -> None:
    monkeypatch.delitem(sys.modules, "p_code", raising=False)
    install_package(install, "p", _GROUP, entry, module)
    with pytest.raises(PluginError, match=words):
        load(_GROUP, "x", ValueError)


def test_a_name_that_two_packages_register_is_refused(install: Path) -> None:
    install_package(install, "one", _GROUP, "x = one_code:X", "class X(ValueError): pass")
    install_package(install, "two", _GROUP, "x = two_code:X", "class X(ValueError): pass")
    with pytest.raises(PluginError, match=r"one 1.5 and two 1.5 both register 'x'"):
        load(_GROUP, "x", ValueError)
