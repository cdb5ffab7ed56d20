# Written by `python -m release.stub`.
from receiver_runtime.sources.records.declared import Records as Records
from receiver_runtime.sources.records.json_records import Json as Json
