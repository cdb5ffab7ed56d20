"""Fork Spark's Python workers, as `pyspark.daemon` does, from a process that loads the project's version in force.

Started in place of `pyspark.daemon` (``worker_python``) below a `forebay up`. Spark's driver names the version, so the
functions that it sends find the modules that it has loaded itself. It must load nothing else: each worker is a copy.
"""

from __future__ import annotations

from tracker_store.host.code_in_force import load_code_in_force

if __name__ == "__main__":
    load_code_in_force()
    # Reads the name of the worker's module from the command line when it is imported.
    from pyspark.daemon import manager

    manager()
