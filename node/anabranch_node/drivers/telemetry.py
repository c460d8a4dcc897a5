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


class GroupFacts(Struct, gc=False):
    group: int
    is_leader: bool
    lag_entries: int  # committed and not yet applied here
    hot_bytes: int
    fenced: bool = False


class NodeFacts(Struct, kw_only=True):
    """What a scrape sees. Histograms are the live objects, not copies: rendering happens on the loop's own thread."""

    state: str = "uninitialized"
    ready: bool = False
    version: str = ""
    uptime_ms: int = 0
    append_latency: Histogram = field(default_factory=Histogram)
    read_latency: Histogram = field(default_factory=Histogram)
    fsync_latency: Histogram = field(default_factory=Histogram)
    commit_latency: Histogram = field(default_factory=Histogram)
    apply_latency: Histogram = field(default_factory=Histogram)
    loop_stall: Histogram = field(default_factory=Histogram)
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
    live_dropped: int = 0  # readers that were too slow
    forwarded: int = 0
    elections: int = 0
    snapshots: int = 0
    peer_frames_sent: int = 0
    peer_frames_received: int = 0
    peer_frames_dropped: int = 0
    rejected: dict[str, int] = {}  # by error code, of which there are few
    responses: dict[int, int] = {}  # by HTTP status


_HISTOGRAMS: Final = (
    ("append_latency", "append_seconds", "From a complete append request to its answer"),
    ("read_latency", "read_seconds", "From a catch-up read request to its answer"),
    ("fsync_latency", "fsync_seconds", "One sync of the write-ahead log"),
    ("commit_latency", "commit_seconds", "From the proposal of an entry to its commit, on the leader"),
    ("apply_latency", "apply_seconds", "Applying one turn's committed entries"),
    ("loop_stall", "loop_stall_seconds", "Turns of the event loop that took longer than they should"),
)
_COUNTERS: Final = (
    ("appends", "appends", "Appends acknowledged"),
    ("append_bytes", "append_bytes", "Bytes of acknowledged appends"),
    ("reads", "reads", "Reads answered"),
    ("read_bytes", "read_bytes", "Bytes of answered reads"),
    ("live_events", "live_events", "Events delivered to live readers"),
    ("live_dropped", "live_dropped", "Live readers ended because they read too slowly"),
    ("forwarded", "forwarded", "Requests sent on to another node"),
    ("elections", "elections", "Elections started by replicas of this node"),
    ("snapshots", "snapshots", "Snapshots taken"),
    ("peer_frames_sent", "peer_frames_sent", "Frames sent to peers"),
    ("peer_frames_received", "peer_frames_received", "Frames received from peers"),
    ("peer_frames_dropped", "peer_frames_dropped", "Frames dropped since a peer was away or slow"),
)
_GAUGES: Final = (
    ("connections", "connections", "Open client connections"),
    ("live_readers", "live_readers", "Live reads waiting"),
    ("inflight_bytes", "inflight_bytes", "Request bodies in memory"),
    ("unsent_bytes", "unsent_bytes", "Responses in memory that their clients have not taken"),
    ("hot_bytes", "hot_bytes", "Stream data in memory"),
    ("disk_free_bytes", "disk_free_bytes", "Free bytes on the data directory's disk"),
    ("wal_spare_segments", "wal_spare_segments", "Log segments made ahead of need"),
    ("wal_live_segments", "wal_live_segments", "Log segments with live records"),
    ("peers_reachable", "peers_reachable", "Peers with an open connection"),
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
        for key, name, text in _HISTOGRAMS:
            yield _histogram(f"anabranch_{name}", text, getattr(facts, key))
        for key, name, text in _COUNTERS:
            yield CounterMetricFamily(f"anabranch_{name}", text, value=getattr(facts, key))
        for key, name, text in _GAUGES:
            yield GaugeMetricFamily(f"anabranch_{name}", text, value=getattr(facts, key))
        rejected = CounterMetricFamily("anabranch_rejected", "Requests refused, by error code", labels=["code"])
        for code, count in sorted(facts.rejected.items()):
            rejected.add_metric([code], count)
        yield rejected
        responses = CounterMetricFamily("anabranch_responses", "Responses on the client plane, by status", labels=["status"])
        for status, count in sorted(facts.responses.items()):
            responses.add_metric([str(status)], count)
        yield responses
        yield from _group_families(facts.groups)


def _group_families(groups: list[GroupFacts]) -> Iterator[Metric]:
    columns: tuple[tuple[str, str, Callable[[GroupFacts], int]], ...] = (
        ("anabranch_group_leader", "1 where this node leads the group", lambda group: int(group.is_leader)),
        ("anabranch_group_lag_entries", "Entries committed and not yet applied here", lambda group: group.lag_entries),
        ("anabranch_group_hot_bytes", "Stream data of the group in memory", lambda group: group.hot_bytes),
        ("anabranch_group_fenced", "1 where the replica stopped itself", lambda group: int(group.fenced)),
    )
    for name, text, value in columns:
        family = GaugeMetricFamily(name, text, labels=["group"])
        for group in groups:
            family.add_metric([str(group.group)], value(group))
        yield family


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


def configure_logging(level: str, log_format: str, stream: TextIO | None = None) -> None:
    """Called once by main.py. Use: logging.getLogger("anabranch.wal").info("segment made", extra={"segment": 7})."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Each scrape and probe would be a line otherwise.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
