"""Reads a script, moves a Cluster, and gives the script back with what really happened. README.md lists the vocabulary.

A script is comments (#) and commands, then `----`, then what these commands must have printed, up to an empty line; and so on.
test_raft_scripts.py compares, rewrite.py replaces the expected parts."""

from collections.abc import Callable
from dataclasses import replace

from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.raft import membership
from anabranch_node.core.raft.errors import Refused
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.messages import Message
from anabranch_node.core.raft.raft import Raft, RaftOptions, Role
from anabranch_node.core.raft.records import EntriesAppended, HardState, SnapshotMark
from tests.scripts.cluster import Cluster, LawBroken, Replica, kind_of, replay, show_config, show_entry, show_message

SEPARATOR = "----"
OPTIONS = RaftOptions(election_ticks=10, heartbeat_ticks=2)


class BadScript(Exception):
    """A command that does not exist or cannot be carried out, with its line."""


def run_script(text: str) -> str:
    """The same script with the output of this run in place of the expected one."""
    interpreter = Interpreter()
    lines: list[str] = []
    expected = False
    ran = False
    for number, line in enumerate(text.splitlines(), 1):
        if expected and line.strip():
            if hasattr(interpreter, _method(line.split()[0])):
                raise BadScript(f"line {number}, `{line}`: a command among expected lines; an empty line must end them")
            continue
        if line == SEPARATOR:
            lines += [SEPARATOR, *interpreter.output()]
            expected, ran = True, False
            continue
        expected = False
        lines.append(line)
        words = line.split()
        if words and not words[0].startswith("#"):
            ran = True
            try:
                interpreter.run(words[0], words[1:])
            except LawBroken as broken:
                return "\n".join([*lines, SEPARATOR, *interpreter.output(), f"LAW BROKEN: {broken}"]) + "\n"
            except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
                raise BadScript(f"line {number}, `{line}`: {type(error).__name__}: {error}") from error
    if ran:
        lines += [SEPARATOR, *interpreter.output()]
    return "\n".join(lines) + "\n"


def _method(command: str) -> str:
    return "do_" + command.replace("-", "_")


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


def _named(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _payload(word: str) -> bytes:
    letter, star, count = word.partition("*")
    return letter.encode() * int(count) if star else word.encode()


class Interpreter:
    def __init__(self) -> None:
        self.cluster = Cluster([])

    def output(self) -> list[str]:
        events, self.cluster.events = self.cluster.events, []
        return events

    def run(self, command: str, words: list[str]) -> None:
        action: Callable[[list[str]], None] | None = getattr(self, _method(command), None)
        if action is None:
            raise ValueError(f"there is no command {command}")
        action(words)

    def _turn(self, replica: int, action: Callable[[Raft], object]) -> None:
        """The replica acts; a refusal is an answer like any other."""

        def act(raft: Raft) -> None:
            try:
                action(raft)
            except Refused as refused:
                self.cluster.say(replica, f"refuses, {type(refused).__name__}: {refused}")

        self.cluster.raft(replica)
        self.cluster.turn(self.cluster.replicas[replica], act)

    # --- setting the scene -------------------------------------------------------------------------------------------------------

    def do_cluster(self, words: list[str]) -> None:
        named = _named(words)
        config = Configuration(_ids(named.pop("voters")), (), _ids(named.pop("learners", "")))
        spare, leader = _ids(named.pop("spare", "")), named.pop("leader", "")
        options = replace(OPTIONS, **{name: int(value) for name, value in named.items()})
        replicas = []
        for replica in (*config.members(), *spare):
            known = Configuration() if replica in spare else config
            replicas.append(Replica(replica, options, [HardState(0, 0, 0), SnapshotMark(0, 0, membership.encode(known), 1, 0)]))
            replicas[-1].start()
        self.cluster = Cluster(replicas)
        if leader:
            self.do_elect([leader])
            self.do_pass([str(options.heartbeat_ticks)])  # so that everyone has heard the commit
            self.output()

    def do_given(self, words: list[str]) -> None:
        """The disk of a replica before the story begins: terms of its entries, its term, whom it voted for, what it knew to be committed."""
        replica, named = self.cluster.replicas[int(words[0])], _named(words[1:])
        terms = _ids(named["log"])
        entries = [entries_of.encode(term, entries_of.COMMANDS_V1, f"t{term}".encode()) for term in terms]
        hard = HardState(int(named.get("term", max(terms, default=0))), int(named.get("vote", 0)), int(named.get("commit", 0)))
        replica.durable = [replica.durable[1], *([EntriesAppended(1, entries)] if entries else []), hard]
        replica.start()

    # --- time, disk, network -----------------------------------------------------------------------------------------------------

    def do_tick(self, words: list[str]) -> None:
        for _ in range(int(words[1]) if len(words) > 1 else 1):
            self._turn(int(words[0]), lambda raft: raft.tick())

    def do_pass(self, words: list[str]) -> None:
        """Time passes for everyone: a tick each, then all messages, again and again."""
        for _ in range(int(words[0])):
            for replica in self.cluster.live():
                self._turn(replica.id, lambda raft: raft.tick())
            self.cluster.run_until_quiet()

    def do_elect(self, words: list[str]) -> None:
        """The others have heard no leader for long enough to vote, and this one loses patience first; then all messages."""
        candidate = int(words[0])
        for replica in self.cluster.live():
            raft = self.cluster.raft(replica.id)
            if replica.id != candidate and raft.role is not Role.LEADER:
                self.do_tick([str(replica.id), str(max(0, replica.options.election_ticks - raft.quiet_ticks))])
        raft = self.cluster.raft(candidate)
        self.do_tick([words[0], str(max(1, raft.timeout_ticks - raft.quiet_ticks))])
        self.cluster.run_until_quiet()

    def do_stable(self, words: list[str]) -> None:
        self.cluster.run_until_quiet()

    def do_hold_sync(self, words: list[str]) -> None:
        for replica in _ids(words[0]):
            self.cluster.replicas[replica].sync_held = True

    def do_sync(self, words: list[str]) -> None:
        self.cluster.sync(self.cluster.replicas[int(words[0])])

    def do_free_sync(self, words: list[str]) -> None:
        for replica in _ids(words[0]):
            self.cluster.replicas[replica].sync_held = False
            self.do_sync([str(replica)])

    def do_crash(self, words: list[str]) -> None:
        replica = self.cluster.replicas[int(words[0])]
        replica.stop(int(_named(words).get("keep", 0)))
        replica.sync_held = replica.paused = False
        self.cluster.messages = [m for m in self.cluster.messages if m.to != replica.id]

    def do_restart(self, words: list[str]) -> None:
        replica = self.cluster.replicas[int(words[0])]
        try:
            replica.start()
        except AssertionError as broken:
            self.cluster.say(replica.id, f"FENCED, {broken}")
            return
        self._turn(replica.id, lambda raft: None)

    def do_pause(self, words: list[str]) -> None:
        self.cluster.replicas[int(words[0])].paused = True

    def do_resume(self, words: list[str]) -> None:
        self.cluster.replicas[int(words[0])].paused = False

    def do_cut(self, words: list[str]) -> None:
        """`cut 1 | 2,3` both ways, `cut 1 -> 2,3` one way. What is on the way is lost, too."""
        left, arrow, right = words
        for one in _ids(left):
            for other in _ids(right):
                self.cluster.cuts |= {(one, other)} if arrow == "->" else {(one, other), (other, one)}
        self.cluster.messages = [m for m in self.cluster.messages if (m.src, m.to) not in self.cluster.cuts]

    def do_heal(self, words: list[str]) -> None:
        self.cluster.cuts.clear()

    def _take(self, words: list[str], source: list[Message]) -> list[Message]:
        """Messages on the way: all, or those of a kind, from and to (`append 1->2`); with `first`, only the oldest of them."""
        kinds = [word for word in words if "->" not in word and word != "first"]
        ways = [tuple(word.split("->")) for word in words if "->" in word]
        found = [
            m
            for m in source
            if (not kinds or kind_of(m) in kinds)
            and (not ways or any(src in ("", "*", str(m.src)) and to in ("", "*", str(m.to)) for src, to in ways))
        ]
        found = found[:1] if "first" in words else found
        if not found:
            raise ValueError(f"no such message is on the way: {[show_message(m) for m in source]}")
        return found

    def do_deliver(self, words: list[str]) -> None:
        """Only what is on the way now; answers stay on the way."""
        for m in self._take(words, self.cluster.messages):
            self.cluster.messages.remove(m)
            self.cluster.deliver(m)

    def do_drop(self, words: list[str]) -> None:
        for m in self._take(words, self.cluster.messages):
            self.cluster.messages.remove(m)

    def do_duplicate(self, words: list[str]) -> None:
        self.cluster.messages.extend(self._take(words, self.cluster.messages))

    def do_delay(self, words: list[str]) -> None:
        """They are on the way, but arrive only with `deliver-late`."""
        for m in self._take(words, self.cluster.messages):
            self.cluster.messages.remove(m)
            self.cluster.late.append(m)

    def do_delay_copy(self, words: list[str]) -> None:
        """They arrive now, and once more with `deliver-late`."""
        self.cluster.late.extend(self._take(words, self.cluster.messages))

    def do_deliver_late(self, words: list[str]) -> None:
        for m in self._take(words, self.cluster.late):
            self.cluster.late.remove(m)
            self.cluster.deliver(m)

    # --- requests ----------------------------------------------------------------------------------------------------------------

    def do_propose(self, words: list[str]) -> None:
        """All words in one turn."""

        def propose(raft: Raft) -> None:
            for word in words[1:]:
                raft.propose(entries_of.COMMANDS_V1, _payload(word))

        self._turn(int(words[0]), propose)

    def do_change(self, words: list[str]) -> None:
        named = _named(words)
        self._turn(int(words[0]), lambda raft: raft.propose_change(_ids(named["voters"]), _ids(named.get("learners", ""))))

    def do_transfer(self, words: list[str]) -> None:
        self._turn(int(words[0]), lambda raft: raft.transfer_leadership(int(words[1])))

    def do_read(self, words: list[str]) -> None:
        self.cluster.read_names.append(words[1])
        self._turn(int(words[0]), lambda raft: raft.read_index(len(self.cluster.read_names) - 1))

    def do_lost(self, words: list[str]) -> None:
        self._turn(int(words[0]), lambda raft: raft.peer_lost(int(words[1])))

    def do_load(self, words: list[str]) -> None:
        """The WAL answers what the replica wanted read back; with `nothing`, the read failed."""
        replica = self.cluster.replicas[int(words[0])]
        wanted, replica.loads = replica.loads, []
        found = replay(replica.durable)
        for other, first_index in wanted:
            entries = [] if "nothing" in words else found.entries[first_index - found.mark.first_index :]
            self._turn(replica.id, lambda raft, other=other, first=first_index, entries=entries: raft.entries_loaded(other, first, entries))

    def do_snapshot(self, words: list[str]) -> None:
        """The state machine's snapshot at that index is durable: cut the log, but keep tail=n entries."""
        tail = int(_named(words).get("tail", 0))
        self._turn(int(words[0]), lambda raft: raft.mark_snapshot(int(words[1]), tail))

    def do_install(self, words: list[str]) -> None:
        """`install 3 from 1`: the whole file of replica 1's newest snapshot has arrived at replica 3."""
        source = replay(self.cluster.replicas[int(words[2])].durable).mark
        self._install(int(words[0]), source.index, source.term, membership.decode(source.config))

    def do_install_file(self, words: list[str]) -> None:
        """`install-file 3 5/2 voters=1,2,3`: a snapshot file of that index and term is found on the replica's own disk."""
        index, term = map(int, words[1].split("/"))
        self._install(int(words[0]), index, term, Configuration(_ids(_named(words)["voters"])))

    def _install(self, replica: int, index: int, term: int, config: Configuration) -> None:
        def install(raft: Raft) -> None:
            switched = raft.install_snapshot(index, term, config)
            self.cluster.say(replica, f"{'installs' if switched else 'does not need'} snapshot {index}/{term}")
            self.cluster.installed(raft)

        self._turn(replica, install)

    def do_snapshot_failed(self, words: list[str]) -> None:
        self._turn(int(words[0]), lambda raft: raft.snapshot_failed(int(words[1])))

    # --- what is to be seen ------------------------------------------------------------------------------------------------------

    def _shown(self, words: list[str]) -> list[Replica]:
        return [replica for replica in self.cluster.replicas.values() if not words or str(replica.id) in words]

    def do_log(self, words: list[str]) -> None:
        """index/term:data of each entry; `|` ends what is known to be committed; `?` marks what is not durable here."""
        for replica in self._shown(words):
            raft = replica.raft
            if raft is None:
                self.cluster.say(replica.id, "down")
                continue
            log, found = raft.log, replay(replica.durable)
            parts = [f"snapshot {log.snapshot_index}/{log.snapshot_term}" + ("" if found.mark.index == log.snapshot_index else "?")]
            parts = parts if log.snapshot_index else []
            if log.committed < log.first_index:
                parts.append("|")
            for index in range(log.first_index, log.last_index + 1):
                position = index - found.mark.first_index
                durable = 0 <= position < len(found.entries) and entries_of.term_of(found.entries[position]) == log.term_at(index)
                entry = log.entries[index - log.first_index]
                parts.append(f"{index}/{log.term_at(index)}:{show_entry(entry)}{'' if durable else '?'}")
                if index == log.committed:
                    parts.append("|")
            self.cluster.say(replica.id, " ".join(parts))

    def do_state(self, words: list[str]) -> None:
        for replica in self._shown(words):
            raft = replica.raft
            if raft is None:
                self.cluster.say(replica.id, "down")
                continue
            vote, leader = raft.vote or "nobody", raft.leader or "nobody"
            text = f"{raft.role.value} term={raft.term} vote={vote} leader={leader} commit={raft.log.committed} {show_config(raft.config)}"
            self.cluster.say(replica.id, text)

    def do_progress(self, words: list[str]) -> None:
        """What a leader believes of the others."""
        raft = self.cluster.raft(int(words[0]))
        for other, progress in raft.progress.items():
            flight = f"in flight {len(progress.in_flight)} of {progress.in_flight_bytes} bytes"
            self.cluster.say(raft.id, f"believes {other}: {progress.state.value} match={progress.match} next={progress.next} {flight}")

    def do_messages(self, words: list[str]) -> None:
        """What is on the way, or those chosen as in `deliver`."""
        found = self._take(words, self.cluster.messages) if words and self.cluster.messages else self.cluster.messages
        self.cluster.events.extend([show_message(m) for m in found] or ["nothing is on the way"])

    def do_count(self, words: list[str]) -> None:
        """How many messages of each kind are on the way."""
        kinds: dict[str, int] = {}
        for m in self.cluster.messages:
            kinds[f"{m.src}->{m.to} {kind_of(m)}"] = kinds.get(f"{m.src}->{m.to} {kind_of(m)}", 0) + 1
        self.cluster.events.extend([f"{kind}: {count}" for kind, count in sorted(kinds.items())] or ["nothing is on the way"])
