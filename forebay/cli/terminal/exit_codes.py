"""Say what the exit codes of all commands mean. It holds the text of docs/reference/exit-codes.md, and decides nothing.

A command exits with one of these; tests compare the tables with the code.
"""

from __future__ import annotations

from typing import Final

#: Exit codes that are the same for every command.
EXIT_CODES: Final = {
    "0": "Done, and what was looked at is in order. A command that follows something ends with it on Ctrl-C too.",
    "1": "Failed, or found something, as the next table says. The last lines of the output say what to do.",
    "2": "The command line can't be understood: an unknown command or option, or a value that is not valid.",
    "128 + N": "Signal N ended it: 130 is Ctrl-C, 143 is SIGTERM. `forebay up` stops in order instead, with 0, or 1 "
    "while it was still starting.",
}

#: Commands whose 1 is an answer, and what it says. Of all other commands 1 says that it could not be done.
FINDINGS: Final = {
    "batches bisect": "a record or a function that fails was found",
    "batches replay": "at least one of the batches was not replayed",
    "blocks repair": "blocks are lost, or a replica could not be repaired",
    "blocks verify": "a block, a file or a key is missing, a file has no row, or a replica lacks blocks",
    "config": "a value can't be used",
    "db check": "a promise is broken; with `--against-store` also: the store has blocks that no process will register",
    "db current": "the schema is not the one of this installation",
    "demo": "a result differs from the known answer",
    "doctor": "something is missing or does not work; warnings alone give 0",
    "send": "a line was left out, refused or became a dead letter, or some are only in the spool",
    "state rebuild": "a batch failed, and the replay is stopped",
    "state resume": "a batch failed, and the replay is stopped",
    "state show": "the key has no value",
    "state undo": "a batch failed; what is left still has the replay's results",
    "status": "something can't be reached",
    "stop": "it has not stopped in time; it goes on stopping",
    "validate": "a check failed; warnings alone give 0",
    "up": "it could not start, or with `--drain` left something unprocessed",
}
