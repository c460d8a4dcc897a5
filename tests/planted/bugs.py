"""Known ways to get it wrong, each a change of a line or two to production code that only a planted run ever sees (loader.py). The suite must kill
all.

`edits` are (module, what stands there exactly once, what stands there instead). tests/unit/test_planted.py holds that every one still fits the
source. `short`: killed within a few seeds, so that `make test` can afford it. Add one here when a new rule is written: a rule without a bug that
breaks it is hope."""

from typing import NamedTuple

RAFT = "anabranch_node.core.raft."
SERVICE = "anabranch_node.service."
Edit = tuple[str, str, str]


class Bug(NamedTuple):
    name: str
    why: str
    edits: tuple[Edit, ...]
    short: bool = False
    http: bool = False
    """In the service: only runs over HTTP can show it."""


BUGS: tuple[Bug, ...] = (
    Bug(
        "follower acknowledges before fsync",
        "a power loss takes what the leader counted",
        (
            (
                RAFT + "follower",
                "raft.send_after_sync.append(AppendAnswer(m.src, raft.id, raft.term, True, max(index, log.committed)))",
                "raft.send_now.append(AppendAnswer(m.src, raft.id, raft.term, True, max(index, log.committed)))",
            ),
        ),
        short=True,
    ),
    Bug(
        "leader counts its own unsynced log",
        "one voter commits before its disk has anything",
        ((RAFT + "leader", "return [raft.log.stable if voter", "return [raft.log.last_index if voter"),),
        short=True,
    ),
    Bug(
        "vote answered before fsync",
        "after a power loss the same term gets a second vote",
        ((RAFT + "raft", "self.send_after_sync.append(VoteAnswer(", "self.send_now.append(VoteAnswer("),),
    ),
    Bug(
        "vote not written at all",
        "a restart forgets it",
        ((RAFT + "raft", "self.vote = m.src\n                self.persist_hard_state()", "self.vote = m.src"),),
    ),
    Bug(
        "two votes in one term",
        "two leaders in one term",
        ((RAFT + "raft", "free = self.vote in (0, m.src) and self.leader == 0", "free = True"),),
        short=True,
    ),
    Bug(
        "old entries committed by counting",
        "Figure 8 of the Raft paper: a majority has it, and a later leader removes it",
        ((RAFT + "leader", "if index <= log.committed or log.term_at(index) != raft.term:", "if index <= log.committed:"),),
    ),
    Bug(
        # In an append the same mistake needs a leader that probes below the point where the logs part; our conflict hints hit that point, so only
        # tests/unit/test_raft_follower.py shows it. In a heartbeat it is found by chance alone.
        "commit past the last verified entry",
        "a follower's own stale tail is taken for the leader's",
        (
            (
                RAFT + "leader",
                "Heartbeat(replica, raft.id, raft.term, min(progress.match, raft.log.committed), raft.reads.round)",
                "Heartbeat(replica, raft.id, raft.term, raft.log.committed, raft.reads.round)",
            ),
            (
                RAFT + "follower",
                "raft.log.commit_to(m.commit)\n        raft.answer(HeartbeatAnswer",
                "raft.log.commit_to(min(m.commit, raft.log.last_index))\n        raft.answer(HeartbeatAnswer",
            ),
        ),
    ),
    Bug(
        "conflicting entries kept",
        "two logs with different entries at one index",
        ((RAFT + "follower", "raft.truncate_log(index)\n        raft.append_entry(entry)", "continue\n        raft.append_entry(entry)"),),
        short=True,
    ),
    Bug(
        "a shorter append truncates",
        "a late packet removes what was acknowledged after it",
        (
            (
                RAFT + "follower",
                "    # Not our last index: what we hold",
                "    if log.last_index > index: raft.truncate_log(index + 1)\n    # Not our last index: what we hold",
            ),
        ),
    ),
    Bug(
        "up-to-date check forgotten",
        "a candidate without committed entries wins",
        ((RAFT + "log", "return (last_term, last_index) >= (self.last_term, self.last_index)", "return True"),),
    ),
    Bug(
        "ReadIndex without a quorum",
        "a deposed leader serves old data as new",
        ((RAFT + "leader", "else raft.progress[voter].read_round for voter in voters]", "else raft.reads.round for voter in voters]"),),
    ),
    Bug(
        "ReadIndex before the first commit of the term",
        "a new leader does not know yet what is committed",
        ((RAFT + "leader", "if reads.waiting and raft.log.committed >= raft.term_start_index:", "if reads.waiting:"),),
    ),
    Bug(
        "learner counted",
        "what only a learner has is called committed",
        (
            (
                RAFT + "leader",
                "else raft.progress[voter].match for voter in voters]",
                "else max(raft.progress[one].match for one in (voter, *raft.config.learners)) for voter in voters]",
            ),
        ),
    ),
    Bug(
        "voters changed without a joint step",
        "two majorities that do not meet",
        (
            (
                RAFT + "membership",
                "return target._replace(old_voters=current.voters) if target.voters != current.voters else target",
                "return target",
            ),
        ),
    ),
    Bug(
        "waiters answered by index alone",
        "somebody else's entry is reported as ours",
        (
            ("anabranch_node.engine.waiters", "if waited_term != term:", "if False:"),
            (
                "anabranch_node.engine.group",
                "if self.waiters and (raft.role is not Role.LEADER or raft.term != self.waiters.term):",
                "if False:",
            ),
        ),
    ),
    Bug(
        "no deduplication of producers",
        "a retry appends twice",
        (("anabranch_node.core.stream.producers", "if claim.seq == known.last_seq:", "if claim.seq == known.last_seq and tail < 0:"),),
        short=True,
    ),
    Bug(
        "producers not in the snapshot",
        "a retry after a restart appends twice, or is called a gap",
        (
            (
                "anabranch_node.core.stream.snapshot",
                "            producers = stream.producers or {}\n            place",
                "            producers = {}\n            place",
            ),
        ),
    ),
    Bug(
        "log cut before the snapshot is durable",
        "a crash in between leaves neither",
        (
            (
                "anabranch_node.engine.snapshots",
                "        self._next_slice(key, out)\n\n    def _next_slice",
                "        self._next_slice(key, out)\n        raft.mark_snapshot(index, self._options.tail_entries)\n\n    def _next_slice",
            ),
        ),
    ),
    Bug(
        "old snapshot deleted before the new mark is synced",
        "after a crash the mark names a file that is gone",
        (
            (
                "anabranch_node.engine.host",
                "waits.effects.append(SnapshotsDelete(group.id, raft.id, group.snapshots.obsolete_after_sync))",
                "self._out.append(SnapshotsDelete(group.id, raft.id, group.snapshots.obsolete_after_sync))",
            ),
        ),
    ),
    Bug(
        "snapshots of a destroyed replica deleted too early",
        "found by seed 162: the replica comes back after a crash, without the state its log stands on",
        (
            (
                "anabranch_node.engine.host",
                "self._after_sync.append(SnapshotsDelete(group.id, group.replica, None))",
                "self._out.append(SnapshotsDelete(group.id, group.replica, None))",
            ),
        ),
    ),
    Bug(
        "snapshot installed over a longer log without truncating it",
        "a restart glues the old tail to the snapshot",
        ((RAFT + "raft", "self.persist.append(LogTruncated(index + 1))", "pass"),),
    ),
    Bug(
        "hard state lost with a deleted segment",
        "the checkpoint does not carry term and vote",
        (
            (
                "anabranch_node.wal.wal",
                "states = [self.replicas[key].state() for key in sorted(self.replicas)]",
                (
                    "states = [self.replicas[key].state() for key in sorted(self.replicas)]\n"
                    "        states = [__import__('msgspec').structs.replace(one, hard=one.hard and one.hard._replace(vote=0)) for one in states]"
                ),
            ),
        ),
    ),
    Bug(
        "rot below the sync mark cut as a torn tail",
        "acknowledged entries vanish silently",
        (("anabranch_node.wal.recovery", "if known <= Position(segment.header.segment, offset):", "if True:"),),
    ),
    Bug(
        "sync mark ahead of the disk",
        "a torn tail is taken for damage, and a healthy replica is fenced",
        (
            (
                "anabranch_node.wal.wal",
                "encode_header(self._batch, segment, start, self._synced, body, runs, self._seed)",
                "encode_header(self._batch, segment, start, Position(segment, start), body, runs, self._seed)",
            ),
        ),
    ),
    Bug(
        "checksum of records not checked",
        "rotten bytes are replayed as if they were ours",
        (("anabranch_node.wal.record", "if crc32c(data[start + CRC.size : end], seed) != crc:", "if False:"),),
    ),
    Bug(
        "segment deleted before its copies are synced",
        "a power loss takes the copy, the deletion took the original",
        (
            (
                "anabranch_node.wal.wal",
                "and self._released_by.get(segments[0], 0) <= self.synced_ticket:",
                "and True:",
            ),
        ),
    ),
    Bug(
        "directory not fsynced after a roll",
        "a power loss takes the name of the segment, and everything in it",
        (
            (
                "anabranch_node.drivers.wal_disk",
                "        self._fs.rename(source, path)\n        self._fs.fsync_dir(self._folder)\n        self._unlinked = False",
                "        self._fs.rename(source, path)\n        self._unlinked = False",
            ),
        ),
    ),
    Bug(
        "snapshot named before its bytes are synced",
        "after a power loss the log stands on a file of holes",
        (
            (
                "anabranch_node.drivers.snapshot_disk",
                "        partial.file.fsync()\n        self._fs.rename(partial.path",
                "        self._fs.rename(partial.path",
            ),
        ),
    ),
    Bug(
        "directory not fsynced after a snapshot",
        "a power loss takes the name of the file that the log was cut for",
        (
            (
                "anabranch_node.drivers.snapshot_disk",
                '        self._fs.fsync_dir(f"{self._folder}/{key.group}")\n        if key.group not in',
                "        if key.group not in",
            ),
        ),
    ),
    Bug(
        "fsync error ignored",
        "the kernel dropped the bytes and says so once only",
        (("anabranch_node.drivers.wal_disk", 'return self._fail("fdatasync", error)', "pass"),),
    ),
    Bug(
        "page cache trusted at start",
        "what a killed process left unsynced is voted on, then lost with the power",
        (
            (
                "anabranch_node.drivers.wal_disk",
                "            file.fdatasync()\n            if newest:",
                "            if newest:",
            ),
        ),
    ),
    Bug(
        "an emptied disk rejoins under its old identity",
        "amnesia: it votes and acknowledges again for what it has forgotten",
        (
            ("tests.sim.sim_node", "        self.world.incarnations += 1\n", "        self.world.incarnations = self.number\n"),
            (
                "anabranch_node.engine.host",
                "            group = self.groups.get(group_id)\n            if group is None or m.to != group.replica:",
                (
                    "            if group_id not in self.groups: self._on_create(fx.ReplicaCreate(group_id, m.to, membership.Configuration()))\n"
                    "            group = self.groups.get(group_id)\n            if group is None or m.to != group.replica:"
                ),
            ),
            (
                "tests.sim.operator",
                "        return held is None or held.replica != replica or bool(held.fenced)",
                "        return bool(held and held.fenced)",
            ),
        ),
    ),
    Bug(
        "forwarded write retried after a broken connection",
        "it may be in the log there, and is proposed a second time",
        (
            (
                "anabranch_node.engine.forward",
                'return OutcomeUnknown(f"the connection to node {asked.node} broke before it answered") if asked.write else ReadUnavailable()',
                "return ReadUnavailable()",
            ),
        ),
        short=True,
        http=True,
    ),
    Bug(
        "write that was sent is refused when its time runs out",
        "a definite answer for what is in a log somewhere",
        ((SERVICE + "service", "        elif life.sent:\n", "        elif life.sent and life.served:\n"),),
        short=True,
        http=True,
    ),
    Bug(
        "serving node refuses a write that it proposed",
        "found by HTTP seed 81: the asking node believes it, and has it proposed again",
        ((SERVICE + "service", ", sent=letter.write)", ")"),),
        http=True,
    ),
    Bug(
        "producer forgotten on the way to the leader",
        "a retry through another node appends twice",
        (
            (
                "anabranch_node.engine.forward",
                "return codec.command(letter.body) if letter.write else codec.query(letter.body)",
                (
                    "command = codec.command(letter.body) if letter.write else codec.query(letter.body)\n"
                    "        return msgspec.structs.replace(command, producer=None) if isinstance(command, commands.Append) else command"
                ),
            ),
        ),
        http=True,
    ),
    Bug(
        "answer to an earlier boot believed",
        "found by HTTP seed 76: somebody else's answer",
        (("anabranch_node.engine.forward", "self._counter = host.boot << BOOT_SHIFT", "self._counter = 0"),),
        http=True,
    ),
    Bug(
        "follower serves reads without ReadIndex",
        "what was acknowledged before the read is not in it",
        (
            (
                "anabranch_node.engine.group",
                "        self.raft.read_index(token)",
                (
                    "        if self.raft.role is Role.LEADER:\n            self.raft.read_index(token)\n"
                    "        else:\n            self.raft.read_states.append((token, 0))"
                ),
            ),
        ),
        http=True,
    ),
    Bug(
        "long-poll says nothing new without a second look",
        "its replica may have been left behind while it waited",
        (
            (
                SERVICE + "service",
                "            life.stage = Stage.LAST_LOOK\n            life.last_look",
                "            life.stage = Stage.LAST_LOOK\n            return self._finish(life, life.slice)\n            life.last_look",
            ),
        ),
        http=True,
    ),
    Bug(
        "event sent twice to one of a crowd",
        "the crowd is served in slices, and they overlap",
        ((SERVICE + "live", "self._pieces.appendleft(piece._replace(tokens=tokens[room:]))", "self._pieces.appendleft(piece)"),),
        http=True,
    ),
    Bug(
        "live reader not looked after when it registers",
        "what came while it was being answered never wakes it",
        ((SERVICE + "live", "        self._again.setdefault(life.group, set()).add(stream)\n", ""),),
        http=True,
    ),
    Bug(
        "event stream kept after its end",
        "found by HTTP seed 1: it leaks, and is served again",
        ((SERVICE + "live", "        self.remove(life)\n        self._forget(life)\n", "        self.remove(life)\n"),),
        http=True,
    ),
    Bug(
        "reads do not reset the window",
        "a stream that is read all the time expires",
        ((SERVICE + "service", "            slice.touch_due\n", "            slice.touch_due and not life.token\n"),),
        http=True,
    ),
    Bug(
        "expiry by the clock of the node that reads",
        "what one node calls gone another still serves",
        (
            (
                "anabranch_node.core.stream.machine",
                "        absent = lifecycle.why_absent(query.stream, stream, self.now_ms)\n",
                "        absent = lifecycle.why_absent(query.stream, stream, now_ms)\n",
            ),
        ),
        http=True,
    ),
    Bug(
        "deadlines by a clock that can be set",
        "found by HTTP seed 148: a clock set back by an hour keeps every request for an hour",
        (
            (
                SERVICE + "service",
                "        if now_ms > self._now_ms:\n            self._uptime_ms += min(now_ms - self._now_ms, CLOCK_STEP_MAX_MS)\n",
                "        self._uptime_ms = now_ms\n",
            ),
        ),
        http=True,
    ),
    Bug(
        "listing without a group that cannot answer",
        "streams that exist are not listed",
        (
            (
                SERVICE + "listing",
                "        if not isinstance(result, StreamPage):\n",
                "        if not isinstance(result, StreamPage):\n            result = StreamPage([], False)\n        if False:\n",
            ),
        ),
        http=True,
    ),
    Bug(
        "pins left out of the Raft snapshot",
        "a replica that was restored frees what forks stand on",
        (("anabranch_node.core.stream.snapshot", "    if rare.pins is not None:\n", "    if rare.pins is not None and not piece_bytes_max:\n"),),
        http=True,
    ),
    Bug(
        "earliest offset left out of the Raft snapshot",
        "a replica that was restored shows what the others have trimmed",
        (("anabranch_node.core.stream.snapshot", "record.start, record.start, record.earliest)", "record.start, record.start, record.start)"),),
        http=True,
    ),
    Bug(
        "trimmed although a fork needs it",
        "what the fork inherits is gone",
        (
            (
                "anabranch_node.core.stream.lifecycle",
                "    if stream.rare is not None and stream.rare.pins is not None:\n        needed",
                "    if stream.rare is None and stream.rare.pins is not None:\n        needed",
            ),
        ),
        http=True,
    ),
    Bug(
        "published snapshot does not hide what it replaces",
        "bootstrap and reads disagree about where the stream begins",
        (
            (
                "anabranch_node.core.stream.lifecycle",
                "command.body)\n    stream.earliest = offset\n",
                "command.body)\n",
            ),
        ),
        http=True,
    ),
    Bug(
        "fence skipped in one group",
        "a bucket is deleted while that group holds a stream of it, or makes one",
        (
            (
                SERVICE + "cross",
                "missing = [group for group in routing.groups if group not in counts]",
                "missing = [group for group in routing.groups[:-1] or routing.groups if group not in counts]",
            ),
        ),
        http=True,
    ),
    Bug(
        "open below a fence accepted",
        "a look at the meta group that a delete has overtaken opens the bucket again",
        (("anabranch_node.core.cross.fences", "    if command.meta_index < fences.highest:\n", "    if command.meta_index < 0:\n"),),
        http=True,
    ),
    Bug(
        "every frame of a batch is told the end of the batch",
        "a client that goes on from there skips what it never saw",
        (("anabranch_node.web.batch", "_Ack(204, offset, result.closed)", "_Ack(204, result.next_offset, result.closed)"),),
        short=True,
        http=True,
    ),
    Bug(
        "bootstrap goes on in another incarnation",
        "the stream was deleted and made again between two pieces",
        (
            (SERVICE + "bootstrap", "self._piece_bytes, info.incarnation, info.tail)", "self._piece_bytes, 0, info.tail)"),
            (SERVICE + "bootstrap", "slice.start == at and slice.incarnation == info.incarnation and", "slice.start == at and"),
        ),
        http=True,
    ),
    Bug(
        "read of a key goes on behind what did not fit",
        "the rest of its messages is never shown",
        (("anabranch_node.core.stream.read_plan", "                    return _Cut(base + first, pieces, sizes)\n", "                    break\n"),),
        short=True,
        http=True,
    ),
    # Not here: "a decision of an earlier round taken" (Buckets._is_round): a decision must be late by a whole delete of the same bucket. Not within
    # 80 HTTP seeds with buckets, 27 of them full of deletes. And "two commands of an entry at one place" (buckets.place_of): the judge counts places
    # by itself, so every run with buckets would show it, for the wrong reason. tests/unit/test_cluster_machine.py holds both.
    # Not here: "unpin acknowledged when it is sent" and "uuid of a fork that was given up not refused". A leader must fall silent between two
    # commands of different groups, or a create be under way for seconds; not within 60 HTTP seeds with forks. tests/unit/test_service_cross.py
    # holds the first, test_stream_like_model.py the second.
    # Not here: "a live reader goes on in another incarnation" (live._same): delete and create must be applied in one turn with a reader at a boundary
    # of both. Not within 150 HTTP seeds; tests/unit/test_service.py holds it.
    # Not here: "a replica being removed may not run" (raft.may_campaign). Chance found it in an earlier form of the simulator and not within 700
    # seeds of this one; tests/scripts/raft/removed_leader_must_finish_its_removal.txt holds it.
)
