"""The admin plane over loopback with a backend that only remembers: routes, strict bodies, errors, metrics; then telemetry's own arithmetic."""

import asyncio
import http.client
import io
import json
import logging
from collections.abc import Callable, Iterable, Iterator

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from anabranch_node.config import NodeConfig
from anabranch_node.drivers import admin_http
from anabranch_node.drivers.admin_http import AdminPlane, AdminRefused
from anabranch_node.drivers.telemetry import GroupFacts, Histogram, JsonLines, NodeCollector, NodeFacts, TextLines, exposition
from anabranch_proto.admin import InitAnswer, InitRequest, NodeStatus, SnapshotAnswer, ThisNode, TransferAnswer


class Backend:
    def __init__(self) -> None:
        self.ready = (True, "")
        self.cluster_id = ""
        self.asked: list[tuple[object, ...]] = []

    def healthz(self) -> tuple[bool, str]:
        return True, ""

    def readyz(self) -> tuple[bool, str]:
        return self.ready

    def status(self) -> NodeStatus:
        return NodeStatus(node=ThisNode(name="a"), cluster_id=self.cluster_id)

    def metrics(self) -> Iterable[Metric]:
        return NodeCollector(lambda: NodeFacts(appends=7)).collect()

    async def init(self, request: InitRequest) -> InitAnswer:
        if self.cluster_id not in ("", request.cluster_id):
            raise AdminRefused(409, "another_cluster", "this node belongs to another cluster")
        created, self.cluster_id = not self.cluster_id, request.cluster_id
        return InitAnswer(request.cluster_id, request.group_count, request.replication_factor, created)

    async def transfer(self, group: int, to_node: int | None) -> TransferAnswer | None:
        self.asked.append(("transfer", group, to_node))
        if group == 9:
            raise AdminRefused(503, "no_leader", "not now")
        if group == 8:
            raise KeyError("a defect")
        if group == 7:
            await asyncio.sleep(60)
        return None

    async def snapshot(self, group: int) -> SnapshotAnswer | None:
        self.asked.append(("snapshot", group))
        return SnapshotAnswer(group, 41)


Ask = Callable[..., tuple[int, dict[str, str], bytes]]


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def ask(backend: Backend) -> Iterator[Ask]:
    loop = asyncio.new_event_loop()
    plane = AdminPlane(backend, NodeConfig(name="a", admin_listen="127.0.0.1:0"))
    loop.run_until_complete(plane.start())

    def exchange(method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", plane.port, timeout=5)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def asked(method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        spelt = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        return loop.run_until_complete(loop.run_in_executor(None, exchange, method, path, body, spelt))

    yield asked
    loop.run_until_complete(plane.stop())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def code_of(body: bytes) -> str:
    error = json.loads(body)["error"]
    assert set(error) == {"code", "message"} and error["message"]
    code: str = error["code"]
    return code


def test_probes(ask: Ask, backend: Backend) -> None:
    assert ask("GET", "/healthz")[0] == 200
    assert ask("GET", "/readyz")[0] == 200
    backend.ready = (False, "replaying")
    status, headers, body = ask("GET", "/readyz")
    assert (status, json.loads(body)) == (503, {"ok": False, "reason": "replaying"})
    assert headers["Cache-Control"] == "no-store"


def test_status_and_metrics(ask: Ask) -> None:
    status, headers, body = ask("GET", "/admin/v1/status")
    assert status == 200 and headers["Content-Type"] == "application/json"
    assert json.loads(body)["node"]["state"] == "uninitialized"
    status, headers, body = ask("GET", "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"\nanabranch_appends_total 7.0\n" in body


def test_init_is_once(ask: Ask) -> None:
    wish = b'{"cluster_id":"c1","group_count":16,"replication_factor":1}'
    assert ask("POST", "/admin/v1/init", wish)[0] == 201
    status, _, body = ask("POST", "/admin/v1/init", wish)
    assert (status, json.loads(body)["created"]) == (200, False)
    status, _, body = ask("POST", "/admin/v1/init", b'{"cluster_id":"c2"}')
    assert (status, code_of(body)) == (409, "another_cluster")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "bad_field"),
        (b"{", "bad_json"),
        (b"\xff", "bad_json"),
        (b"[" * 10_000, "bad_field"),
        (b"[]", "bad_field"),
        (b"{}", "bad_field"),
        (b'{"cluster_id":"c1","groups":3}', "bad_field"),
        (b'{"cluster_id":"c1","group_count":0}', "bad_field"),
        (b'{"cluster_id":"c1","group_count":"16"}', "bad_field"),
        (b'{"cluster_id":"a/b"}', "bad_field"),
        (b'{"cluster_id":""}', "bad_field"),
    ],
)
def test_a_bad_body_is_refused(ask: Ask, backend: Backend, body: bytes, code: str) -> None:
    status, _, answer = ask("POST", "/admin/v1/init", body)
    assert (status, code_of(answer)) == (400, code)
    assert backend.cluster_id == ""


def test_only_json_and_no_web_pages(ask: Ask, backend: Backend) -> None:
    status, _, body = ask("POST", "/admin/v1/init", b'{"cluster_id":"c1"}', Content_Type="text/plain")
    assert (status, code_of(body)) == (415, "bad_content_type")
    status, _, body = ask("POST", "/admin/v1/init", b'{"cluster_id":"c1"}', Origin="http://evil.example")
    assert (status, code_of(body)) == (403, "cross_origin")
    assert backend.cluster_id == ""


def test_transfer_and_snapshot(ask: Ask, backend: Backend) -> None:
    assert ask("POST", "/admin/v1/groups/3/transfer", b'{"to_node":2}')[0] == 202
    assert ask("POST", "/admin/v1/groups/3/transfer")[0] == 202
    status, _, body = ask("POST", "/admin/v1/groups/0/snapshot")
    assert (status, json.loads(body)) == (202, {"group": 0, "index": 41})
    assert backend.asked == [("transfer", 3, 2), ("transfer", 3, None), ("snapshot", 0)]


@pytest.mark.parametrize("group", ["x", "-1", "01", "99999", "1.0"])
def test_a_group_is_a_number(ask: Ask, backend: Backend, group: str) -> None:
    status, _, body = ask("POST", f"/admin/v1/groups/{group}/snapshot")
    assert (status, code_of(body)) == (400, "bad_group")
    assert backend.asked == []


def test_every_error_has_the_shape(ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    status, headers, body = ask("POST", "/admin/v1/groups/9/transfer")
    assert (status, code_of(body), headers["Retry-After"]) == (503, "no_leader", "1")
    status, _, body = ask("GET", "/nowhere")
    assert (status, code_of(body)) == (404, "not_found")
    status, headers, body = ask("DELETE", "/healthz")
    assert (status, code_of(body)) == (405, "method_not_allowed") and "GET" in headers["Allow"]
    status, _, body = ask("POST", "/admin/v1/init", b" " * (admin_http.BODY_BYTES_MAX + 1))
    assert (status, code_of(body)) == (413, "body_too_large")
    with caplog.at_level(logging.CRITICAL):
        status, _, body = ask("POST", "/admin/v1/groups/8/transfer")
    assert (status, code_of(body)) == (500, "internal") and b"defect" in body and b"KeyError" not in body
    monkeypatch.setattr(admin_http, "REQUEST_TIMEOUT_S", 0.05)
    status, _, body = ask("POST", "/admin/v1/groups/7/transfer")
    assert (status, code_of(body)) == (503, "timeout")


def test_a_taken_port_is_an_error_and_leaves_nothing(backend: Backend) -> None:
    async def twice() -> None:
        first = AdminPlane(backend, NodeConfig(name="a", admin_listen="127.0.0.1:0"))
        await first.start()
        second = AdminPlane(backend, NodeConfig(name="a", admin_listen=f"127.0.0.1:{first.port}"))
        with pytest.raises(OSError, match="address already in use"):
            await second.start()
        await second.stop()
        await first.stop()

    asyncio.run(twice())


def test_histogram_counts_by_upper_bound() -> None:
    histogram = Histogram((10, 20, 40))
    for us in (0, 10, 11, 20, 40, 41, 10_000):
        histogram.observe(us)
    assert histogram.counts == [2, 2, 1, 2]
    assert (histogram.count, histogram.sum_us) == (7, 10_122)
    assert (histogram.quantile_us(0.5), histogram.quantile_us(1.0), Histogram().quantile_us(0.5)) == (20, 40, 0)


def test_two_nodes_do_not_share_a_histogram() -> None:
    NodeFacts().append_seconds.observe(5)
    assert NodeFacts().append_seconds.count == 0


def test_the_exposition_is_what_prometheus_reads() -> None:
    facts = NodeFacts(version="1", state="active", groups=[GroupFacts(1, True, 3, 99)], rejected={"overloaded": 2}, responses={"200": 5})
    for us in (60, 60, 70_000_000):
        facts.append_seconds.observe(us)
    families = {family.name: family for family in text_string_to_metric_families(exposition(NodeCollector(lambda: facts).collect()).decode())}
    samples = {(sample.name, *sample.labels.values()): sample.value for family in families.values() for sample in family.samples}
    assert samples["anabranch_append_seconds_bucket", "0.0001"] == 2
    assert samples["anabranch_append_seconds_bucket", "+Inf"] == samples[("anabranch_append_seconds_count",)] == 3
    assert samples["anabranch_group_leader", "1"] == 1 and samples["anabranch_group_hot_bytes", "1"] == 99
    assert samples["anabranch_rejected_total", "overloaded"] == 2 and samples["anabranch_responses_total", "200"] == 5


@pytest.mark.parametrize("formatter", [JsonLines(), TextLines()])
def test_a_log_record_is_one_line(formatter: logging.Formatter) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.Logger("anabranch.test")
    logger.addHandler(handler)
    logger.warning("bad\nline %s", "\x1b[31m", extra={"request_id": "r1\n2", "level": "forged", "count": 3})
    line = stream.getvalue()
    assert line.count("\n") == 1 and "\x1b" not in line
    if isinstance(formatter, JsonLines):
        parsed = json.loads(line)
        assert (parsed["level"], parsed["message"], parsed["request_id"], parsed["count"]) == ("warning", "bad\nline \x1b[31m", "r1\n2", 3)
    else:
        assert " WARNING anabranch.test bad\\nline" in line and 'request_id="r1\\n2"' in line and "count=3" in line
