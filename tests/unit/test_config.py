"""Settings: precedence, strictness, bounds, and the page that is generated from them."""

from pathlib import Path

import pytest

from anabranch_node import config
from anabranch_node.config import ConfigError, NodeConfig, host_and_port, is_loopback, load

ROOT = Path(__file__).resolve().parents[2]


def problems(**flags: object) -> str:
    with pytest.raises(ConfigError) as raised:
        load({"name": "a", **flags}, {})
    return "\n".join(raised.value.problems)


def test_defaults_stand_alone() -> None:
    node = NodeConfig(name="a", data_dir="/x")
    assert (node.client_listen, node.admin_listen, node.peer_listen) == ("127.0.0.1:4437", "127.0.0.1:4438", "127.0.0.1:4439")
    assert node.peer_advertise == node.peer_listen


def test_a_name_comes_from_the_host_if_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Pod-3.cluster.local")
    assert load({}, {}).name == "pod-3"


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('name = "file"\ntick_ms = 11\nelection_ticks = 40\npeers = ["a:1", "b:2"]\nbody_bytes_max = "1MiB"\n')
    node = load({"name": "flag"}, {"ANABRANCH_NAME": "env", "ANABRANCH_TICK_MS": "12", "PATH": "/bin"}, str(file))
    assert (node.name, node.tick_ms, node.election_ticks, node.heartbeat_ticks) == ("flag", 12, 40, 5)
    assert node.peers == ("a:1", "b:2")
    assert node.body_bytes_max == 1 << 20


def test_unknown_keys_are_refused_by_name_all_at_once(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("tick_msec = 1\n[client]\nlisten = 2\n")
    with pytest.raises(ConfigError) as raised:
        load({"nmae": "a"}, {"ANABRANCH_ZOME": "z"}, str(file))
    text = str(raised.value)
    assert "tick_msec: unknown setting; did you mean tick_ms?" in text
    assert "client: unknown setting" in text
    assert "ANABRANCH_ZOME: unknown setting; did you mean zone?" in text
    assert "--nmae: unknown setting" in text


def test_variables_of_the_command_and_of_kubernetes_are_no_settings() -> None:
    foreign = {"ANABRANCH_URL": "x", "ANABRANCH_ADMIN": "y", "ANABRANCH_DEMO_SERVICE_HOST": "10.0.0.1", "ANABRANCH_DEMO_PORT_4437_TCP": "tcp://x"}
    assert load({"name": "a"}, foreign | {"ANABRANCH_PORT": "tcp://10.0.0.1:4437"}).name == "a"


@pytest.mark.parametrize("text", ["", "= 1", "\xff"])
def test_a_file_that_is_missing_or_no_toml(tmp_path: Path, text: str) -> None:
    file = tmp_path / "node.toml"
    if text:
        file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"node\.toml: (there is no such file|is not TOML)"):
        load({}, {}, str(file))


@pytest.mark.parametrize("listen", ["0.0.0.0:4437", "[::]:4437", "10.1.2.3:4437", "node-0.example:4437"])
def test_beyond_loopback_needs_insecure(listen: str) -> None:
    assert "--insecure" in problems(client_listen=listen)
    assert load({"name": "a", "client_listen": listen, "client_advertise": "here:4437", "insecure": True}, {}).client_listen == listen


def test_loopback_needs_nothing() -> None:
    for listen in ("127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1"):
        assert load({"name": "a", "client_listen": listen}, {}).client_listen == listen


def test_a_wildcard_cannot_be_advertised() -> None:
    assert "nobody can connect to 0.0.0.0" in problems(client_listen="0.0.0.0:4437", insecure=True)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"name": "A b"}, "name:"),
        ({"tick_ms": "x"}, "--tick-ms: expected a whole number"),
        ({"tick_ms": True}, "--tick-ms: expected a whole number"),
        ({"tick_ms": "-5"}, "--tick-ms: expected a whole number"),
        ({"tick_ms": 0}, "tick_ms: must be from 5 to 1000"),
        ({"heartbeat_ticks": 15}, "heartbeat_ticks: 15 must be below half"),
        ({"segment_bytes": (64 << 20) + 1}, "multiple of 4096"),
        ({"segment_bytes": "4MiB"}, "does not fit half of a log segment"),
        ({"body_bytes_max": "10 MB"}, "expected bytes"),
        ({"inflight_bytes_max": "2MiB"}, "could never enter"),
        ({"log_level": "loud"}, "must be one of debug"),
        ({"insecure": "maybe"}, "expected true or false"),
        ({"peers": ["here"]}, "peers: expected host:port"),
        ({"peers": ["0.0.0.0:1"]}, "nobody can connect"),
        ({"admin_listen": "127.0.0.1:4437"}, "is client_listen already"),
        ({"peer_listen": "::1:4439"}, "in brackets"),
        ({"drain_ms": 60_000}, "must be above drain_ms"),
        ({"data_dir": ""}, "data_dir: must not be empty"),
    ],
)
def test_what_does_not_fit_is_said_clearly(flags: dict[str, object], said: str) -> None:
    assert said in problems(**flags)


def test_addresses() -> None:
    assert host_and_port("[::1]:80") == ("::1", 80)
    assert host_and_port("a.b-c:0") == ("a.b-c", 0)
    for wrong in ("", ":1", "a", "a:", "a:65536", "a:b", "[x]:1", "a b:1", "-a:1"):
        with pytest.raises(ValueError):
            host_and_port(wrong)
    assert not is_loopback("example") and not is_loopback("::") and is_loopback("::1")


def test_every_setting_has_an_explanation() -> None:
    for key, item in config.FIELDS.items():
        assert item.metadata["help"], key
        assert item.metadata["section"], key


def test_the_page_is_the_generated_one() -> None:
    assert (ROOT / "docs/config.md").read_text() == config.reference(), "python -m anabranch_node.main config-reference > docs/config.md"


def test_each_setting_for_clients_reaches_the_plane_or_the_service() -> None:
    """No setting is only documented: with every one changed, nothing of the plane's limits is left at its default."""
    from anabranch_node.drivers.http_protocol import ClientOptions
    from anabranch_node.drivers.node import client_options

    changed = client_options(
        NodeConfig(
            connections_max=7,
            header_bytes_max=2048,
            header_count_max=9,
            url_bytes_max=300,
            body_bytes_max=77,
            inflight_bytes_max=2 << 20,
            unsent_bytes_max=3 << 20,
            live_buffer_bytes_max=5000,
            header_timeout_ms=110,
            body_timeout_ms=120,
            idle_timeout_ms=130,
            write_timeout_ms=140,
        )
    )
    plane_only = {"connections_refused_max", "pipeline_requests_max", "body_grace_s", "body_rate_bytes_s_min", "linger_s", "sweep_interval_s"}
    same = {name for name, value in vars(ClientOptions()).items() if value == vars(changed)[name]}
    assert same == plane_only
    assert (changed.head_timeout_s, changed.body_timeout_s, changed.idle_timeout_s, changed.write_stall_timeout_s) == (0.11, 0.12, 0.13, 0.14)
