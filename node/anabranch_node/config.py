"""All settings of one node, frozen and validated before anything is opened: flags win over environment, environment over file, file over default.

Before us: cli/serve.py hands over what was on the command line. After us: main.py gives each part its own Options out of this.
Each field is the one source of its flag (--client-listen), variable (ANABRANCH_CLIENT_LISTEN), TOML key (client_listen) and line in docs/config.md.
Not here: what belongs to the whole cluster (group count, replication factor), which `anabranch init` decides once and the meta group keeps."""

import dataclasses
import ipaddress
import os
import re
import socket
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, get_type_hints

ENVIRONMENT_PREFIX: Final = "ANABRANCH_"
FOREIGN_VARIABLES: Final = frozenset({"ANABRANCH_URL", "ANABRANCH_ADMIN", "ANABRANCH_CONFIG"})
"""Read by the command itself, or by the client verbs; no setting of a node."""

# Kubernetes describes each Service to each pod in such variables, so a Service named "anabranch-..." must not stop our nodes.
_SERVICE_LINK: Final = re.compile(r"^ANABRANCH_(.*_)?(SERVICE_(HOST|PORT)|PORT)(_.*)?$")
_NAME: Final = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$")
_SIZE: Final = re.compile(r"^(\d{1,15})\s*(|B|KiB|MiB|GiB|TiB)$")
_SIZE_UNITS: Final = {"": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_SECTOR_BYTES: Final = 4096

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

Value = str | int | bool | tuple[str, ...]


class ConfigError(ValueError):
    """Settings with which a node must not start. `problems` has one line for each, so that all can be mended at once."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _text(default: str, section: str, text: str, choices: tuple[str, ...] = ()) -> str:
    made: str = field(default=default, metadata={"help": text, "section": section, "choices": choices})
    return made


def _number(default: int, low: int, high: int, section: str, text: str) -> int:
    made: int = field(default=default, metadata={"help": text, "section": section, "low": low, "high": high})
    return made


_DAY_MS: Final = 86_400_000
_IDENTITY: Final = "Identity and place"
_PEERS: Final = "Consensus"
_CLIENTS: Final = "Clients"
_STORAGE: Final = "Memory and disk"
_SEEING: Final = "Stopping and seeing inside"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeConfig:
    name: str = _text("", _IDENTITY, "name of this node, unique in the cluster and kept over restarts; default: the first part of the host name")
    data_dir: str = _text("./anabranch-data", _IDENTITY, "where this node keeps its identity, log and snapshots; one process at a time")
    client_listen: str = _text("127.0.0.1:4437", _IDENTITY, "address for clients (HTTP/1.1)")
    admin_listen: str = _text("127.0.0.1:4438", _IDENTITY, "address for health, metrics, status and the admin API")
    peer_listen: str = _text("127.0.0.1:4439", _IDENTITY, "address for the other nodes (gRPC)")
    client_advertise: str = _text("", _IDENTITY, "how others reach the client address; default: client_listen")
    admin_advertise: str = _text("", _IDENTITY, "how others reach the admin address; default: admin_listen")
    peer_advertise: str = _text("", _IDENTITY, "how others reach the peer address; default: peer_listen")
    peers: tuple[str, ...] = field(
        default=(),
        metadata={"section": _IDENTITY, "help": "peer addresses of other nodes, by which a new node finds its cluster; its own may be among them"},
    )
    zone: str = _text("", _IDENTITY, "failure zone; replicas of a group are spread over zones")
    insecure: bool = field(
        default=False, metadata={"section": _IDENTITY, "help": "listen beyond loopback although there is neither TLS nor authentication yet"}
    )

    tick_ms: int = _number(50, 5, 1_000, _PEERS, "length of one tick, the unit of all Raft timers")
    election_ticks: int = _number(30, 3, 10_000, _PEERS, "a follower without its leader waits this long, up to twice as long, before an election")
    heartbeat_ticks: int = _number(5, 1, 1_000, _PEERS, "a leader is heard from at least this often; below election_ticks")

    long_poll_timeout_ms: int = _number(30_000, 10, 600_000, _CLIENTS, "a long-poll without new data is answered 204 after this")
    sse_keep_alive_ms: int = _number(15_000, 10, 600_000, _CLIENTS, "a silent SSE response carries a comment this often")
    sse_rotate_ms: int = _number(
        60_000, 100, _DAY_MS, _CLIENTS, "an SSE response ends after about this, so that load can move; clients resume by offset"
    )
    body_bytes_max: int = _number(10 << 20, 1, 1 << 30, _CLIENTS, "largest request body; beyond it 413")
    response_bytes_max: int = _number(1 << 20, 1 << 10, 256 << 20, _CLIENTS, "about the most that one read answers; the next offset leads on")
    url_bytes_max: int = _number(8 << 10, 256, 1 << 20, _CLIENTS, "longest request target; beyond it 414")
    header_bytes_max: int = _number(32 << 10, 1 << 10, 1 << 20, _CLIENTS, "all headers of a request together; beyond it 431")
    header_count_max: int = _number(100, 8, 10_000, _CLIENTS, "headers of a request; beyond it 431")
    header_timeout_ms: int = _number(10_000, 10, 600_000, _CLIENTS, "from the first byte of a request to the end of its headers")
    body_timeout_ms: int = _number(60_000, 10, 3_600_000, _CLIENTS, "from the end of the headers to the end of the body")
    idle_timeout_ms: int = _number(75_000, 10, _DAY_MS, _CLIENTS, "a connection without a request is closed after this")
    write_timeout_ms: int = _number(30_000, 10, 3_600_000, _CLIENTS, "a client that reads nothing for this long is cut off")
    connections_max: int = _number(10_000, 1, 1_000_000, _CLIENTS, "open client connections; beyond it 503")
    inflight_bytes_max: int = _number(256 << 20, 1 << 20, 1 << 40, _CLIENTS, "request bodies in memory, reserved before they are read; beyond it 503")
    unsent_bytes_max: int = _number(
        256 << 20,
        1 << 20,
        1 << 40,
        _CLIENTS,
        "responses that clients have not taken; beyond it large reads are answered 503, lagging live readers ended",
    )
    waiters_max: int = _number(20_000, 1, 1_000_000, _CLIENTS, "live reads waiting at once; beyond it 503")
    live_buffer_bytes_max: int = _number(
        1 << 20, 1 << 12, 1 << 30, _CLIENTS, "unsent bytes of one live reader; a slower one is ended and resumes by offset"
    )

    hot_bytes_max: int = _number(1 << 30, 1 << 20, 1 << 44, _STORAGE, "stream data kept in memory; beyond it appends are answered 503")
    segment_bytes: int = _number(64 << 20, 1 << 20, (1 << 32) - _SECTOR_BYTES, _STORAGE, "size of a log segment file, a multiple of 4096")
    segments_live_max: int = _number(8, 2, 10_000, _STORAGE, "with more log segments than this the oldest is emptied")
    snapshot_entries_max: int = _number(100_000, 1, 1 << 40, _STORAGE, "log entries applied since the last snapshot of a group: take the next")
    snapshot_bytes_max: int = _number(64 << 20, 1, 1 << 44, _STORAGE, "log bytes applied since the last snapshot of a group: take the next")
    snapshot_tail_entries: int = _number(1_000, 0, 1 << 40, _STORAGE, "log entries kept below a snapshot for followers that are a little behind")
    disk_free_min_bytes: int = _number(256 << 20, 0, 1 << 50, _STORAGE, "with less free disk than this, writes are refused before the disk is full")

    drain_ms: int = _number(8_000, 0, 600_000, _SEEING, "after SIGTERM: serve on for this long while leaders move away and load balancers notice")
    stop_timeout_ms: int = _number(50_000, 100, 3_600_000, _SEEING, "after SIGTERM: exit at the latest after this")
    log_level: str = _text("info", _SEEING, "least severe lines that are logged", LOG_LEVELS)
    log_format: str = _text("text", _SEEING, "lines for people, or one JSON object per line", LOG_FORMATS)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", socket.gethostname().partition(".")[0].lower())
        for plane in ("client", "admin", "peer"):
            if not getattr(self, f"{plane}_advertise"):
                object.__setattr__(self, f"{plane}_advertise", getattr(self, f"{plane}_listen"))
        problems = list(_problems(self))
        if problems:
            raise ConfigError(problems)


FIELDS: Final = {item.name: item for item in dataclasses.fields(NodeConfig)}
TYPES: Final = get_type_hints(NodeConfig)


def load(
    flags: Mapping[str, object], environment: Mapping[str, str] | None = None, file: str | None = None, *, file_optional: bool = False
) -> NodeConfig:
    """The one way to a NodeConfig outside of tests. `flags` has only what was given; values may be text. Raises ConfigError with every problem."""
    environment = os.environ if environment is None else environment
    problems: list[str] = []
    merged: dict[str, Value] = {}
    for source, settings in (("file", _from_file(file, file_optional, problems)), ("env", _from_environment(environment, problems)), ("flag", flags)):
        for key, raw in settings.items():
            label = f"{file}: {key}" if source == "file" else variable_of(key) if source == "env" else flag_of(key)
            if key not in FIELDS:
                problems.append(f"{label}: unknown setting{_nearest(key)}")
                continue
            try:
                merged[key] = parse(key, raw)
            except ValueError as wrong:
                problems.append(f"{label}: {wrong}")
    if problems:
        raise ConfigError(problems)
    return NodeConfig(**merged)  # type: ignore[arg-type]  # parse() made each value the type of its field


def parse(key: str, raw: object) -> Value:
    """A value as written in any source, as the type of its field; ValueError says what was expected."""
    kind = TYPES[key]
    if kind is bool:
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.lower() in ("true", "1", "yes", "on", "false", "0", "no", "off"):
            return raw.lower() in ("true", "1", "yes", "on")
        raise ValueError(f"expected true or false, not {raw!r}")
    if kind is int:
        if isinstance(raw, int) and not isinstance(raw, bool):
            return raw
        if isinstance(raw, str):
            return _parse_number(key, raw.strip())
        raise ValueError(f"expected a whole number, not {raw!r}")
    if kind is str:
        if not isinstance(raw, str):
            raise ValueError(f"expected text, not {raw!r}")
        return raw
    if isinstance(raw, str):
        raw = [raw]
    if not isinstance(raw, list | tuple) or not all(isinstance(item, str) for item in raw):
        raise ValueError(f"expected a list of host:port, not {raw!r}")
    return tuple(part.strip() for item in raw for part in item.split(",") if part.strip())


def _parse_number(key: str, raw: str) -> int:
    if "bytes" in key:
        match = _SIZE.match(raw)
        if not match:
            raise ValueError(f"expected bytes, such as 1048576, 64KiB or 10MiB, not {raw!r}")
        return int(match[1]) << _SIZE_UNITS[match[2]]
    if not re.fullmatch(r"\d{1,15}", raw):
        raise ValueError(f"expected a whole number, not {raw!r}")
    return int(raw)


def _from_environment(environment: Mapping[str, str], problems: list[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in FOREIGN_VARIABLES:
            continue
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if key not in FIELDS and _SERVICE_LINK.match(variable):
            continue
        if variable != variable_of(key):
            problems.append(f"{variable}: unknown setting; variables are written in capitals")
            continue
        found[key] = value
    return found


def _from_file(path: str | None, optional: bool, problems: list[str]) -> dict[str, object]:
    if path is None:
        return {}
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        if not optional:
            problems.append(f"{path}: there is no such file")
    except OSError as failed:
        problems.append(f"{path}: cannot be read: {failed.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failed:
        problems.append(f"{path}: is not TOML: {failed}")
    return {}


def _nearest(key: str) -> str:
    import difflib

    near = difflib.get_close_matches(key, FIELDS, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def flag_of(key: str) -> str:
    return "--" + key.replace("_", "-")


def variable_of(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.upper()


def host_and_port(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`, strictly; ValueError says what is wrong."""
    host, colon, port = address.rpartition(":")
    if not colon or not re.fullmatch(r"\d{1,5}", port) or int(port) > 65535:
        raise ValueError(f"expected host:port, not {address!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{host!r} is no IPv6 address") from None
    elif not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9._]{0,251}[A-Za-z0-9])?", host):
        raise ValueError(f"expected host:port, not {address!r}; an IPv6 address stands in brackets")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. A name other than localhost may resolve to anything, so it does not count."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_wildcard(host: str) -> bool:
    return host in ("0.0.0.0", "::")


def _problems(config: NodeConfig) -> Iterator[str]:
    if not _NAME.match(config.name):
        yield f"name: {config.name!r} must be 1 to 63 of a-z, 0-9, '-' and '.', beginning and ending with a letter or digit"
    if not config.data_dir or "\0" in config.data_dir:
        yield "data_dir: must not be empty"
    if len(config.zone) > 63 or not config.zone.isprintable():
        yield "zone: at most 63 printable characters"
    yield from _address_problems(config)
    for key, item in FIELDS.items():
        value = getattr(config, key)
        if "low" in item.metadata and not item.metadata["low"] <= value <= item.metadata["high"]:
            yield f"{key}: must be from {item.metadata['low']} to {item.metadata['high']}, not {value}"
        choices = item.metadata.get("choices")
        if choices and value not in choices:
            yield f"{key}: must be one of {', '.join(choices)}, not {value!r}"
    if config.heartbeat_ticks * 2 >= config.election_ticks:
        yield f"heartbeat_ticks: {config.heartbeat_ticks} must be below half of election_ticks ({config.election_ticks}): one may be lost"
    if config.segment_bytes % _SECTOR_BYTES:
        yield f"segment_bytes: must be a multiple of {_SECTOR_BYTES}, not {config.segment_bytes}"
    # A command is never split over two segments, and takes at most half of one.
    if config.body_bytes_max + (64 << 10) > config.segment_bytes // 2:
        yield f"body_bytes_max: {config.body_bytes_max} does not fit half of a log segment ({config.segment_bytes} bytes) with 64 KiB to spare"
    if config.inflight_bytes_max < config.body_bytes_max:
        yield f"inflight_bytes_max: {config.inflight_bytes_max} is below body_bytes_max ({config.body_bytes_max}): the largest could never enter"
    # A live response is base64 in events: half as much again as what was read.
    if config.unsent_bytes_max < 2 * config.response_bytes_max:
        yield f"unsent_bytes_max: {config.unsent_bytes_max} is below twice response_bytes_max ({config.response_bytes_max}): one could never leave"
    if config.stop_timeout_ms <= config.drain_ms:
        yield f"stop_timeout_ms: {config.stop_timeout_ms} must be above drain_ms ({config.drain_ms})"


def _address_problems(config: NodeConfig) -> Iterator[str]:
    taken: dict[tuple[str, int], str] = {}
    for plane in ("client", "admin", "peer"):
        key = f"{plane}_listen"
        listen: str = getattr(config, key)
        advertise: str = getattr(config, f"{plane}_advertise")
        try:
            host, port = host_and_port(listen)
        except ValueError as wrong:
            yield f"{key}: {wrong}"
            continue
        if port and (host, port) in taken:
            yield f"{key}: {listen} is {taken[host, port]} already"
        taken[host, port] = key
        if not is_loopback(host) and not config.insecure:
            yield (
                f"{key}: {listen} is reachable from other machines, and there is no TLS or authentication yet;"
                " listen on 127.0.0.1, or say --insecure where the network is trusted"
            )
        try:
            host, port = host_and_port(advertise)
        except ValueError as wrong:
            yield f"{plane}_advertise: {wrong}"
            continue
        if _is_wildcard(host):
            yield f"{plane}_advertise: nobody can connect to {host}; say how others reach this node"
    for peer in config.peers:
        try:
            host, port = host_and_port(peer)
        except ValueError as wrong:
            yield f"peers: {wrong}"
            continue
        if not port or _is_wildcard(host):
            yield f"peers: nobody can connect to {peer}"


def reference() -> str:
    """docs/config.md, whole. A test compares the file with this."""
    lines = [
        "# Settings of a node",
        "",
        "Generated by `python -m anabranch_node.main config-reference`; never edited by hand.",
        "",
        "Each setting is a flag of `anabranch serve`, a variable, and a key of the TOML file named by `--config` or `ANABRANCH_CONFIG`.",
        "A flag wins over the variable, the variable over the file, the file over the default. Unknown keys are refused by name; all problems",
        "are reported at once. Sizes in bytes may be written with KiB, MiB, GiB or TiB. `peers` is a list in the file, separated by commas in",
        "the variable, repeated or separated by commas as a flag. What belongs to the whole cluster (group count, replication factor) is",
        "decided once by `anabranch init`.",
    ]
    section = ""
    for key, item in FIELDS.items():
        if item.metadata["section"] != section:
            section = item.metadata["section"]
            lines += ["", f"## {section}", "", "| key | flag | variable | default | meaning |", "| --- | --- | --- | --- | --- |"]
        lines.append(f"| `{key}` | `{flag_of(key)}` | `{variable_of(key)}` | {_shown_default(key)} | {_shown_help(key)} |")
    return "\n".join(lines) + "\n"


def _shown_default(key: str) -> str:
    default = FIELDS[key].default
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int):
        return f"`{shown_number(key, default)}`"
    return f"`{default}`" if default else ""


def _shown_help(key: str) -> str:
    meta = FIELDS[key].metadata
    text: str = meta["help"]
    if "low" in meta:
        text += f" ({shown_number(key, meta['low'])} to {shown_number(key, meta['high'])})"
    if meta.get("choices"):
        text += f" ({', '.join(meta['choices'])})"
    return text


def shown_number(key: str, value: int) -> str:
    """Bytes in the largest unit that divides them; other numbers as they are."""
    if "bytes" in key and value:
        for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
            if value % (1 << shift) == 0:
                return f"{value >> shift}{unit}"
    return str(value)
