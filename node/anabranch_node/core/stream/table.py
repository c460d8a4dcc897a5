"""All streams of one group, and which of their objects a frozen view may be looking at.

freeze() copies the dict (pointers, at C speed) and raises the generation; whoever changes a stream calls `own` first, which replaces an object
older than the last freeze by a copy. A view thus keeps exactly what it saw, and pays for what changes, not for what exists."""

from anabranch_node.core.stream.stream import Stream


class StreamTable:
    __slots__ = ("generation", "streams")

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.generation = 0

    def own(self, name: str, stream: Stream) -> Stream:
        """The object to change in place of `stream`. Callers hold it only until the next freeze."""
        if stream.generation == self.generation:
            return stream
        copy = stream.copy(self.generation)
        self.streams[name] = copy
        return copy

    def freeze(self) -> dict[str, Stream]:
        self.generation += 1
        return self.streams.copy()
