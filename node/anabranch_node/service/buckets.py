"""Requests about buckets, and creates in a bucket that their group does not know to be open.

Before us: service.py gives us what clients ask of a bucket, and each create that its group refused with BucketUnknown. Such a create was definitely
not made, so it may be sent again: we look at the meta group, open the bucket in the stream's group as of what we saw, and send it. An open that a
fence overtook (StaleOpen) begins with another look. After us: web/bucket.py and web/errors.py render the answers. A delete is carried out by
whoever leads the meta group (cross.py); here we look until it is decided.
Every try is its own: a hundred creates in a new bucket look a hundred times, once per bucket and group. Bounded by the lives behind them.
Not here: what the meta group and the others know (core/cluster/buckets.py, core/cross/fences.py)."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from anabranch_node.core.cluster.commands import BucketCreate, BucketDelete
from anabranch_node.core.cluster.queries import BucketLook
from anabranch_node.core.cluster.results import BucketAbsent, BucketDeleting, BucketExists, BucketNotEmpty, BucketState
from anabranch_node.core.errors import OutcomeUnknown
from anabranch_node.core.stream.commands import BucketOpen
from anabranch_node.core.stream.queries import BucketCount, ListStreams
from anabranch_node.core.stream.results import BucketFenced, BucketOpened, StaleOpen, StreamPage
from anabranch_node.service.life import Life, Stage
from anabranch_node.service.listing import merged
from anabranch_node.web import bucket as web_bucket
from anabranch_node.web import errors as web_errors
from anabranch_node.web.reply import Reply
from anabranch_node.web.request import Kind, Request
from anabranch_proto.ids import META_GROUP

OPENS_MAX: Final = 8
"""Of one create. Each failed open means that a bucket was deleted between our look and our open; then the client may try again."""


class Desk(Protocol):
    """What we need of service.py."""

    def ask(self, group: int, write: bool, payload: Any, then: Callable[[Any], None]) -> None:
        """Ask a group, wherever it lives. `then` hears the answer, or why there is none, once and within the time of a request."""

    def reply(self, token: int, request: Request, reply: Reply) -> None: ...

    def is_opening(self, life: Life) -> bool:
        """Its client has not left, its time is not over."""

    def go_on(self, life: Life) -> None:
        """Send it to its group again."""

    def finish(self, life: Life, result: Any) -> None: ...

    def deadline_ms(self) -> int:
        """Of a request that arrives now."""


class _Gathering:
    """The answers of all groups, and the meta group's: one of them may end it."""

    __slots__ = ("missing", "parts", "request", "state", "token")

    def __init__(self, token: int, request: Request, missing: int) -> None:
        self.token = token
        self.request = request
        self.missing = missing
        self.parts: list[Any] = []
        self.state: BucketState | None = None


class _Deciding:
    """A delete that goes on; its client waits."""

    __slots__ = ("begun", "deadline_ms", "looking", "request", "token")

    def __init__(self, token: int, request: Request, begun: BucketState, deadline_ms: int) -> None:
        self.token = token
        self.request = request
        self.begun = begun
        self.deadline_ms = deadline_ms
        self.looking = False


class BucketRequests:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._clients: set[int] = set()
        """Tokens of requests about buckets that are not answered yet."""
        self._deciding: dict[int, _Deciding] = {}

    @property
    def pending(self) -> int:
        return len(self._clients)

    # --- a create that its group does not take ------------------------------------------------------------------------------------

    def unknown(self, life: Life, bucket: str) -> None:
        """Definitely refused: this group must be told that the bucket is open, if it is."""
        life.sent = False
        life.stage = Stage.OPENING
        life.opens += 1
        if life.opens > OPENS_MAX:
            self._desk.finish(life, BucketDeleting(bucket))
            return
        self._desk.ask(META_GROUP, False, BucketLook(bucket), partial(self._seen, life, bucket))

    def _seen(self, life: Life, bucket: str, result: Any) -> None:
        """By a look, or by the create of a bucket that a look did not find."""
        if not self._desk.is_opening(life):
            return
        life.sent = False
        if isinstance(result, BucketAbsent) and life.makes_bucket:
            life.sent = True  # the bucket may come to be: if its time ends now, not even "nothing happened" is certain
            self._desk.ask(META_GROUP, True, BucketCreate(bucket, 0), partial(self._seen, life, bucket))
        elif not isinstance(result, BucketState):
            self._desk.finish(life, result)
        elif result.state == "deleting":
            self._desk.finish(life, BucketDeleting(bucket))
        else:
            self._desk.ask(life.group, True, BucketOpen(bucket, result.meta_index, 0), partial(self._opened, life, bucket))

    def _opened(self, life: Life, bucket: str, result: Any) -> None:
        if not self._desk.is_opening(life):
            return
        if isinstance(result, StaleOpen):
            self.unknown(life, bucket)
        elif isinstance(result, BucketOpened | OutcomeUnknown):
            # Unknown is only whether the bucket is open there: the create was refused before, and its group will say.
            self._desk.go_on(life)
        else:
            self._desk.finish(life, result)

    # --- what clients ask of a bucket ----------------------------------------------------------------------------------------------

    def asked(self, token: int, request: Request, groups: list[int]) -> None:
        kind, bucket = request.kind, request.bucket
        self._clients.add(token)
        if kind is Kind.BUCKET_CREATE:
            self._desk.ask(META_GROUP, True, BucketCreate(bucket, 0), partial(self._made, token, request))
        elif kind is Kind.BUCKET_DELETE:
            self._desk.ask(META_GROUP, True, BucketDelete(bucket, 0), partial(self._begun, token, request, self._desk.deadline_ms()))
        elif kind is Kind.BUCKET_INFO:
            self._gather(token, request, groups, BucketCount(bucket))
        else:
            assert kind is Kind.BUCKET_LIST, kind
            after = f"{bucket}/{request.after}" if request.after else ""
            self._gather(token, request, groups, ListStreams(f"{bucket}/{request.prefix}", after, request.limit, details=True))

    def _made(self, token: int, request: Request, result: Any) -> None:
        if not isinstance(result, BucketState):
            reply = web_errors.answer(result)
        elif result.created_index == result.meta_index:
            reply = web_bucket.made(request)
        else:
            reply = web_errors.answer((BucketExists if result.state == "open" else BucketDeleting)(request.bucket))
        self._reply(token, request, reply)

    def _gather(self, token: int, request: Request, groups: list[int], query: BucketCount | ListStreams) -> None:
        """Each group behind its ReadIndex. Not a snapshot; and one that cannot answer fails the request, never shortens the answer."""
        gathering = _Gathering(token, request, 1 + len(groups))
        self._desk.ask(META_GROUP, False, BucketLook(request.bucket), partial(self._part, gathering))
        for group in groups:
            self._desk.ask(group, False, query, partial(self._part, gathering))

    def _part(self, gathering: _Gathering, result: Any) -> None:
        if gathering.missing <= 0:
            return  # one has failed, and the others are not waited for
        token, request = gathering.token, gathering.request
        if isinstance(result, BucketState):
            gathering.state = result
        elif isinstance(result, BucketFenced | StreamPage):
            gathering.parts.append(result)
        else:
            gathering.missing = 0
            self._reply(token, request, web_errors.answer(result))
            return
        gathering.missing -= 1
        if gathering.missing:
            return
        assert gathering.state is not None
        if request.kind is Kind.BUCKET_INFO:
            reply = web_bucket.info(request.bucket, sum(part.streams for part in gathering.parts), gathering.state.created_ms)
        else:
            reply = web_bucket.listing(request, merged(gathering.parts, request.limit))
        self._reply(token, request, reply)

    # --- delete --------------------------------------------------------------------------------------------------------------------

    def _begun(self, token: int, request: Request, deadline_ms: int, result: Any) -> None:
        if token not in self._clients:
            return  # its client left; the delete goes on without it
        if isinstance(result, BucketState):
            assert result.state == "deleting", result
            self._deciding[token] = _Deciding(token, request, result, deadline_ms)
            self._look(self._deciding[token])
        else:
            self._reply(token, request, web_errors.answer(result))

    def _look(self, deciding: _Deciding) -> None:
        deciding.looking = True
        self._desk.ask(META_GROUP, False, BucketLook(deciding.request.bucket), partial(self._looked, deciding))

    def _looked(self, deciding: _Deciding, result: Any) -> None:
        deciding.looking = False
        if deciding.token not in self._deciding:
            return
        begun = deciding.begun
        if isinstance(result, BucketAbsent) or (isinstance(result, BucketState) and result.created_index != begun.created_index):
            self._decided(deciding, web_bucket.GONE)  # or gone and made again
        elif isinstance(result, BucketState) and (result.state == "open" or result.since_index != begun.since_index):
            self._decided(deciding, web_errors.answer(BucketNotEmpty(begun.bucket)))  # or restored and deleted again by somebody else

    def _decided(self, deciding: _Deciding, reply: Reply) -> None:
        del self._deciding[deciding.token]
        self._reply(deciding.token, deciding.request, reply)

    def tick(self, now_ms: int) -> None:
        for deciding in list(self._deciding.values()):
            if deciding.deadline_ms <= now_ms:
                self._decided(deciding, web_errors.answer(OutcomeUnknown("the delete goes on, and nobody knows yet whether the bucket is empty")))
            elif not deciding.looking:
                self._look(deciding)

    def gone(self, token: int) -> None:
        """The client left: nothing is answered any more."""
        self._clients.discard(token)
        self._deciding.pop(token, None)

    def _reply(self, token: int, request: Request, reply: Reply) -> None:
        if token in self._clients:
            self._clients.discard(token)
            self._desk.reply(token, request, reply)
