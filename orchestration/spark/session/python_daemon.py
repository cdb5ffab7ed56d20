"""Fork Spark's Python workers, as `pyspark.daemon` does, from a process that has loaded what each of them needs.

Started in place of `pyspark.daemon` (``worker_python``). Spark ends a worker that has had nothing to do for a minute,
so at longer intervals each batch has new ones, and each would load the reader and pandas again: half a second of
processor time. Below a `forebay up` the project's version in force is loaded before. Spark's driver names it, so the
functions that it sends find the modules that it has loaded itself. This process must load none of the project's modules
itself, and start no thread: each worker is a copy of it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from importlib import import_module

from tracker_store.host.code_in_force import load_code_in_force

#: What each worker needs, and what one needs that runs functions: Spark's own conversions load pandas for these.
_ALL = ("orchestration.spark.reading.data_source",)
_OF_FUNCTIONS = ("pandas", "receiver_runtime.block_store.stores.stores")


def load_modules(worker_module: str) -> None:
    """Load what workers of a kind need; what can't be loaded is left to the worker, which may not need it."""
    for name in (*_ALL, *(_OF_FUNCTIONS if worker_module == "pyspark.worker" else ())):
        # Any error: a package that does not fit another one says so by a ValueError.
        with contextlib.suppress(Exception):
            import_module(name)
    # Else all workers would draw the same numbers; Python's own generator sees to that itself.
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        os.register_at_fork(after_in_child=numpy_random.seed)


if __name__ == "__main__":
    load_code_in_force()
    # Reads the name of the worker's module from the command line when it is imported.
    from pyspark.daemon import manager

    load_modules(sys.argv[1])
    # A worker collects garbage after each task, and would look through all that was loaded here: 20 ms or more.
    gc.freeze()
    manager()
