"""Run a batch driver of the module definitions.py in the working directory, alone, until it should be replaced.

Print the setting of its session that is asked for; then change the module, and print why it should be replaced.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from orchestration.declarations.settings import Settings
from orchestration.run_launcher.batch_driver import BatchDriver
from orchestration.run_launcher.driver_registration import DriverRegistration
from orchestration.run_launcher.driver_start import start
from tracker_store.connection.engine import create_engine


def main(key: str) -> None:
    """Run the driver until it has drained."""
    settings = Settings()
    engine = create_engine(settings.require_database_url(), application_name="tests", pool_size=1)
    drain = threading.Event()
    module = Path("definitions.py")

    def ready() -> None:
        sys.stdout.write(f"{driver._session.session.conf.get(key)}\n")
        module.write_text(module.read_text(encoding="utf-8") + "# another configuration\n", encoding="utf-8")

    def replaced(why: str) -> bool:
        sys.stdout.write(f"{why}\n")
        drain.set()
        return True

    driver = BatchDriver(
        settings,
        started=start(settings, application="tests"),
        registration=DriverRegistration(engine, host="h", location="forebay"),
        drain=drain,
        is_left=threading.Event(),
        on_ready=ready,
        ask_for_successor=replaced,
    )
    driver.run()
    engine.dispose()


if __name__ == "__main__":
    main(sys.argv[1])
