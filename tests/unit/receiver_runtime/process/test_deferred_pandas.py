"""Test that pyarrow imports pandas no sooner than anything else, and knows its objects from then on."""

from __future__ import annotations

import subprocess
import sys

import pytest

_DEFERRED = """
import sys
from receiver_runtime.process.deferred_pandas import defer_pandas

defer_pandas()
defer_pandas()
import pyarrow as pa

pa.array(["one"])
pa.table({"a": pa.array([b"1"], pa.binary())})
assert "pandas" not in sys.modules
"""
_USES = {
    "a series": "import pandas\nassert pa.array(pandas.Series([1.0, float('nan')]), from_pandas=True).null_count == 1",
    "an extension array": "import pandas\nassert pa.array(pandas.array([1, None], dtype='Int64')).null_count == 1",
    "a mask": "import pandas, numpy\n"
    "assert pa.array(pandas.Series([1, 2]), mask=numpy.array([True, False])).to_pylist() == [None, 2]",
    "a frame": "import pandas.testing\nassert pa.Table.from_pandas(pandas.DataFrame({'b': [2]})).column_names == ['b']",
    "a table": "assert pa.table({'a': [1]}).to_pandas()['a'].sum() == 1",
    "its resources": "import pandas, importlib.resources as r\n"
    "assert r.files(pandas).joinpath('__init__.py').is_file()",
    "its loader": "import pandas\nfrom importlib.machinery import SourceFileLoader as Loader\n"
    "assert type(pandas.__loader__) is type(pandas.__spec__.loader) is Loader",
}


def _run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("use", _USES)
def test_pandas_is_known_to_pyarrow_as_soon_as_something_uses_it(use: str) -> None:
    _run(f"{_DEFERRED}\n{_USES[use]}\n")


def test_pandas_that_is_loaded_before_is_known() -> None:
    _run(
        "import pandas\nimport pyarrow as pa\n"
        "from receiver_runtime.process.deferred_pandas import defer_pandas\ndefer_pandas()\n"
        "assert pa.array(pandas.array([1, None], dtype='Int64')).null_count == 1"
    )


def test_without_pandas_an_import_says_what_it_always_says() -> None:
    _run(
        f"{_DEFERRED}\nsys.meta_path[1:] = []\ntry:\n    import pandas\nexcept ModuleNotFoundError as error:\n"
        "    assert str(error) == \"No module named 'pandas'\"\nelse:\n    raise AssertionError\n"
    )
