"""What a stream must hold, given what its only writer was told. Pure. Before us: the messages in the order of the stream. After us: run.py's report.

An acknowledged message is there exactly once. A refused one is not there. One whose outcome is unknown (503 `outcome_unknown`, or a connection that
broke) is there once or not at all: it may have been in the killed leader's log alone. An acknowledgement fixes the order: whatever was written later
stands later. A message of unknown outcome may stand after later ones, since nobody waited for it."""

from collections import Counter
from collections.abc import Iterable


def of_appends(stream: list[int], told: Iterable[tuple[int, str]]) -> list[str]:
    """Appends without a producer, one after the other. `told`: (message, acknowledged | refused | unknown) for every try."""
    tries: dict[int, set[str]] = {}
    for n, outcome in told:
        tries.setdefault(n, set()).add(outcome)
    acknowledged = {n for n, outcomes in tries.items() if "acknowledged" in outcomes}
    allowed = {n for n, outcomes in tries.items() if outcomes & {"acknowledged", "unknown"}}
    count = Counter(stream)
    wrong = [f"acknowledged and lost: {n}" for n in sorted(acknowledged - count.keys())]
    wrong += [f"there {times} times: {n}" for n, times in count.items() if times > 1]
    wrong += [f"refused and there: {n}" if n in tries else f"never written: {n}" for n in count if n not in allowed]
    highest = -1
    for n in stream:
        if n < highest and n in acknowledged and count[n] == 1:
            wrong.append(f"{n} was acknowledged before {highest} was written, and stands after it")
        highest = max(highest, n)
    return wrong


def of_producer(stream: list[int], count: int) -> list[str]:
    """Exactly once and in order: the messages 0 to count - 1."""
    if stream == list(range(count)):
        return []
    there = Counter(stream)
    wrong = [f"lost: {n}" for n in range(count) if n not in there]
    wrong += [f"there {times} times: {n}" for n, times in there.items() if times > 1]
    wrong += [f"never written: {n}" for n in there if not 0 <= n < count]
    return wrong or ["out of order"]


def of_reader(reader: str, given: list[int], stream: list[int]) -> list[str]:
    """A tail, or a second reader, must have been given exactly the stream."""
    if given == stream:
        return []
    at = next((i for i, (one, other) in enumerate(zip(given, stream, strict=False)) if one != other), min(len(given), len(stream)))
    return [f"{reader} was given {len(given)} messages and the stream has {len(stream)}; at {at}: {given[at : at + 3]} against {stream[at : at + 3]}"]
