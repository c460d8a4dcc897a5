"""The admin plane on 4438: health, metrics, status, init, leader transfer, snapshots. Before us: probes, Prometheus, the `anabranch` command.
After us: AdminBackend, which drivers/node.py implements on the loop's own thread. It opens before the log is replayed, so that probes see a start.

Strict like the client plane: bodies are bounded, unknown fields refused, every error is {"error":{"code","message"}}.
Not here: decisions (the backend's), and authentication, which comes with TLS; until then config.py keeps this on loopback unless --insecure."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol, TypeVar

import msgspec
from aiohttp import web
from prometheus_client.core import Metric

from anabranch_node.config import NodeConfig, host_and_port
from anabranch_node.drivers.telemetry import exposition
from anabranch_proto.admin import (
    GROUP_COUNT_MAX,
    GROUPS_PATH,
    INIT_PATH,
    STATUS_PATH,
    InitAnswer,
    InitRequest,
    NodeStatus,
    Probe,
    SnapshotAnswer,
    SnapshotRequest,
    TransferAnswer,
    TransferRequest,
    problem,
)

BODY_BYTES_MAX: Final = 64 << 10
REQUEST_TIMEOUT_S: Final = 30.0
"""For reading the body and for the backend together. An init that waits longer for its meta group is simply asked again."""
STOP_TIMEOUT_S: Final = 2.0

_GROUP: Final = re.compile(r"^(0|[1-9][0-9]{0,5})$")
_SAFE_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_log: Final = logging.getLogger("anabranch.admin")

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminRefused(Exception):
    """A definite no, with its answer: 404 unknown group, 409 another cluster or not the leader, 503 not now."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class AdminBackend(Protocol):
    """What the node answers with. All of it runs on the loop's thread; the plain methods return at once."""

    def healthz(self) -> tuple[bool, str]:
        """Needs no peer: false only when this process should be restarted."""

    def readyz(self) -> tuple[bool, str]:
        """Joined, replayed, caught up once, and not stopping."""

    def status(self) -> NodeStatus: ...

    def metrics(self) -> Iterable[Metric]:
        """NodeCollector(...).collect()"""

    async def init(self, request: InitRequest) -> InitAnswer: ...

    async def transfer(self, group: int, to_node: int | None) -> TransferAnswer | None: ...

    async def snapshot(self, group: int) -> SnapshotAnswer | None: ...


class AdminPlane:
    def __init__(self, backend: AdminBackend, config: NodeConfig) -> None:
        self._backend = backend
        self._listen = config.admin_listen
        self._runner: web.AppRunner | None = None
        self.port = 0
        """The one that is served: with a configured port of 0, the one that was found."""

    async def start(self) -> None:
        host, port = host_and_port(self._listen)
        app = web.Application(middlewares=[_answer_errors], client_max_size=BODY_BYTES_MAX)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get(STATUS_PATH, self._status)
        app.router.add_post(INIT_PATH, self._init)
        app.router.add_post(GROUPS_PATH + "/{group}/transfer", self._transfer)
        app.router.add_post(GROUPS_PATH + "/{group}/snapshot", self._snapshot)
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=75.0, handle_signals=False, shutdown_timeout=STOP_TIMEOUT_S)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError:
            await self.stop()
            raise
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return _probe(*self._backend.healthz())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _probe(*self._backend.readyz())

    async def _metrics(self, _: web.Request) -> web.Response:
        body = exposition(self._backend.metrics())
        return web.Response(body=body, headers={**_SAFE_HEADERS, "Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _status(self, _: web.Request) -> web.Response:
        return _json(200, msgspec.json.encode(self._backend.status()))

    async def _init(self, request: web.Request) -> web.Response:
        wish = await _body(request, InitRequest)
        answer = await self._backend.init(wish)
        return _json(201 if answer.created else 200, msgspec.json.encode(answer))

    async def _transfer(self, request: web.Request) -> web.Response:
        group = _group(request)
        wish = await _body(request, TransferRequest)
        answer = await self._backend.transfer(group, wish.to_node)
        return _json(202, msgspec.json.encode(answer or TransferAnswer(group, wish.to_node)))

    async def _snapshot(self, request: web.Request) -> web.Response:
        group = _group(request)
        await _body(request, SnapshotRequest)
        answer = await self._backend.snapshot(group)
        return _json(202, msgspec.json.encode(answer or SnapshotAnswer(group)))


def _json(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, headers={**_SAFE_HEADERS, "Content-Type": "application/json"})


def _error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    answer = _json(status, problem(code, message))
    if status == 503:
        answer.headers["Retry-After"] = "1"
    answer.headers.update(headers or {})
    return answer


def _probe(ok: bool, reason: str) -> web.Response:
    return _json(200 if ok else 503, msgspec.json.encode(Probe(ok, reason)))


def _group(request: web.Request) -> int:
    raw = request.match_info["group"]
    if not _GROUP.match(raw) or int(raw) > GROUP_COUNT_MAX:
        raise AdminRefused(400, "bad_group", f"a group is a number from 0 to {GROUP_COUNT_MAX}")
    return int(raw)


async def _body(request: web.Request, kind: type[T]) -> T:
    """The body as that shape. Empty counts as {}, which is enough where every field has a default."""
    raw = await request.read()
    # Any other type a browser may send across origins without asking first.
    if raw and request.content_type != "application/json":
        raise AdminRefused(415, "bad_content_type", "the body must be application/json")
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as wrong:
        raise AdminRefused(400, "bad_field", str(wrong)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise AdminRefused(400, "bad_json", "the body is not JSON") from None


_CODES: Final = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    if "Origin" in request.headers and request.method != "GET":
        # No page of any site may change a cluster through the browser of somebody who can reach this port.
        return _error(403, "cross_origin", "the admin plane takes no requests from web pages")
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await handler(request)
    except AdminRefused as refused:
        return _error(refused.status, refused.code, refused.message)
    except web.HTTPException as known:
        allow = {"Allow": known.headers["Allow"]} if "Allow" in known.headers else None
        with contextlib.suppress(ValueError):
            return _error(known.status, _CODES.get(known.status, "refused"), known.reason, allow)
        raise
    except TimeoutError:
        return _error(503, "timeout", "no answer in time; what was asked may still happen, and may be asked again")
    except Exception:
        _log.exception("admin request failed", extra={"method": request.method, "path": request.path})
        return _error(500, "internal", "this is a defect; the node's log has the details")
