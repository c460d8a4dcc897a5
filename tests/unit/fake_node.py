"""A stand-in for a node, small enough to trust: admin plane and streams in memory, with the headers and events that the command relies on.

In a test's own process (FakeNode), or as a process of its own that takes the flags of `serve` and ignores most (python fake_node.py serve ...)."""

import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit


class Stream:
    def __init__(self, content_type: str) -> None:
        self.content_type = content_type
        self.data = b""
        self.closed = False
        self.producers: dict[str, tuple[int, int]] = {}


class World:
    """What all planes of all fake nodes of one test share."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.changed = threading.Condition()
        self.cluster_id = ""
        self.group_count = 0
        self.replication_factor = 0
        self.requests: list[tuple[str, str]] = []
        self.kept: Path | None = None  # the cluster id survives here


def _handler(node: "FakeNode") -> type[BaseHTTPRequestHandler]:
    world = node.world

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def send(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def problem(self, status: int, code: str) -> None:
            self.send(status, json.dumps({"error": {"code": code, "message": f"{code} it is"}}).encode(), Content_Type="application/json")

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            world.requests.append((self.command, self.path))
            split = urlsplit(self.path)
            if node.drop_answers:
                node.drop_answers -= 1
                if node.apply_before_drop:
                    self.client(split.path, parse_qs(split.query), body, quiet=True)
                self.close_connection = True
                return
            if node.busy:
                node.busy -= 1
                self.problem(503, "initializing")
            elif split.path.startswith("/v1/stream/"):
                self.client(split.path, parse_qs(split.query), body)
            else:
                self.admin(split.path, body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

        def client(self, path: str, query: dict[str, list[str]], body: bytes, quiet: bool = False) -> None:
            name = unquote(path.removeprefix("/v1/stream/"))
            stream = world.streams.get(name)
            if self.command == "PUT":
                fresh = stream is None
                stream = world.streams.setdefault(name, Stream(self.headers.get("Content-Type", "application/octet-stream")))
                stream.data += body
                self.send(201 if fresh else 200)
            elif stream is None:
                self.problem(404, "not_found")
            elif self.command == "DELETE":
                del world.streams[name]
                self.send(204)
            elif self.command == "POST":
                status = self.append(stream, body)
                if not quiet:
                    self.send(status, Stream_Next_Offset=f"{len(stream.data):020d}")
            elif self.command == "HEAD":
                self.send(200, Content_Type=stream.content_type, Stream_Next_Offset=f"{len(stream.data):020d}")
            else:
                offset = query["offset"][0]
                begin = 0 if offset == "-1" else len(stream.data) if offset == "now" else int(offset)
                if "live" in query:
                    self.live(stream, begin)
                else:
                    end = min(len(stream.data), begin + node.read_bytes_max)
                    at_end = {"Stream_Up_To_Date": "true"} if end == len(stream.data) else {}
                    self.send(200, shown(stream, begin, end), Content_Type=stream.content_type, Stream_Next_Offset=f"{end:020d}", **at_end)

        def append(self, stream: Stream, body: bytes) -> int:
            with world.changed:
                producer = self.headers.get("Producer-Id")
                if producer:
                    at = (int(self.headers["Producer-Epoch"]), int(self.headers["Producer-Seq"]))
                    if stream.producers.get(producer, (-1, -1)) >= at:
                        return 204
                    stream.producers[producer] = at
                stream.data += body + (b"," if stream.content_type == "application/json" else b"")
                stream.closed |= self.headers.get("Stream-Closed") == "true"
                world.changed.notify_all()
            return 200 if producer else 204

        def live(self, stream: Stream, at: int) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            if stream.content_type == "application/octet-stream":
                self.send_header("stream-sse-data-encoding", "base64")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            events = 0
            self.event(stream, at, at)
            while not node.stopped and events < node.events_per_answer_max:
                with world.changed:
                    if len(stream.data) == at and not stream.closed:
                        world.changed.wait(0.1)
                    end = len(stream.data)
                if end > at or stream.closed:
                    self.event(stream, at, end)
                    events += 1
                    at = end
                if stream.closed:
                    break
            self.close_connection = True
            if not node.stopped:
                self.wfile.write(b"0\r\n\r\n")

        def event(self, stream: Stream, begin: int, end: int) -> None:
            import base64

            data = b""
            if end > begin:
                payload = shown(stream, begin, end)
                if stream.content_type == "application/octet-stream":
                    payload = base64.b64encode(payload)
                data = b"event: data\n" + b"".join(b"data:" + line + b"\n" for line in payload.split(b"\n")) + b"\n"
            control: dict[str, object] = {"streamNextOffset": f"{end:020d}", "streamCursor": "1", "upToDate": True}
            if stream.closed and end == len(stream.data):
                control["streamClosed"] = True
            data += b"event: control\ndata:" + json.dumps(control).encode() + b"\n\n"
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def admin(self, path: str, body: bytes) -> None:
            if path == "/readyz":
                ok = bool(world.cluster_id) and node.ready
                self.send(200 if ok else 503, json.dumps({"ok": ok, "reason": "" if ok else "waiting for init"}).encode())
            elif path == "/admin/v1/init":
                wish = json.loads(body)
                if world.cluster_id not in ("", wish["cluster_id"]):
                    self.problem(409, "another_cluster")
                    return
                created = not world.cluster_id
                world.cluster_id, world.group_count, world.replication_factor = wish["cluster_id"], wish["group_count"], wish["replication_factor"]
                if world.kept:
                    world.kept.write_text(world.cluster_id)
                self.send(201 if created else 200, json.dumps({**wish, "created": created}).encode())
            elif path == "/admin/v1/status":
                self.send(200, json.dumps(node.status()).encode())
            else:
                self.problem(404, "not_found")

    return Handler


def shown(stream: Stream, begin: int, end: int) -> bytes:
    data = stream.data[begin:end]
    return b"[" + data[:-1] + b"]" if stream.content_type == "application/json" else data


class FakeNode:
    """Serves from threads until stop(). The knobs make it misbehave."""

    def __init__(self, world: World | None = None, port: int = 0, name: str = "fake") -> None:
        self.world = world or World()
        self.name = name
        self.ready = True
        self.busy = 0  # so many requests are answered 503
        self.drop_answers = 0  # so many requests get no answer
        self.apply_before_drop = False
        self.read_bytes_max = 1 << 20
        self.events_per_answer_max = 1 << 30
        self.stopped = False
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.address}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def status(self) -> dict[str, object]:
        nodes = [{"node_id": 1, "name": self.name, "admin_address": self.address}, {"node_id": 2, "name": "gone", "reachable": False}]
        groups = [
            {"group": 0, "replica": 1, "role": "leader", "leader_node": 1, "term": 3, "commit": 9, "applied": 9},
            {"group": 5, "replica": 2, "role": "fenced", "term": 3, "commit": 9, "applied": 7, "fenced": "damaged log"},
        ]
        me = {"name": self.name, "node_id": 1, "incarnation": "ab", "state": "active", "ready": True, "uptime_ms": 5000, "from_the_future": 1}
        return {"node": me, "cluster_id": self.world.cluster_id, "group_count": 16, "replication_factor": 1, "nodes": nodes, "groups": groups}

    def stop(self) -> None:
        self.stopped = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def main(argv: list[str]) -> None:
    flags = dict(zip(argv[::2], argv[1::2], strict=False))
    name = flags["--name"]
    print(f"{name} is here", file=sys.stderr, flush=True)
    if "FAKE_DEAD" in flags.get("--zone", "") and name == "node1":
        print("cannot go on", file=sys.stderr, flush=True)
        sys.exit(7)
    world = World()
    world.kept = Path(flags["--data-dir"]) / "cluster"
    if world.kept.exists():
        world.cluster_id = world.kept.read_text()
    if name != "node0":
        world.cluster_id = "joined"
    _client, _admin = (FakeNode(world, int(flags[flag].rpartition(":")[2]), name) for flag in ("--client-listen", "--admin-listen"))
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    done.wait()
    print(f"{name} stops", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[2:])
