"""One node from its start to its end: identity, recovery, cluster, planes. main.py runs it; the loop (loop.py) does the work from then on.

The start, in order: lock the directory, count the boot, open the admin plane (so that probes see a start), find out who we are (identity.json, an
init, or a join through --peers), replay the log, open the peer and client planes, register with the meta group. The end, on SIGTERM: not ready,
leaders move away, live reads end, what is under way is answered, everything is flushed.
Not here: decisions about the cluster (engine/cluster_flow.py)."""

import asyncio
import contextlib
import gc
import logging
import random
import secrets
import sys
import time
from collections.abc import Coroutine, Iterable
from importlib import metadata
from typing import Any

import msgspec
from prometheus_client.core import Metric

from anabranch_node.config import NodeConfig, host_and_port
from anabranch_node.core import effects as fx
from anabranch_node.core.cluster.commands import InitCluster, RegisterNode
from anabranch_node.core.cluster.machine import MetaMachine
from anabranch_node.core.cluster.results import ClusterInitialized, NodeRefused, NodeRegistered
from anabranch_node.core.cluster.routing import Routing
from anabranch_node.core.cluster.view import ClusterView, decode_view, encode_view
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.progress import State
from anabranch_node.core.raft.raft import RaftOptions, Role
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.drivers import data_dir
from anabranch_node.drivers.admin_http import AdminPlane, AdminRefused
from anabranch_node.drivers.disk_threads import DiskThread, SnapshotPool
from anabranch_node.drivers.fs import OsFs
from anabranch_node.drivers.grpc_peer import CallRefused, Hello, PeerNet, PeerOptions
from anabranch_node.drivers.http_protocol import ClientOptions, ClientPlane
from anabranch_node.drivers.loop import NodeLoop
from anabranch_node.drivers.snapshot_disk import SnapshotDisk
from anabranch_node.drivers.telemetry import GroupFacts, NodeCollector, NodeFacts, histogram_by_bits
from anabranch_node.drivers.wal_disk import WalDisk, WalDiskOptions
from anabranch_node.engine.cluster_flow import ClusterFlow, caught_up
from anabranch_node.engine.group import Group, GroupOptions
from anabranch_node.engine.host import Host, HostOptions
from anabranch_node.engine.meta_codec import META
from anabranch_node.engine.snapshots import SnapshotOptions
from anabranch_node.service.effects import Ask, EndLive
from anabranch_node.service.live import LiveOptions
from anabranch_node.service.service import Service, ServiceOptions
from anabranch_node.wal.batch import Position
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.recovery import recover
from anabranch_node.wal.segment import encode_sync_mark
from anabranch_node.wal.wal import Wal
from anabranch_proto.admin import (
    DiskStatus,
    GroupRole,
    GroupStatus,
    InitAnswer,
    InitRequest,
    NodeState,
    NodeStatus,
    NodeSummary,
    SnapshotAnswer,
    ThisNode,
    TransferAnswer,
)
from anabranch_proto.formats import Damaged, FormatError
from anabranch_proto.ids import META_GROUP, NodeIdentity

log = logging.getLogger("anabranch.node")

PEER_VERSION = 1
FIRST_REPLICA = 1
JOIN_RETRY_S = 0.5
LOG_BEGUN = "log-begun"
CALL_TIMEOUT_S = 12.0
INIT_PEER_TIMEOUT_S = 2.0
_ASK_TOKENS = 1 << 60


class JoinRequest(msgspec.Struct, array_like=True):
    name: str
    incarnation: int
    boot: int
    client_address: str
    admin_address: str
    peer_address: str
    zone: str
    start_id: int = 0


class JoinAnswer(msgspec.Struct, array_like=True):
    node_id: int
    state: str
    view: bytes
    refusal: str = ""
    """The cluster knows this data directory and wants nobody to use it."""


class RefusedForEver(Exception):
    """By the meta group, and it will not change its mind."""


class Node:
    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self._started = time.monotonic()
        self._fs = OsFs()
        self._root = config.data_dir
        self._admin = AdminPlane(self, config)
        self._collector = NodeCollector(self._facts)
        self._identity: NodeIdentity | None = None
        self._incarnation = 0
        self._boot = 0
        self._start_id = _draw()
        self._state: NodeState = "uninitialized"
        self._view: ClusterView | None = None
        self._view_saved = -1
        self._loop: NodeLoop | None = None
        self._host: Host | None = None
        self._service: Service | None = None
        self._flow: ClusterFlow | None = None
        self._plane: ClientPlane | None = None
        self._server: asyncio.Server | None = None
        self._known_who = asyncio.Event()  # the identity is written
        self._opened = asyncio.Event()
        self._log_begun = asyncio.Event()
        self._registered = False
        self._caught_up = False
        self._stopping = False
        self._failure = ""
        self._ended = asyncio.Event()
        self._asks: dict[int, asyncio.Future[Any]] = {}
        self._ask_counter = _ASK_TOKENS
        self._tasks: set[asyncio.Task[Any]] = set()
        self._init_lock = asyncio.Lock()
        self._ticks = 0
        self._space = fx.DiskSpace(0, 0)
        self._peers = PeerNet(PeerOptions(), Hello(PEER_VERSION, "", 0, 0), self._on_frame, self._on_lost, self._on_call)

    # --- the start ---------------------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Until stop() or a failure. The exit code."""
        config = self.config
        data_dir.prepare(self._fs, self._root)
        lock = data_dir.DataDirLock(self._root)
        try:
            self._boot = data_dir.next_boot(self._fs, self._root)
            self._identity = data_dir.read_identity(self._fs, self._root)
            self._incarnation = self._identity.incarnation if self._identity else data_dir.draft_incarnation(self._fs, self._root, _draw)
            self._view = self._load_view()
            if self._view is not None and (self._identity is None or self._view.cluster_id != self._identity.cluster_id):
                self._view = None  # of a join that was never finished
            await self._admin.start()
            await self._peers.start(*host_and_port(config.peer_listen))
            if self._identity is None:
                log.info("no identity yet: waiting for `anabranch init`%s", f", or a cluster at {', '.join(config.peers)}" if config.peers else "")
                await self._find_identity()
            if not self._stopping:
                await self._open()
            await self._ended.wait()
        finally:
            await self._close()
            lock.release()
        if self._failure:
            log.error("stopped: %s", self._failure)
            return 1
        log.info("stopped cleanly")
        return 0

    async def _find_identity(self) -> None:
        """An init writes it, or a node of the cluster gives it to us."""
        self._state = "joining" if self.config.peers else "uninitialized"
        join = self._spawn(self._join_until_known())
        ended = self._spawn(self._ended.wait())
        known = self._spawn(self._known_who.wait())
        await asyncio.wait([ended, known], return_when=asyncio.FIRST_COMPLETED)
        join.cancel()

    async def _join_until_known(self) -> None:
        while not self._known_who.is_set():
            for address in self.config.peers:
                if address == self.config.peer_advertise:
                    continue
                try:
                    answer = await self._join_through(address)
                except Exception as error:
                    log.debug("no cluster at %s yet: %s", address, error)
                    continue
                async with self._init_lock:
                    if self._identity is None:
                        assert self._view is not None
                        self._write_identity(NodeIdentity(self._view.cluster_id, answer.node_id, self._incarnation))
                return
            await asyncio.sleep(JOIN_RETRY_S)

    async def _join_through(self, address: str) -> JoinAnswer:
        raw = await self._peers.call(address, "join", msgspec.msgpack.encode(self._join_request()), CALL_TIMEOUT_S)
        answer = msgspec.msgpack.decode(raw, type=JoinAnswer)
        if answer.refusal:
            raise RefusedForEver(answer.refusal)
        view = decode_view(answer.view)
        if self._identity is not None and self._identity.cluster_id != view.cluster_id:
            raise RuntimeError(f"{address} belongs to cluster {view.cluster_id}, this node to {self._identity.cluster_id}")
        if self._view is None or self._identity is None or view.version > self._view.version:
            self._take_view(view)
        self._state = "replacing" if answer.state == "replacing" else "active"
        return answer

    def _join_request(self) -> JoinRequest:
        config = self.config
        return JoinRequest(
            config.name,
            self._incarnation,
            self._boot,
            config.client_advertise,
            config.admin_advertise,
            config.peer_advertise,
            config.zone,
            self._start_id,
        )

    def _write_identity(self, identity: NodeIdentity) -> None:
        data_dir.write_identity(self._fs, self._root, identity)
        self._identity = identity
        self._known_who.set()
        log.info("this is %s", identity)

    async def _open(self) -> None:
        """Replay what the disk has, then serve."""
        identity, config = self._identity, self.config
        assert identity is not None
        self._peers.set_hello(Hello(PEER_VERSION, identity.cluster_id, identity.node_id, identity.incarnation))
        wal_disk = WalDisk(
            self._fs,
            self._root,
            WalDiskOptions(segment_bytes=config.segment_bytes),
            lambda segment, offset: encode_sync_mark(identity, Position(segment, offset)),
        )
        wal_options = WalOptions(segment_bytes=config.segment_bytes, segments_live_max=config.segments_live_max)
        files = await asyncio.to_thread(wal_disk.open)
        if not files.segments and data_dir.read_cache(self._fs, self._root, LOG_BEGUN) is not None:
            raise Damaged(f"{self._root}/wal", "the log is gone; this node cannot come back as what it was: empty the whole data directory")
        recovered = await asyncio.to_thread(recover, identity, files.segments, files.sync_mark or None, wal_options)
        for note in recovered.notes:
            log.warning("recovery: %s", note)
        if recovered.torn is not None:
            log.warning("recovery cut a torn tail: %s", recovered.torn)
        snapshot_disk = SnapshotDisk(self._fs, self._root, identity.cluster_id)
        snapshot_files = await asyncio.to_thread(snapshot_disk.scan)
        snapshots: dict[tuple[int, int], fx.SnapshotLoaded | fx.SnapshotFailed] = {}
        for found in recovered.groups.values():
            if found.snapshot.index and not found.fenced:
                key = fx.SnapshotKey(found.group, found.replica, found.snapshot.index, found.snapshot.term)
                loaded = (await asyncio.to_thread(snapshot_disk.perform, [fx.SnapshotLoad(key)]))[0]
                assert isinstance(loaded, fx.SnapshotLoaded | fx.SnapshotFailed), loaded
                snapshots[found.group, found.replica] = loaded
        wal = Wal(identity, wal_options, recovered)
        self._host = host = Host(identity, self._host_options(), StreamMachine, random.Random(), self._boot, wal, MetaMachine)
        self._service = service = Service(host, self._service_options(), META)
        self._loop = loop = NodeLoop(service, self._peers, config.tick_ms, self._fail)
        loop.on_told, loop.on_tick, loop.on_space = self._on_told, self._on_tick, self._on_space
        loop.disk = DiskThread(wal_disk, loop.report)
        loop.snapshots = SnapshotPool(snapshot_disk, loop.report)
        self._flow = ClusterFlow(identity.node_id)
        loop.perform(host.start(recovered.groups.values(), snapshots, snapshot_files))
        loop.plane = self._plane = ClientPlane(client_options(config), loop.submit, loop.cancel, asyncio.get_running_loop(), taken=loop.taken)
        loop.start()
        if self._view is not None:
            self._take_view(self._view)
        host_name, port = host_and_port(config.client_listen)
        self._server = await asyncio.get_running_loop().create_server(self._plane, host_name, port, backlog=4096)
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 100)
        sys.setswitchinterval(0.0005)  # the disk thread waits at most this long for the interpreter
        self._opened.set()
        self._spawn(self._keep_registered())
        log.info("serving clients on %s, admin on %s, peers on %s", config.client_listen, config.admin_listen, config.peer_listen)

    def _host_options(self) -> HostOptions:
        config = self.config
        return HostOptions(
            # 64 groups keep at most 64 MiB of their logs in memory; a follower further behind is served from the disk.
            raft=RaftOptions(election_ticks=config.election_ticks, heartbeat_ticks=config.heartbeat_ticks, log_memory_bytes_max=1 << 20),
            group=GroupOptions(
                command_bytes_max=min(config.body_bytes_max + (6 << 20), config.segment_bytes // 2 - 4096),
                snapshots=SnapshotOptions(
                    entries_max=config.snapshot_entries_max, bytes_max=config.snapshot_bytes_max, tail_entries=config.snapshot_tail_entries
                ),
            ),
            disk_free_min_bytes=config.disk_free_min_bytes,
            hot_bytes_max=config.hot_bytes_max,
        )

    def _service_options(self) -> ServiceOptions:
        config = self.config
        live = LiveOptions(config.long_poll_timeout_ms, config.sse_keep_alive_ms, config.sse_rotate_ms, config.waiters_max)
        return ServiceOptions(response_bytes_max=config.response_bytes_max, unsent_bytes_max=config.unsent_bytes_max, live=live)

    # --- the cluster -------------------------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        host, loop, flow = self._host, self._loop, self._flow
        assert host is not None
        assert loop is not None
        assert flow is not None
        self._ticks += 1
        meta = host.groups.get(META_GROUP)
        if meta is not None and not meta.fenced and isinstance(meta.machine, MetaMachine):
            view = meta.machine.view()
            if view is not None and (self._view is None or view.version > self._view.version):
                self._take_view(view)
        if not self._log_begun.is_set():
            self._note_log_begun()
            return
        # Not the clock of the stamps: one that is set back must not stop the flow.
        actions = flow.step(time.monotonic_ns() // 1_000_000, self._view, host)
        for event in actions.host_events:
            loop.push(event)
        for command in actions.proposals:
            loop.push(Ask(self._next_token(), META_GROUP, True, command))
        if not self._caught_up and self._registered and self._view is not None:
            self._caught_up = caught_up(self._view, host)

    def _note_log_begun(self) -> None:
        """Before the first replica: from here on a directory without a log has lost one, and must not come back under its old replica ids."""
        if any(name.endswith(".seg") for name in self._fs.listdir(f"{self._root}/wal")):
            if data_dir.read_cache(self._fs, self._root, LOG_BEGUN) is None:
                data_dir.write_cache(self._fs, self._root, LOG_BEGUN, b"a log was begun here")
            self._log_begun.set()

    def _take_view(self, view: ClusterView) -> None:
        self._view = view
        if self._service is not None:
            assert self._host is not None
            me = self._host.me.node_id
            self._service.routing = Routing(view)
            self._peers.set_peers({node.node_id: (node.incarnation, node.peer_address) for node in view.nodes if node.node_id != me})
        if view.version != self._view_saved:
            self._view_saved = view.version
            data_dir.write_cache(self._fs, self._root, "view", encode_view(view))

    def _load_view(self) -> ClusterView | None:
        """What we knew last: enough to find the others. Never more than a hint."""
        raw = data_dir.read_cache(self._fs, self._root, "view")
        with contextlib.suppress(FormatError, msgspec.MsgspecError, ValueError):
            return None if raw is None else decode_view(raw)
        return None

    async def _keep_registered(self) -> None:
        """Tell the meta group where we are, until it knows; then keep our view fresh if we hold no replica of that group."""
        while not self._registered and not self._stopping:
            try:
                await self._register_once()
                self._registered = True
            except RefusedForEver as refusal:
                # Its replicas may have forgotten what they voted for and acknowledged: not one more of either.
                self._fail(f"the cluster refuses this node: {refusal}")
                return
            except Exception as error:
                log.debug("not registered yet: %s", error)
                await asyncio.sleep(JOIN_RETRY_S)
        while not self._stopping:
            await asyncio.sleep(1.0)
            assert self._host is not None
            if META_GROUP not in self._host.groups and self._view is not None:
                await self._refresh_view()

    async def _register_once(self) -> None:
        assert self._host is not None
        if META_GROUP in self._host.groups:
            result = await self._ask(META_GROUP, True, self._registration(self._join_request()))
            if isinstance(result, NodeRefused):
                raise RefusedForEver(result.reason)
            if not isinstance(result, NodeRegistered):
                raise RuntimeError(str(result))
            if result.node_id != self._host.me.node_id:
                self._fail(f"the cluster knows this incarnation as node {result.node_id}, this directory says node {self._host.me.node_id}")
            self._state = "replacing" if result.state == "replacing" else "active"
            return
        for address in self._peer_addresses():
            try:
                await self._join_through(address)
                return
            except RefusedForEver:
                raise
            except Exception as error:
                log.debug("registration through %s: %s", address, error)
        raise RuntimeError("no peer took the registration")

    def _peer_addresses(self) -> list[str]:
        known = [node.peer_address for node in self._view.nodes] if self._view is not None else []
        return [address for address in dict.fromkeys([*known, *self.config.peers]) if address != self.config.peer_advertise]

    async def _refresh_view(self) -> None:
        for address in self._peer_addresses():
            with contextlib.suppress(Exception):
                view = decode_view(await self._peers.call(address, "view", b"", CALL_TIMEOUT_S))
                if self._view is None or view.version > self._view.version:
                    self._take_view(view)
                return

    def _registration(self, join: JoinRequest) -> RegisterNode:
        return RegisterNode(
            name=join.name,
            incarnation=join.incarnation,
            boot=join.boot,
            client_address=join.client_address,
            admin_address=join.admin_address,
            peer_address=join.peer_address,
            zone=join.zone,
            now_ms=0,
            start_id=join.start_id,
        )

    async def _on_call(self, method: str, payload: bytes) -> bytes:
        """A peer asks something that is not a frame."""
        if self._service is None or self._view is None:
            raise CallRefused("this node is in no cluster yet")
        if method == "view":
            return encode_view(self._view)
        if method != "join":
            raise RuntimeError(f"unknown call {method}")
        join = msgspec.msgpack.decode(payload, type=JoinRequest)
        result = await self._ask(META_GROUP, True, self._registration(join))
        if isinstance(result, NodeRefused):
            return msgspec.msgpack.encode(JoinAnswer(0, "", b"", result.reason))
        if not isinstance(result, NodeRegistered):
            raise RuntimeError(str(result))
        return msgspec.msgpack.encode(JoinAnswer(result.node_id, result.state, encode_view(self._view)))

    async def _ask(self, group: int, write: bool, payload: Any) -> Any:
        assert self._loop is not None
        token = self._next_token()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asks[token] = future
        self._loop.push(Ask(token, group, write, payload))
        try:
            return await asyncio.wait_for(future, 15.0)
        finally:
            self._asks.pop(token, None)

    def _next_token(self) -> int:
        self._ask_counter += 1
        return self._ask_counter

    def _on_told(self, token: int, result: Any) -> None:
        future = self._asks.get(token)
        if future is not None and not future.done():
            future.set_result(result)

    def _on_space(self, space: fx.DiskSpace) -> None:
        self._space = space

    def _on_frame(self, node: int, data: bytes) -> None:
        if self._loop is not None:
            self._loop.on_frame(node, data)

    def _on_lost(self, node: int) -> None:
        if self._loop is not None:
            self._loop.on_lost(node)

    # --- the admin plane ---------------------------------------------------------------------------------------------------------

    def healthz(self) -> tuple[bool, str]:
        return (not self._failure, self._failure)

    def readyz(self) -> tuple[bool, str]:
        if self._stopping:
            return False, "stopping"
        if not self._opened.is_set():
            return False, "uninitialized: waiting for init or for a cluster to join" if self._identity is None else "replaying the log"
        if self._state == "replacing":
            return False, "another node holds this name; replace it first"
        if not self._registered:
            return False, "not registered with the meta group yet"
        if not self._caught_up:
            return False, "its replicas have not caught up yet"
        others = [node.node_id for node in self._view.nodes if node.state == "active"] if self._view is not None else []
        if self._identity is not None and self._identity.node_id in others:
            others.remove(self._identity.node_id)
        if others and not any(self._peers.is_connected(other) for other in others):
            return False, "cut off from all other nodes"
        return True, ""

    async def init(self, request: InitRequest) -> InitAnswer:
        async with self._init_lock:
            if self._identity is not None and self._identity.cluster_id != request.cluster_id:
                raise AdminRefused(409, "other_cluster", f"this node belongs to cluster {self._identity.cluster_id}")
            if self._identity is None:
                await self._refuse_second_init(request.cluster_id)
                self._write_identity(NodeIdentity(request.cluster_id, 1, self._incarnation))
        await asyncio.wait_for(self._opened.wait(), 25.0)
        await asyncio.wait_for(self._log_begun.wait(), 25.0)
        assert self._host is not None
        assert self._loop is not None
        if META_GROUP not in self._host.groups and self._view is None:
            if self._host.me.node_id != 1:
                raise AdminRefused(409, "joined", "this node joined a cluster that another node initialises")
            self._loop.push(fx.ReplicaCreate(META_GROUP, FIRST_REPLICA, Configuration((FIRST_REPLICA,))))
        command = InitCluster(
            cluster_id=request.cluster_id,
            group_count=request.group_count,
            replication_factor=request.replication_factor,
            first=self._registration(self._join_request()),
            now_ms=0,
        )
        result = await self._ask(META_GROUP, True, command)
        if not isinstance(result, ClusterInitialized):
            definite = getattr(result, "definite", True)
            raise AdminRefused(409 if definite else 503, "init_refused" if definite else "outcome_unknown", str(result))
        return InitAnswer(request.cluster_id, result.group_count, result.replication_factor, result.created)

    async def _refuse_second_init(self, cluster_id: str) -> None:
        """A peer that is in a cluster already was the one that init was for: we join it. Asked of those who answer; that the others are not
        initialised, too, is the promise of whoever calls init on one node only."""
        for address in self._peer_addresses():
            try:
                view = decode_view(await self._peers.call(address, "view", b"", INIT_PEER_TIMEOUT_S))
            except Exception as error:
                log.debug("init asks %s: %s", address, error)
                continue
            same = "it" if view.cluster_id == cluster_id else f"cluster {view.cluster_id}"
            raise AdminRefused(409, "initialized_elsewhere", f"the node at {address} is in {same} already; this node joins {same} by itself")

    async def transfer(self, group: int, to_node: int | None) -> TransferAnswer | None:
        held = self._group(group)
        if held.raft.role is not Role.LEADER:
            raise AdminRefused(409, "not_leader", f"this node does not lead group {group}")
        target = self._successor(held, to_node)
        if target is None:
            raise AdminRefused(
                409, "no_target", "no other voter of the group is caught up" if to_node is None else f"node {to_node} has no voter of it"
            )
        assert self._loop is not None
        self._loop.push(fx.TransferLeadership(self._next_token(), group, target))
        return TransferAnswer(group, to_node)

    def _group(self, group: int) -> Group:
        held = None if self._host is None else self._host.groups.get(group)
        if held is None:
            raise AdminRefused(404, "unknown_group", f"this node has no replica of group {group}")
        return held

    def _successor(self, group: Group, to_node: int | None) -> int | None:
        assert self._host is not None
        raft = group.raft
        caught_up = []
        for replica, progress in raft.progress.items():
            place = self._host.place_of(replica)
            if replica in raft.config.voters and place is not None and (place[0] == to_node or to_node is None):
                if to_node is not None or (progress.state is State.REPLICATE and progress.active):
                    caught_up.append((progress.match, replica))
        return max(caught_up)[1] if caught_up else None

    async def snapshot(self, group: int) -> SnapshotAnswer | None:
        held = self._group(group)
        assert self._loop is not None
        self._loop.push(fx.TakeSnapshot(group))
        return SnapshotAnswer(group, held.machine.applied_index)

    def metrics(self) -> Iterable[Metric]:
        return self._collector.collect()

    def status(self) -> NodeStatus:
        config, host, view = self.config, self._host, self._view
        ready, reason = self.readyz()
        node = ThisNode(
            name=config.name,
            node_id=self._identity.node_id if self._identity else 0,
            incarnation=f"{self._incarnation:x}",
            boot=self._boot,
            version=version(),
            state=self._state,
            ready=ready,
            ready_reason=reason,
            uptime_ms=int((time.monotonic() - self._started) * 1000),
            client_address=config.client_advertise,
            admin_address=config.admin_advertise,
            peer_address=config.peer_advertise,
        )
        me = node.node_id
        return NodeStatus(
            node=node,
            cluster_id=self._identity.cluster_id if self._identity else "",
            group_count=view.group_count if view else 0,
            replication_factor=view.replication_factor if view else 0,
            view_version=view.version if view else 0,
            nodes=[
                NodeSummary(
                    node_id=other.node_id,
                    name=other.name,
                    incarnation=f"{other.incarnation:x}",
                    client_address=other.client_address,
                    admin_address=other.admin_address,
                    peer_address=other.peer_address,
                    zone=other.zone,
                    state=other.state,
                    reachable=other.node_id == me or self._peers.is_connected(other.node_id),
                )
                for other in (view.nodes if view else [])
            ],
            groups=[self._group_status(group) for group in host.groups.values()] if host else [],
            disk=DiskStatus(free_bytes=self._space.free_bytes, spare_segments=self._space.spare_segments),
            counters=self._counters(),
        )

    def _group_status(self, group: Group) -> GroupStatus:
        assert self._host is not None
        raft = group.raft
        place = self._host.place_of(raft.leader) if raft.leader else None
        leader_node = self._host.me.node_id if raft.leader == raft.id else place[0] if place else 0
        return GroupStatus(
            group=group.id,
            replica=group.replica,
            role=_role(group),
            leader_node=leader_node,
            term=raft.term,
            commit=raft.log.committed,
            applied=raft.applied,
            streams=getattr(group.machine, "stream_count", 0),
            hot_bytes=group.machine.hot_bytes,
            fenced=group.fenced,
        )

    def _counters(self) -> dict[str, int]:
        service, loop = self._service, self._loop
        if service is None or loop is None:
            return {}
        return {"appends": service.appends, "reads": service.reads, "turns": loop.turns, "stalls": loop.stalls, "pending": service.pending}

    def _facts(self) -> NodeFacts:
        ready = self.readyz()[0]
        facts = NodeFacts(state=self._state, ready=ready, version=version(), uptime_ms=int((time.monotonic() - self._started) * 1000))
        host, service, loop, plane = self._host, self._service, self._loop, self._plane
        if host is None or service is None or loop is None or plane is None:
            return facts
        facts.groups = [
            GroupFacts(
                group.id,
                group.raft.role is Role.LEADER and not group.fenced,
                lag_entries(group),
                group.machine.hot_bytes,
                bool(group.fenced),
            )
            for group in host.groups.values()
        ]
        facts.append_seconds, facts.read_seconds = plane.append_us, plane.read_us
        facts.commit_seconds = histogram_by_bits(host.counts.commits, host.counts.commit_ms)
        facts.turn_seconds, facts.loop_stall_seconds = loop.turn_us, loop.late_us
        if loop.disk is not None:
            facts.fsync_seconds = loop.disk.sync_us
        facts.live_readers, facts.hot_bytes = service.live_count, host.hot_bytes
        facts.disk_free_bytes, facts.wal_spare_segments = self._space.free_bytes, self._space.spare_segments
        facts.wal_live_segments = host.wal_segments
        facts.appends, facts.append_bytes = service.appends, service.append_bytes
        facts.reads, facts.read_bytes = service.reads, service.read_bytes + service.live.event_bytes
        facts.live_events, facts.forwarded = service.live.events, service.forwarded
        facts.elections, facts.snapshots = host.elections, host.counts.snapshots
        facts.peers_reachable, facts.peer_frames_received = self._peers.nodes_connected, loop.frames_received
        facts.peer_frames_sent, facts.peer_frames_dropped = self._peers.frames_sent, self._peers.frames_dropped
        facts.connections = plane.counters.connections_open
        facts.inflight_bytes, facts.unsent_bytes = plane.inflight_bytes, plane.unsent_bytes
        facts.slow_readers_dropped = plane.counters.slow_readers_dropped
        facts.rejected = dict(plane.counters.rejected)
        facts.responses = {status.decode(): count for status, count in plane.counters.responses.items()}
        return facts

    # --- the end -----------------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """SIGTERM or Ctrl-C. A second one ends at once."""
        if self._stopping:
            self._ended.set()
            return
        self._stopping = True
        self._spawn(self._leave())

    async def _leave(self) -> None:
        host, loop, plane = self._host, self._loop, self._plane
        try:
            if host is not None and loop is not None and plane is not None:
                deadline = time.monotonic() + self.config.drain_ms / 1000
                while time.monotonic() < deadline:
                    # To the end, though nothing may be left: load balancers need this time to notice that we are not ready.
                    self._hand_over(host, loop)
                    await asyncio.sleep(self.config.tick_ms / 1000)
                loop.push(EndLive())
                if self._server is not None:
                    self._server.close()
                await plane.drain(min(2.0, self.config.stop_timeout_ms / 1000))
        finally:
            self._ended.set()

    def _hand_over(self, host: Host, loop: NodeLoop) -> None:
        """Ask a successor of each group that we still lead."""
        for number in host.leads():
            target = self._successor(host.groups[number], None)
            if target is not None and not host.groups[number].raft.transfer_to:
                loop.push(fx.TransferLeadership(self._next_token(), number, target))

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._ended.set()

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._server is not None:
            self._server.close()
        if self._loop is not None:
            self._loop.stop()
            if self._loop.disk is not None and not self._failure:
                await asyncio.to_thread(self._loop.disk.close)
            if self._loop.snapshots is not None and not self._failure:
                await asyncio.to_thread(self._loop.snapshots.close)
        await self._peers.stop()
        await self._admin.stop()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def client_options(config: NodeConfig) -> ClientOptions:
    """Every setting of the section "Clients" that is the client plane's; the others are the service's."""
    return ClientOptions(
        connections_max=config.connections_max,
        head_bytes_max=config.header_bytes_max,
        headers_max=config.header_count_max,
        url_bytes_max=config.url_bytes_max,
        body_bytes_max=config.body_bytes_max,
        inflight_bytes_max=config.inflight_bytes_max,
        unsent_bytes_max=config.unsent_bytes_max,
        write_buffer_bytes_max=config.live_buffer_bytes_max,
        head_timeout_s=config.header_timeout_ms / 1000,
        body_timeout_s=config.body_timeout_ms / 1000,
        idle_timeout_s=config.idle_timeout_ms / 1000,
        write_stall_timeout_s=config.write_timeout_ms / 1000,
    )


def lag_entries(group: Group) -> int:
    """What is committed is applied in the same turn, so that only the leader knows of a lag: that of its followers."""
    raft = group.raft
    return max((raft.log.last_index - progress.match for progress in raft.progress.values()), default=0)


def _role(group: Group) -> GroupRole:
    if group.fenced:
        return "fenced"
    raft = group.raft
    if raft.role is Role.LEADER:
        return "leader"
    if raft.role is not Role.FOLLOWER:
        return "candidate"
    return "follower" if raft.config.is_voter(raft.id) else "learner"


def _draw() -> int:
    return secrets.randbits(63)


def version() -> str:
    try:
        return metadata.version("anabranch")
    except metadata.PackageNotFoundError:
        return "0.1.0.dev0"
