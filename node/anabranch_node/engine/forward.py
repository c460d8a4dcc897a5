"""Requests for other nodes and from them: numbers, bytes, and what a broken connection means. service/ decides who is asked.

Before us: service.py found no leader or no replica here. After us: outbox.py puts the letter into this turn's frame. A command that was sent and not
answered is unknown and never sent again; a query changes nothing, so it is. Not here: deadlines (service.py)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from anabranch_node.core import errors
from anabranch_node.core.errors import NotLeading, OutcomeUnknown, ReadUnavailable
from anabranch_node.core.stream import commands, queries, results
from anabranch_node.engine.host import Host
from anabranch_node.engine.letters import Forward, ForwardAnswer

BULK_BYTES = 16 << 10
"""Larger letters take the lane of the entries, so that they never delay a heartbeat."""

BOOT_SHIFT = 40
"""Numbers of one boot never meet those of another: an answer may come after the process that asked has been replaced."""

_encode = msgspec.msgpack.Encoder().encode


class Codec(NamedTuple):
    """How the questions and answers of a kind of group are spelt."""

    command: Callable[[bytes], Any]
    query: Callable[[bytes], Any]
    result: Callable[[bytes], Any]


FAILURES = (
    errors.OutcomeUnknown
    | errors.NotLeading
    | errors.Overloaded
    | errors.DiskFull
    | errors.Fenced
    | errors.ReadUnavailable
    | errors.NotHosted
    | errors.Refused
    | errors.TooLarge
    | errors.HotFull
)
STREAMS = Codec(
    msgspec.msgpack.Decoder(commands.Command).decode,
    msgspec.msgpack.Decoder(queries.Query).decode,
    msgspec.msgpack.Decoder(results.Result | results.QueryResult | FAILURES).decode,
)


class _Asked(NamedTuple):
    token: int
    node: int
    write: bool


class Forwarding:
    def __init__(self, host: Host, meta: Codec) -> None:
        self._host = host
        self._codecs = (STREAMS, meta)
        self._counter = host.boot << BOOT_SHIFT
        self._asked: dict[int, _Asked] = {}
        self._number_of: dict[int, int] = {}  # token -> number: each waits for one answer at a time

    def _codec(self, group: int) -> Codec:
        return self._codecs[group == 0]

    def ask(self, token: int, place: tuple[int, int], group: int, write: bool, payload: Any, wait_ms: int) -> None:
        self._counter += 1
        self._asked[self._counter] = _Asked(token, place[0], write)
        self._number_of[token] = self._counter
        body = _encode(payload)
        self._host.send_letter(place[0], place[1], group, Forward(self._counter, write, wait_ms, body), len(body) > BULK_BYTES)

    def decode(self, group: int, letter: Forward) -> Any:
        """The command or query of another node. Raises msgspec.MsgspecError."""
        codec = self._codec(group)
        return codec.command(letter.body) if letter.write else codec.query(letter.body)

    def answer(self, node: int, incarnation: int, group: int, request: int, result: Any) -> None:
        body = _encode(result)
        self._host.send_letter(node, incarnation, group, ForwardAnswer(request, body), len(body) > BULK_BYTES)

    def answered(self, group: int, letter: ForwardAnswer) -> tuple[int, Any] | None:
        """(token, result), or None if nobody waits for it any more."""
        asked = self._asked.pop(letter.request, None)
        if asked is None:
            return None
        self._number_of.pop(asked.token, None)
        try:
            return asked.token, self._codec(group).result(letter.body)
        except msgspec.MsgspecError as error:
            return asked.token, OutcomeUnknown(f"node {asked.node} answered what this version does not know: {error}")

    def lost(self, node: int) -> list[tuple[int, Any]]:
        """The connection to that node broke: what it was asked, with the honest answer."""
        gone = [number for number, asked in self._asked.items() if asked.node == node]
        lost = [self._asked.pop(number) for number in gone]
        for asked in lost:
            self._number_of.pop(asked.token, None)
        return [(asked.token, _silence(asked)) for asked in lost]

    def unsent(self, requests: list[int]) -> list[tuple[int, Any]]:
        """These never left this node."""
        asked = [self._asked.pop(number) for number in requests if number in self._asked]
        for one in asked:
            self._number_of.pop(one.token, None)
        return [(one.token, NotLeading(0) if one.write else ReadUnavailable()) for one in asked]

    def forget(self, token: int) -> None:
        """Nobody waits for that answer any more: its deadline passed, or its client left."""
        number = self._number_of.pop(token, None)
        if number is not None:
            del self._asked[number]


def _silence(asked: _Asked) -> Any:
    return OutcomeUnknown(f"the connection to node {asked.node} broke before it answered") if asked.write else ReadUnavailable()
