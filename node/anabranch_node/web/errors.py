"""THE table: what the engine could not do (core/errors.py) and what a stream refuses (core/stream/results.py) -> its HTTP answer.

A 503 that is not `outcome_unknown` says that nothing happened, so a retry cannot duplicate. tests/unit/test_web_errors.py keeps us complete."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from anabranch_node.core.cluster.results import BucketAbsent, BucketDeleting, BucketExists, BucketNotEmpty, BucketReserved, TooManyBuckets
from anabranch_node.core.errors import (
    DiskFull,
    Failure,
    Fenced,
    HotFull,
    Initializing,
    NotHosted,
    NotLeading,
    OutcomeUnknown,
    Overloaded,
    ReadUnavailable,
    Refused,
    TooLarge,
)
from anabranch_node.core.stream.results import (
    BadEpochStart,
    BucketUnknown,
    ContentTypeMismatch,
    EmptyBody,
    ForkTooLate,
    NameHeld,
    NoSnapshot,
    NotDue,
    OffsetBeyondTail,
    OffsetInsideMessage,
    Refusal,
    SeqRegression,
    SequenceGap,
    StaleEpoch,
    StaleOpen,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamNotFound,
    SubOffsetBeyond,
    TooManyProducers,
    Trimmed,
)
from anabranch_node.web.reply import STREAM_CLOSED, Reply, error, offset_header


class Answer(NamedTuple):
    status: int
    code: str
    retry_after_s: int | None = None
    headers: Callable[[Any], bytes] | None = None


ANSWERS: Final[dict[type[Failure] | type[Refusal], Answer]] = {
    OutcomeUnknown: Answer(503, "outcome_unknown", 1),
    NotLeading: Answer(503, "no_leader", 1),
    Overloaded: Answer(503, "overloaded", 1),
    DiskFull: Answer(503, "disk_full", 10),
    HotFull: Answer(503, "hot_full", 1),
    Fenced: Answer(503, "fenced", 1),
    ReadUnavailable: Answer(503, "read_unavailable", 1),
    NotHosted: Answer(503, "not_hosted", 1),
    Initializing: Answer(503, "initializing", 1),
    Refused: Answer(409, "refused"),
    TooLarge: Answer(413, "body_too_large"),
    StreamNotFound: Answer(404, "stream_not_found"),
    StreamExists: Answer(409, "stream_exists"),
    EmptyBody: Answer(400, "empty_body"),
    StaleEpoch: Answer(403, "stale_epoch", None, lambda it: b"Producer-Epoch: %d\r\n" % it.current),
    BadEpochStart: Answer(400, "bad_epoch_start"),
    SequenceGap: Answer(
        409, "sequence_gap", None, lambda it: b"Producer-Expected-Seq: %d\r\nProducer-Received-Seq: %d\r\n" % (it.expected, it.received)
    ),
    TooManyProducers: Answer(429, "too_many_producers", 60),
    OffsetBeyondTail: Answer(400, "offset_beyond_tail"),
    OffsetInsideMessage: Answer(400, "offset_inside_message"),
    StreamClosed: Answer(409, "stream_closed", None, lambda it: STREAM_CLOSED + offset_header(it.tail)),
    ContentTypeMismatch: Answer(409, "content_type_mismatch"),
    SeqRegression: Answer(409, "seq_regression"),
    NotDue: Answer(409, "not_due"),
    StreamGone: Answer(410, "stream_gone"),
    NameHeld: Answer(409, "name_held"),
    Trimmed: Answer(410, "trimmed", None, lambda it: b"Stream-Earliest-Offset: %020d\r\n" % it.earliest),
    NoSnapshot: Answer(404, "snapshot_not_found"),
    ForkTooLate: Answer(503, "fork_too_late", 1),
    SubOffsetBeyond: Answer(400, "sub_offset_beyond"),
    BucketUnknown: Answer(404, "bucket_not_found"),
    StaleOpen: Answer(503, "stale_open", 1),
    BucketAbsent: Answer(404, "bucket_not_found"),
    BucketExists: Answer(409, "bucket_exists"),
    BucketNotEmpty: Answer(409, "bucket_not_empty"),
    BucketReserved: Answer(409, "bucket_reserved"),
    BucketDeleting: Answer(503, "bucket_deleting", 1),
    TooManyBuckets: Answer(429, "too_many_buckets", 60),
}


def answer(failure: object) -> Reply:
    """For a value that is in no table the answer is a 500: a fault of ours, never the client's."""
    if isinstance(failure, Failure | Refusal):
        row = ANSWERS.get(type(failure))
        if row is not None:
            headers = row.headers(failure) if row.headers is not None else b""
            return error(row.status, row.code, str(failure), row.retry_after_s, headers)
    return error(500, "internal", "internal error")
