# Written by `python -m release.stub`.
from forebay_contrib.csv_records.declaration import Csv as Csv
from forebay_contrib.log_lines.declaration import Logfmt as Logfmt
from forebay_contrib.log_lines.declaration import Regex as Regex
from forebay_contrib.schema_records.avro import Avro as Avro
from receiver_runtime.sources.records.declared import Records as Records
from receiver_runtime.sources.records.json_records import Json as Json
