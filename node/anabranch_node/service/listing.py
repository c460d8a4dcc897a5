"""A listing merges the pages of all groups. service.py asks each group (every one behind its ReadIndex); we wait until all have answered.

Not a snapshot, but a stream that exists throughout appears exactly once; a group that cannot answer fails the listing, never shortens it."""

from collections.abc import Iterable
from heapq import merge
from itertools import islice, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from anabranch_node.core.stream.queries import ListStreams
from anabranch_node.core.stream.results import StreamPage, StreamRow
from anabranch_node.web.request import Request


class Part(NamedTuple):
    token: int
    group: int
    query: ListStreams


class Listed(NamedTuple):
    token: int
    request: Request
    result: Any
    """A StreamPage, or why there is none."""


class _Listing:
    __slots__ = ("missing", "pages", "request", "token")

    def __init__(self, token: int, request: Request, missing: int) -> None:
        self.token = token
        self.request = request
        self.missing = missing
        self.pages: list[StreamPage] = []


class Listings:
    def __init__(self) -> None:
        self._counter = 0
        self._of_part: dict[int, _Listing] = {}

    def start(self, token: int, request: Request, groups: list[int]) -> list[Part]:
        listing = _Listing(token, request, len(groups))
        wanted, by_row = max(request.row, 0) + request.limit, request.row >= 0
        query = ListStreams(request.prefix, request.after, wanted, by_row)
        parts = []
        for group in groups:
            self._counter -= 1  # below zero, where no client's token is
            self._of_part[self._counter] = listing
            parts.append(Part(self._counter, group, query))
        return parts

    def told(self, token: int, result: Any) -> Listed | None:
        """One group answered; the whole, once all have or one has failed."""
        listing = self._of_part.pop(token, None)
        if listing is None or listing.missing < 0:
            return None
        if not isinstance(result, StreamPage):
            listing.missing = -1  # the others' answers are not waited for
            return Listed(listing.token, listing.request, result)
        listing.pages.append(result)
        listing.missing -= 1
        if listing.missing:
            return None
        return Listed(listing.token, listing.request, merged(listing.pages, max(listing.request.row, 0) + listing.request.limit))


def merged(pages: list[StreamPage], limit: int) -> StreamPage:
    """The page of all groups together, in order; with details if they have them."""
    # Behind the last name of a cut page its group may have more, so nothing beyond the smallest such name is certain.
    certain = min((page.names[-1] for page in pages if page.more and page.names), default=None)
    items = merge(*[_items(page) for page in pages], key=itemgetter(0))
    taken = list(islice((item for item in items if certain is None or item[0] <= certain), limit))
    found = sum(len(page.names) for page in pages)
    rows = [row for _, row in taken if row is not None]
    return StreamPage([name for name, _ in taken], found > len(taken) or certain is not None, rows, sum(page.count for page in pages))


def _items(page: StreamPage) -> Iterable[tuple[str, StreamRow | None]]:
    return zip(page.names, page.rows or repeat(None, len(page.names)), strict=True)
