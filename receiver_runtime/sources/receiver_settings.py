"""Define the settings of a stream's receivers (named after ``spark.streaming.*`` keys if there is one)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from receiver_runtime.sources.fields.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

Seconds = Annotated[float, BeforeValidator(parse_duration)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class ReceiverSettings(BaseModel):
    """Hold a receiver's settings with their defaults; durations in seconds, sizes in bytes.

    One receiver's memory is bounded by about ``(block_queue_size + 5) * max_block_bytes``, whatever the source sends:
    the queue, and at most five copies of a block on its way into it (filled, cut) and out of it (compressed, written).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: How often a block is cut (spark.streaming.blockInterval).
    block_interval: Annotated[Seconds, Field(gt=0)] = 0.2
    #: Blocks that wait to be stored (spark.streaming.blockQueueSize); when full, reading stops.
    block_queue_size: Annotated[int, Field(ge=1)] = 10
    #: A block is cut early at this size, before compression.
    max_block_bytes: Annotated[Bytes, Field(ge=1024, le=2**30)] = 16 * 2**20
    #: Records per second (spark.streaming.receiver.maxRate); 0 means unlimited.
    receiver_max_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    #: Bytes per second of the records' data, before compression; 0 means unlimited. Applies in addition to the rate.
    receiver_max_bytes_rate: Annotated[Bytes, Field(ge=0)] = 0
    #: Records per second until backpressure sets a rate (spark.streaming.backpressure.initialRate); 0: unlimited.
    backpressure_initial_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    #: How long ``on_start`` may take; a slower one is reported, and left running.
    receiver_start_timeout: Annotated[Seconds, Field(gt=0)] = 5.0
    #: How long ``on_stop`` may take, without the time in which the receiver waits until its records are taken.
    receiver_stop_timeout: Annotated[Seconds, Field(gt=0)] = 5.0
    #: The pause before the first restart (spark.streaming.receiverRestartDelay); it doubles with each further one.
    receiver_restart_delay: Seconds = 2.0
    #: The longest pause before a restart.
    receiver_max_restart_delay: Seconds = 30.0
    #: The count of restarts is reset after this long without a failure, or after one record received.
    receiver_healthy_after: Seconds = 60.0
    #: Restarts in a row after which the receiver is FAILED; 0 means never. With the default pauses 150 restarts take
    #: well over an hour: a source that was unavailable for an hour is read again without anyone's help.
    receiver_max_restarts: Annotated[int, Field(ge=0)] = 150
    #: Times in an hour that Dagster's receiver sensor starts a FAILED receiver again; after that, a person must. 0:
    #: never.
    max_restarts_per_hour: Annotated[int, Field(ge=0)] = 3
    #: Whether the receiver gets a process of its own, whatever ``--receivers-per-process`` allows.
    own_process: bool = False
    #: A segment is closed at this age (spark.streaming.receiver.writeAheadLog.rollingIntervalSecs) …
    segment_interval: Annotated[Seconds, Field(gt=0)] = 60.0
    #: … or before it grows past this.
    max_segment_bytes: Annotated[Bytes, Field(ge=2**16)] = 128 * 2**20
    #: Attempts to write one block, each in a new segment, before the receiver reports that the disk fails.
    write_ahead_log_max_failures: Annotated[int, Field(ge=1)] = 3
    #: ``durable`` syncs each block before it is registered, ``ephemeral`` does not.
    durability: Literal["durable", "ephemeral"] = "durable"
    #: How many of the block store's replicas must have a block before it is registered.
    min_replicas: Annotated[int, Field(ge=1)] = 1
    #: A write fails if an object store or a replica has not answered it for this long
    #: (spark.streaming.receiver.blockStoreTimeout).
    block_store_timeout: Annotated[Seconds, Field(gt=0)] = 30.0
    #: How long, at least, a record's key is remembered: a record that is sent again within this time is left out. Keys
    #: stay longer in an outage, and for some time after it.
    key_window: Annotated[Seconds, Field(ge=1)] = 24 * 3_600.0
    #: How long a receiver that holds data may make no progress, without any step failing either, before its process is
    #: replaced; at least what ``receiver_supervisor.progress_limit`` allows for a write and an interval.
    progress_timeout: Annotated[Seconds, Field(ge=1)] = 60.0
    #: How blocks are compressed: ``auto`` is ``lz4`` while the processor keeps up, and ``none`` while blocks wait to be
    #: encoded; ``lz4`` is fast, ``zstd`` smaller, ``none`` for data that is compressed already.
    compression: Literal["auto", "lz4", "zstd", "none"] = "auto"

    def to_row(self) -> dict[str, Any]:
        """Return the settings for the driver log."""
        return self.model_dump(mode="json")

    @classmethod
    def of_row(cls, settings: Mapping[str, Any]) -> Self:
        """Return the settings in a row of the driver log; unknown keys (of others, of a newer release) are ignored."""
        return cls.model_validate({key: value for key, value in settings.items() if key in cls.model_fields})
