"""The verbs that touch streams, against fake nodes: what they print, how they end, and that nothing is sent twice that must not be."""

import json
import threading
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from anabranch_node.cli.app import application
from anabranch_node.cli.http import stream_path, urls_of
from anabranch_node.cli.read import Event, events
from anabranch_node.config import NodeConfig
from tests.unit.fake_node import FakeNode, Stream, World


def run(*argv: str, stdin: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
    def serve(_: NodeConfig) -> int:
        raise AssertionError

    return CliRunner().invoke(application(serve), list(argv), input=stdin, env=env, prog_name="anabranch")


@pytest.fixture
def node() -> Iterator[FakeNode]:
    made = FakeNode()
    yield made
    made.stop()


@pytest.fixture
def pair() -> Iterator[tuple[FakeNode, FakeNode]]:
    world = World()
    made = FakeNode(world), FakeNode(world)
    yield made
    for one in made:
        if not one.stopped:
            one.stop()


def dead_url() -> str:
    gone = FakeNode()
    gone.stop()
    return gone.url


def test_append_creates_then_appends(node: FakeNode) -> None:
    assert run("append", "a b/c", "--url", node.url, "--create", "--data", "hello").exit_code == 0
    assert run("append", "a b/c", "--url", node.url, stdin=b" world").exit_code == 0
    assert node.world.streams["a b/c"].data == b"hello world"
    assert node.world.streams["a b/c"].content_type == "text/plain"
    shown = run("read", "a b/c", "--url", node.url)
    assert (shown.exit_code, shown.stdout) == (0, "hello world")


def test_append_without_the_stream_says_so(node: FakeNode) -> None:
    result = run("append", "x", "--url", node.url, "--data", "y")
    assert result.exit_code == 1 and "--create makes it" in result.stderr


def test_append_of_nothing_fails(node: FakeNode) -> None:
    assert run("append", "x", "--url", node.url, "--create", stdin=b"").exit_code == 1


def test_append_of_lines_and_close(node: FakeNode) -> None:
    result = run("append", "x", "--url", node.url, "--create", "--lines", "--close", "--json", stdin=b"a\n\nb\r\nc")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"stream": "x", "appends": 3, "next_offset": f"{6:020d}", "duplicate": False}
    assert node.world.streams["x"].data == b"a\nb\nc\n" and node.world.streams["x"].closed


def test_the_next_node_is_asked_when_one_refuses(node: FakeNode) -> None:
    result = run("append", "x", "--create", "--data", "y", env={"ANABRANCH_URL": f"{dead_url()},{node.url}"})
    assert result.exit_code == 0 and node.world.streams["x"].data == b"y"


def test_nobody_there_is_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch_node.cli.http.Nodes.request.__kwdefaults__", {"retry_for_s": 0.0, "pass_on_busy": True})
    result = run("read", "x", "--url", dead_url())
    assert result.exit_code == 3 and "connection refused" in result.stderr


def test_a_plain_append_whose_answer_is_lost_is_not_repeated(pair: tuple[FakeNode, FakeNode]) -> None:
    first, second = pair
    first.world.streams["x"] = Stream("text/plain")
    first.drop_answers, first.apply_before_drop = 1, True
    result = run("append", "x", "--url", f"{first.url},{second.url}", "--content-type", "text/plain", "--data", "y")
    assert result.exit_code == 1 and "may or may not have happened" in result.stderr
    assert first.world.streams["x"].data == b"y"


def test_a_producers_append_whose_answer_is_lost_lands_once(pair: tuple[FakeNode, FakeNode]) -> None:
    first, second = pair
    first.world.streams["x"] = Stream("text/plain")
    first.drop_answers, first.apply_before_drop = 1, True
    argv = ["append", "x", "--url", f"{first.url},{second.url}", "--content-type", "text/plain", "--data", "y", "--producer-id", "p", "--json"]
    result = run(*argv)
    assert result.exit_code == 0 and json.loads(result.stdout)["duplicate"] is True
    assert first.world.streams["x"].data == b"y"


def test_a_busy_node_passes_a_read_on(pair: tuple[FakeNode, FakeNode]) -> None:
    first, second = pair
    first.world.streams["x"] = Stream("text/plain")
    first.busy = 1
    assert run("read", "x", "--url", f"{first.url},{second.url}").exit_code == 0


def test_read_goes_on_to_the_end_and_shows_json_by_line(node: FakeNode) -> None:
    made = node.world.streams["x"] = Stream("application/json")
    made.data = b'{"a":1},{"b": 2},'
    node.read_bytes_max = 8
    assert run("read", "x", "--url", node.url).exit_code == 1  # a cut inside a message is no JSON: said, not shown
    node.read_bytes_max = 1 << 20
    assert run("read", "x", "--url", node.url).stdout == '{"a":1}\n{"b": 2}\n'
    line = json.loads(run("read", "x", "--url", node.url, "--json").stdout)
    assert (line["messages"], line["up_to_date"], line["closed"]) == ([{"a": 1}, {"b": 2}], True, False)


def test_read_in_pieces(node: FakeNode) -> None:
    made = node.world.streams["x"] = Stream("application/octet-stream")
    made.data = bytes(range(256))
    node.read_bytes_max = 100
    assert run("read", "x", "--url", node.url).stdout_bytes == made.data
    lines = run("read", "x", "--url", node.url, "--json").stdout.splitlines()
    assert [json.loads(line)["next_offset"][-3:] for line in lines] == ["100", "200", "256"]
    assert len(run("read", "x", "--url", node.url, "--once").stdout_bytes) == 100


def test_read_of_an_unknown_stream(node: FakeNode) -> None:
    result = run("read", "x", "--url", node.url)
    assert result.exit_code == 1 and "404 not_found" in result.stderr


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream"])
def test_tail_until_closed(node: FakeNode, content_type: str) -> None:
    made = node.world.streams["x"] = Stream(content_type)
    made.data, made.closed = b"one\n\ntwo", True
    result = run("tail", "x", "--url", node.url, "--offset", "-1")
    assert (result.exit_code, result.stdout) == (0, "one\n\ntwo")


def test_tail_survives_rotation_and_the_death_of_a_node(pair: tuple[FakeNode, FakeNode]) -> None:
    first, second = pair
    world = first.world
    made = world.streams["x"] = Stream("application/json")
    first.events_per_answer_max = 3

    def write() -> None:
        for number in range(40):
            with world.changed:
                made.data += b'{"n":%d},' % number
                made.closed = number == 39
                world.changed.notify_all()
            if number == 20:
                first.stop()
            threading.Event().wait(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    result = run("tail", "x", "--url", f"{first.url},{second.url}", "--offset", "-1")
    writer.join()
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["n"] for line in result.stdout.splitlines()] == list(range(40))


def test_tail_gives_up_in_the_end(node: FakeNode) -> None:
    node.world.streams["x"] = Stream("text/plain")
    assert run("tail", "y", "--url", node.url).exit_code == 1
    assert run("tail", "x", "--url", dead_url(), "--retry-for", "0.1").exit_code == 3


def test_events_need_their_control() -> None:
    lines = [b":comment", b"", b"event: data", b"data:a", b"data: b", b"", b"event: control", b'data: {"streamNextOffset":"5","more":1}', b""]
    cut = [b"event: data", b"data:lost", b""]
    assert list(events(iter(lines + cut), is_base64=False)) == [Event(b"a\nb", "5", False, False)]


def test_urls_and_paths() -> None:
    assert urls_of("127.0.0.1:1, http://h:2/ ,", "") == ["http://127.0.0.1:1", "http://h:2"]
    assert stream_path("/a/b?c#d e") == "/v1/stream/a/b%3Fc%23d%20e"
    for wrong in ("https://x", "http://", "http://h:x", "ftp://h", ","):
        assert run("read", "x", "--url", wrong).exit_code == 1


@pytest.mark.parametrize("workload", ["append", "read"])
def test_bench_counts_and_cleans_up(node: FakeNode, workload: str) -> None:
    result = run("bench", workload, "--url", node.url, "--connections", "3", "--seconds", "0.3", "--size", "10", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["operations"] > 0 and figures["errors"] == {} and figures["p50_us"] <= figures["p99_us"] <= figures["max_us"]
    assert node.world.streams == {}
    shown = run("bench", workload, "--url", node.url, "--connections", "1", "--seconds", "0.1", "--keep")
    assert "ops/s" in shown.stdout and len(node.world.streams) == 1
