"""Metrics and logs. Before us: the loop and its neighbours count in plain integers and histograms, which is all that the hot path pays.
After us: admin_http.py renders the families on a scrape, and only then; a logger writes lines to stderr.

Not here: names of streams or buckets in labels (they are the users', and unbounded); deciding what is worth counting (each driver's own)."""

import json
import logging
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TextIO

from aiohttp.http_exceptions import HttpProcessingError
from msgspec import Struct, field
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

LATENCY_BOUNDS_US: Final = (
    *(50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200),
    *(102_400, 204_800, 409_600, 819_200, 1_638_400, 3_276_800, 6_553_600, 13_107_200),
)
"""Upper bounds, doubling: a percentile read from them is off by at most a factor of two, over a range from a memory hit to a lost leader."""


class Histogram:
    """Counts per bucket, in plain integers. observe() took 0.2 to 0.3 us on a busy machine; one thread owns each, so no lock."""

    __slots__ = ("bounds_us", "counts", "sum_us")

    def __init__(self, bounds_us: tuple[int, ...] = LATENCY_BOUNDS_US) -> None:
        assert list(bounds_us) == sorted(set(bounds_us)), bounds_us
        self.bounds_us = bounds_us
        self.counts = [0] * (len(bounds_us) + 1)  # the last one has no upper bound
        self.sum_us = 0

    def observe(self, us: int) -> None:
        self.counts[bisect_left(self.bounds_us, us)] += 1
        self.sum_us += us

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile_us(self, q: float) -> int:
        """The upper bound of the bucket that holds the q-quantile; 0 without observations."""
        wanted = q * self.count
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return self.bounds_us[min(index, len(self.bounds_us) - 1)]
        return 0


def histogram_by_bits(counts: list[int], sum_ms: int) -> Histogram:
    """Of times in whole milliseconds, counted by bit length (engine/counts.py): those at [n] took less than 2 ** n ms, the last ones any time."""
    histogram = Histogram(tuple(1_000 << bits for bits in range(len(counts) - 1)))
    histogram.counts = list(counts)
    histogram.sum_us = sum_ms * 1_000
    return histogram


class GroupFacts(Struct, gc=False):
    group: int
    is_leader: bool
    lag_entries: int
    hot_bytes: int
    fenced: bool = False


class NodeFacts(Struct, kw_only=True):
    """What a scrape sees, by the names of the tables below. Rendered on the loop's own thread; histograms are the live objects, not copies."""

    state: str = "uninitialized"
    ready: bool = False
    version: str = ""
    uptime_ms: int = 0
    append_seconds: Histogram = field(default_factory=Histogram)
    read_seconds: Histogram = field(default_factory=Histogram)
    fsync_seconds: Histogram = field(default_factory=Histogram)
    commit_seconds: Histogram = field(default_factory=Histogram)
    turn_seconds: Histogram = field(default_factory=Histogram)
    loop_stall_seconds: Histogram = field(default_factory=Histogram)
    groups: list[GroupFacts] = []
    connections: int = 0
    live_readers: int = 0
    inflight_bytes: int = 0
    unsent_bytes: int = 0
    hot_bytes: int = 0
    disk_free_bytes: int = 0
    wal_spare_segments: int = 0
    wal_live_segments: int = 0
    peers_reachable: int = 0
    appends: int = 0
    append_bytes: int = 0
    reads: int = 0
    read_bytes: int = 0
    live_events: int = 0
    slow_readers_dropped: int = 0
    forwarded: int = 0
    elections: int = 0
    snapshots: int = 0
    peer_frames_sent: int = 0
    peer_frames_received: int = 0
    peer_frames_dropped: int = 0
    rejected: dict[str, int] = {}
    responses: dict[str, int] = {}


_HISTOGRAMS: Final = (
    ("append_seconds", "From a complete append request to its answer, whatever it says"),
    ("read_seconds", "From a catch-up read request to its answer, whatever it says; not of live reads"),
    ("fsync_seconds", "One sync of what was written to the log; without those that begin a segment"),
    ("commit_seconds", "From the proposal of a log entry to its commit, on the leader; in whole milliseconds, by the clock of the turns"),
    ("turn_seconds", "One turn of the node: all that was asked since the last one, for all groups, up to handing over bytes to sockets and disk"),
    ("loop_stall_seconds", "How late each tick of the event loop came: what every client and peer waited at that moment, too"),
)
_COUNTERS: Final = (
    ("appends", "Appends acknowledged to clients of this node, repeated ones again"),
    ("append_bytes", "Stream data of these appends"),
    ("reads", "Reads answered for clients of this node, long-polls and beginnings of SSE responses included"),
    ("read_bytes", "Stream data sent to these readers, events included"),
    ("live_events", "Events for SSE readers, one for each reader; keep-alives are none"),
    ("slow_readers_dropped", "Connections ended because their client did not take what it was sent, live readers or others"),
    ("forwarded", "Requests sent on to another node, each try"),
    ("elections", "Elections that replicas of this node stood in"),
    ("snapshots", "Snapshots of groups that this node took and made durable"),
    ("peer_frames_sent", "Frames for other nodes that were sent or queued"),
    ("peer_frames_received", "Frames received from other nodes"),
    ("peer_frames_dropped", "Frames for other nodes that found no connection or no room, or were queued when it broke"),
)
_GAUGES: Final = (
    ("connections", "Open client connections"),
    ("live_readers", "Long-polls and SSE responses under way"),
    ("inflight_bytes", "Request bodies in memory"),
    ("unsent_bytes", "Responses in memory that their clients have not taken"),
    ("hot_bytes", "Stream data in memory, with what is not committed yet, at the last tick"),
    ("disk_free_bytes", "Free bytes on the data directory's disk, give or take a log segment"),
    ("wal_spare_segments", "Log segments made ahead of need"),
    ("wal_live_segments", "Log segments that are kept, the one being written included"),
    ("peers_reachable", "Other nodes to which a connection is open"),
)
_BY_LABEL: Final = (
    ("rejected", "code", "Requests and connections that the client plane refused, by the reason; not those that a stream or its group refused"),
    ("responses", "status", "Responses on the client plane, by status; a live one when it begins"),
)
_OF_GROUPS: Final[tuple[tuple[str, str, Callable[[GroupFacts], int]], ...]] = (
    ("group_leader", "1 where this node leads the group", lambda group: int(group.is_leader)),
    ("group_lag_entries", "On the leader: log entries that the slowest replica has not acknowledged to it", lambda group: group.lag_entries),
    ("group_hot_bytes", "Stream data of the group in memory", lambda group: group.hot_bytes),
    ("group_fenced", "1 where the replica stopped itself", lambda group: int(group.fenced)),
)


class NodeCollector:
    """A prometheus-client collector that asks once per scrape. It needs no registry: AdminPlane renders what collect() yields."""

    def __init__(self, facts: Callable[[], NodeFacts]) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        facts = self._facts()
        info = GaugeMetricFamily("anabranch_node_info", "Always 1; what runs here is in the labels", labels=["version", "state"])
        info.add_metric([facts.version, facts.state], 1)
        yield info
        yield GaugeMetricFamily("anabranch_ready", "1 when /readyz says so", value=int(facts.ready))
        yield GaugeMetricFamily("anabranch_uptime_seconds", "Since the process began", value=facts.uptime_ms / 1000)
        for name, text in _HISTOGRAMS:
            yield _histogram(f"anabranch_{name}", text, getattr(facts, name))
        for name, text in _COUNTERS:
            yield CounterMetricFamily(f"anabranch_{name}", text, value=getattr(facts, name))
        for name, text in _GAUGES:
            yield GaugeMetricFamily(f"anabranch_{name}", text, value=getattr(facts, name))
        for name, label, text in _BY_LABEL:
            family = CounterMetricFamily(f"anabranch_{name}", text, labels=[label])
            for value, count in sorted(getattr(facts, name).items()):
                family.add_metric([value], count)
            yield family
        for name, text, of_group in _OF_GROUPS:
            gauges = GaugeMetricFamily(f"anabranch_{name}", text, labels=["group"])
            for group in facts.groups:
                gauges.add_metric([str(group.group)], of_group(group))
            yield gauges


def reference() -> str:
    """docs/metrics.md, whole. A test compares the file with this."""
    lines = [
        "# Metrics of a node",
        "",
        "Generated by `python -m anabranch_node.drivers.telemetry`; never edited by hand.",
        "",
        "Each node serves them on its admin port at `/metrics`, in the Prometheus text format. They count from the start of the process. No stream",
        "and no bucket is named in a label: the number of series depends on the number of groups alone, and on the few statuses and reasons that",
        "there are. A histogram has a series for each bucket, a `_sum` and a `_count`; its buckets double.",
        "",
        "| name | type | labels | meaning |",
        "| --- | --- | --- | --- |",
    ]
    one_of_each = NodeFacts(groups=[GroupFacts(0, False, 0, 0)], rejected={"": 0}, responses={"": 0})
    for family in NodeCollector(lambda: one_of_each).collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in family.samples[0].labels if label != "le")
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound_us, count in zip(histogram.bounds_us, histogram.counts, strict=False):
        total += count
        buckets.append((str(bound_us / 1_000_000), total))
    buckets.append(("+Inf", total + histogram.counts[-1]))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.sum_us / 1_000_000)


class _Families:
    """What generate_latest() asks of a registry, and no more. The library's own registry would keep global state and its own locks."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(families: Iterable[Metric]) -> bytes:
    """The Prometheus text format, version 0.0.4."""
    from prometheus_client.exposition import generate_latest

    rendered: bytes = generate_latest(_Families(families))
    return rendered


# What every record has; whatever else is on one came from `extra=` and is a field of ours.
_STANDARD: Final = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"


class JsonLines(logging.Formatter):
    """One object per line: time, level, logger, message, then the fields of `extra=`, which cannot replace those."""

    def format(self, record: logging.LogRecord) -> str:
        line = {**_fields(record), "time": _utc(record.created), "level": record.levelname.lower(), "logger": record.name}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=True)


class TextLines(logging.Formatter):
    """For people: `time LEVEL logger message key=value`. Control characters are escaped, so that no client can forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value if isinstance(value, int | float) else json.dumps(str(value))}" for key, value in _fields(record).items())
        message = "".join(char if char.isprintable() else repr(char)[1:-1] for char in record.getMessage())
        line = f"{_utc(record.created)} {record.levelname:<7} {record.name} {message}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Whoever sends garbage to the admin port gets a 400; a traceback for each would let strangers fill the log."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


def configure_logging(level: str, log_format: str, stream: TextIO | None = None) -> None:
    """Called once by main.py. Use: logging.getLogger("anabranch.wal").info("segment made", extra={"segment": 7})."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Each scrape and probe would be a line otherwise.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.server").addFilter(_is_our_fault)


if __name__ == "__main__":
    sys.stdout.write(reference())
