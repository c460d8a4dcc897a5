"""What a fork reads: inherited and own data as one stream, across groups, chains, sub-offsets, JSON arrays and live reads."""

import itertools
import threading
from collections.abc import Callable

import pytest

from tests.conformance.extensions.at_once import at_once
from tests.conformance.extensions.client import Streams, looks, offset
from tests.conformance.extensions.events import Events


@pytest.fixture
def source(http: Streams, stream: str) -> str:
    """JSON messages 0 to 9, two in each append."""
    http.create(stream, "application/json")
    for number in range(0, 10, 2):
        http.append_json(stream, number, number + 1)
    return stream


@pytest.fixture
def text(http: Streams, stream: str) -> tuple[str, list[str]]:
    """Four appends of 5 bytes, and the offsets around them."""
    http.create(stream)
    return stream, [offset(0), *(http.append(stream, b"<%d%d%d>" % (number, number, number)) for number in range(4))]


DATED = ["0.1", "0.2", "1.1", "1.2", "2.1", "2.2"]


def dated(http: Streams, stream: str) -> str:
    """The last of a chain of three: two messages each, with a key for the day, in January, February and March of 2020."""
    paths = [stream, f"{stream}-1", f"{stream}-2"]
    for level, path in enumerate(paths):
        if level:
            http.fork(path, paths[level - 1]).expect(201)
        else:
            http.create(path, "application/json")
        for day in (1, 2):
            stamp = {"Stream-Timestamp": f"2020-0{level + 1}-0{day}T00:00:00Z", "Stream-Key": f"k{day}"}
            http.append_json(path, f"{level}.{day}", headers=stamp)
    return paths[-1]


def bounds_of(http: Streams, path: str) -> list[str]:
    return [offset(0), *(answer.next_offset for answer in http.read_all(path, max_bytes=1))]


def test_forks_in_many_groups(http: Streams, source: str, fresh: Callable[[], str]) -> None:
    """DESIGN 9: "Forks may live in another group than their source."; specs/README.md forks: "The fork inherits the source strictly before that
    point, shares its offset space\""""
    bounds = bounds_of(http, source)
    for number in range(24):
        fork = f"/v1/stream/{fresh()}"
        cut = number % 11
        made = http.fork(fork, source, bounds[cut]).expect(201)
        assert made.next_offset == bounds[cut]
        assert http.read_json(fork) == list(range(cut))
        own = http.append_json(fork, "own")
        assert own > bounds[cut]
        assert http.read_json(fork) == [*range(cut), "own"]
        assert http.read_json(fork, bounds[cut // 2]) == [*range(cut // 2, cut), "own"]
    assert http.read_json(source) == list(range(10)), "the source knows nothing of it"


def test_chain_of_five(http: Streams, stream: str) -> None:
    """issue: "chains of forks, forks of forks in other groups"; specs/README.md forks: "Reads stitch inherited and own data\""""
    http.create(stream)
    paths, expected = [stream], b""
    for level in range(5):
        for part in range(2):
            http.append(paths[-1], b"(%d.%d)" % (level, part))
            expected += b"(%d.%d)" % (level, part)
        paths.append(f"{stream}-{level}")
        http.fork(paths[-1], paths[-2]).expect(201)
    http.append(paths[-1], b"(end)")
    for cut in range(0, len(expected) + 1, 5):
        assert http.read_bytes(paths[-1], offset(cut)) == expected[cut:] + b"(end)"
    assert http.read_bytes(paths[-1], max_bytes=1) == expected + b"(end)"
    for level, path in enumerate(paths[:-1]):
        http.append(path, b"later, and only here")
        assert http.read_bytes(path) == expected[: 10 * (level + 1)] + b"later, and only here"
    assert http.read_bytes(paths[-1]) == expected + b"(end)"


def test_chain_of_five_cut_early(http: Streams, stream: str) -> None:
    """specs/README.md forks: "optional `Stream-Fork-Offset` (default: the source's tail)": a point in what the source has inherited itself"""
    http.create(stream)
    for number in range(10):
        http.append(stream, b"%d" % number)
    path = stream
    for level in range(5):
        fork = f"{stream}-{level}"
        http.fork(fork, path, offset(9 - level)).expect(201)
        http.append(fork, b"abcde"[level : level + 1])
        assert http.read_bytes(fork) == b"0123456789"[: 9 - level] + b"abcde"[level : level + 1]
        path = fork


@pytest.mark.parametrize(("anchor", "sub"), [(0, 0), (0, 3), (1, 2), (2, 5), (3, 1), (3, 5)])
def test_sub_offset_of_bytes(http: Streams, text: tuple[str, list[str]], anchor: int, sub: int) -> None:
    """specs/README.md forks: "optional `Stream-Fork-Sub-Offset` (non-negative integer: JSON messages, or bytes, past the anchor)\""""
    source, bounds = text
    whole, cut = http.read_bytes(source), int(bounds[anchor]) + sub
    fork = f"{source}-fork"
    assert http.fork(fork, source, bounds[anchor], sub).expect(201).next_offset == offset(cut)
    http.append(fork, b"own")
    assert http.read_bytes(fork) == whole[:cut] + b"own"
    assert http.read_bytes(source) == whole


@pytest.mark.parametrize(("anchor", "sub"), [(0, 1), (0, 5), (1, 3), (2, 2), (2, 5)])
def test_sub_offset_inside_an_inherited_part(http: Streams, text: tuple[str, list[str]], anchor: int, sub: int) -> None:
    """specs/README.md forks: "JSON messages, or bytes, past the anchor": the anchor in a part that the source has inherited from another group"""
    source, bounds = text
    whole = http.read_bytes(source)
    middle = f"{source}-middle"
    http.fork(middle, source, bounds[3]).expect(201)
    http.append(middle, b"middle")
    fork = f"{source}-fork"
    cut = int(bounds[anchor]) + sub
    http.fork(fork, middle, bounds[anchor], sub).expect(201)
    http.append(fork, b"own")
    assert http.read_bytes(fork) == whole[:cut] + b"own"


def test_sub_offset_inside_inherited_json(http: Streams, source: str) -> None:
    """specs/README.md forks: "JSON messages ... past the anchor\""""
    bounds = bounds_of(http, source)
    middle = f"{source}-middle"
    http.fork(middle, source, bounds[6]).expect(201)
    http.append_json(middle, "m")
    for anchor, sub in ((0, 0), (0, 1), (0, 2), (2, 1), (4, 2)):
        fork = f"{source}-{anchor}-{sub}"
        assert http.fork(fork, middle, bounds[anchor], sub).expect(201).next_offset == bounds[anchor + sub]
        http.append_json(fork, "own")
        assert http.read_json(fork) == [*range(anchor + sub), "own"]


def test_sub_offset_beyond(http: Streams, text: tuple[str, list[str]]) -> None:
    """specs/README.md forks: "400 sub-offset > 0 without Fork-Offset, any sub-offset header without Forked-From, sub-offset past the message or on
    an empty source, malformed\""""
    source, bounds = text
    fork = f"{source}-fork"
    http.fork(fork, source, bounds[1], 6).expect(400)
    http.fork(fork, source, bounds[4], 1).expect(400)
    http.fork(fork, source, None, 1).expect(400)
    http.put(fork, b"", "text/plain", {"Stream-Fork-Sub-Offset": "0"}).expect(400)
    middle = f"{source}-middle"
    http.fork(middle, source, bounds[3]).expect(201)
    http.fork(fork, middle, bounds[1], 6).expect(400)
    http.fork(fork, middle, bounds[3], 1).expect(400)
    http.head(fork).expect(404)


@pytest.mark.parametrize("max_bytes", [1, 2, 3, 5, 7, 10, 11, 12, 13, 20, 1000])
def test_json_across_the_boundary(http: Streams, source: str, max_bytes: int) -> None:
    """specs/README.md forks: "JSON across the boundary is ONE array."; decisions: "responses end at boundaries even above `max_bytes`\""""
    fork = f"{source}-fork"
    http.fork(fork, source).expect(201)
    for number in range(10, 16):
        http.append_json(fork, number)
    answers = http.read_all(fork, max_bytes=max_bytes)
    assert [message for answer in answers for message in answer.json()] == list(range(16))
    assert all(answer.json() for answer in answers), "each piece leads on by at least one message"
    for at in bounds_of(http, fork):
        whole = http.read_json(fork, at, max_bytes=max_bytes)
        assert whole == list(range(16 - len(whole), 16))


def test_one_array_for_one_read(http: Streams, source: str) -> None:
    """specs/README.md forks: "JSON across the boundary is ONE array.": one response when it all fits, in a chain, too"""
    fork, second = f"{source}-fork", f"{source}-second"
    http.fork(fork, source).expect(201)
    http.append_json(fork, 10)
    http.fork(second, fork).expect(201)
    http.append_json(second, 11)
    answer = http.get(second, offset="-1").expect(200)
    assert answer.json() == list(range(12))
    assert answer.up_to_date and answer.next_offset == http.tail(second)


def test_offset_inside_an_inherited_message(http: Streams, source: str) -> None:
    """specs/README.md decisions: "a JSON read, fork or snapshot at an offset that is no message boundary: 400\""""
    http.create(f"{source}-long", "application/json", b'["a long message"]')
    fork = f"{source}-long-fork"
    http.fork(fork, f"{source}-long").expect(201)
    http.append_json(fork, "own")
    http.get(fork, offset=offset(4)).expect(400)
    http.fork(f"{source}-inside", f"{source}-long", offset(4)).expect(400)
    http.fork(f"{source}-inside", fork, offset(4)).expect(400)
    http.head(f"{source}-inside").expect(404)


def test_beyond_the_tail(http: Streams, source: str) -> None:
    """specs/README.md forks: "400 offset beyond tail or malformed"; decisions: "an offset beyond the tail: 400 `offset_beyond_tail`\""""
    fork = f"{source}-fork"
    beyond = offset(int(http.tail(source)) + 1)
    http.fork(fork, source, beyond).expect(400)
    http.fork(fork, source, "abc").expect(400)
    http.fork(fork, source, "12").expect(400)
    http.head(fork).expect(404)
    http.fork(fork, source).expect(201)
    assert http.get(fork, offset=beyond).expect(400).code == "offset_beyond_tail"


def test_key_through_the_chain(http: Streams, stream: str) -> None:
    """DESIGN 7: "boundaries, `since`, `key`, bootstrap, forks and snapshot alignment answer alike\""""
    last = dated(http, stream)
    assert http.read_json(last) == DATED
    assert http.read_json(last, key="k1") == ["0.1", "1.1", "2.1"]
    assert http.read_json(last, key="k2", max_bytes=1) == ["0.2", "1.2", "2.2"]
    assert http.read_json(last, key="nobody") == []
    assert http.get(f"{last}/pk/k1", offset="-1").expect(200).json() == ["0.1", "1.1", "2.1"]
    assert http.get(last, format="raw", key="k2").expect(200).body == b'"0.2""1.2""2.2"'


def test_since_in_an_inherited_part(http: Streams, stream: str) -> None:
    """DESIGN 7: "boundaries, `since`, `key`, bootstrap, forks and snapshot alignment answer alike"; prisma 1.4: "first entry (with that key, if
    key=) whose append time >= since\""""
    last = dated(http, stream)
    for skip, since in enumerate(("2020-01-01", "2020-01-02", "2020-01-03")):
        assert http.get(last, since=f"{since}T00:00:00Z").expect(200).json() == DATED[skip:]
    assert http.get(last, since="2020-01-02T00:00:00Z", key="k1").expect(200).json() == ["1.1", "2.1"]
    assert http.get(last, since="2100-01-01T00:00:00Z").expect(200).json() == []


def test_times_of_a_fork_go_on_from_what_it_inherited(http: Streams, stream: str) -> None:
    """DESIGN 7: "`Stream-Timestamp` is clamped to [last append time, now]": the last append of a new fork is the last that it has inherited"""
    last = dated(http, stream)
    for skip, since in enumerate(("2020-02-01", "2020-02-02", "2020-03-01", "2020-03-02", "2020-03-03")):
        assert http.get(last, since=f"{since}T00:00:00Z").expect(200).json() == DATED[2 + skip :]


def test_long_poll_of_an_inherited_part_is_at_once(http: Streams, source: str) -> None:
    """specs/README.md forks: "Live reads: the inherited part is delivered at once; after that only the fork's own appends wake a reader.\""""
    fork = f"{source}-fork"
    http.fork(fork, source).expect(201)
    at, found = offset(0), []
    for _ in range(10):
        answer = http.get(fork, offset=at, live="long-poll").expect(200)
        found += answer.json()
        at = answer.next_offset
        if at == http.tail(fork):
            break
    assert found == list(range(10))


def test_only_own_appends_wake(http: Streams, source: str) -> None:
    """specs/README.md forks: "after that only the fork's own appends wake a reader\""""
    fork = f"{source}-fork"
    tail = http.fork(fork, source).expect(201).next_offset
    rounds = 8

    def write() -> list[object]:
        for number in range(rounds):
            http.append_json(source, "not for the fork")
            http.append_json(fork, number)
        return []

    def poll() -> list[object]:
        at, found = tail, []
        for _ in looks():
            answer = http.get(fork, offset=at, live="long-poll").expect(200, 204)
            at = answer.next_offset
            found += answer.json() if answer.status == 200 else []
            if len(found) >= rounds:
                break
        return found

    assert at_once([write, poll])[1] == list(range(rounds))


def test_an_append_to_the_source_wakes_nobody(http: Streams, source: str) -> None:
    """specs/README.md forks: "only the fork's own appends wake a reader": a long-poll that nothing of its own has ended is an empty 204"""
    fork = f"{source}-fork"
    tail = http.fork(fork, source).expect(201).next_offset
    appended = threading.Event()

    def write() -> int:
        http.append_json(source, "not for the fork")
        appended.set()
        return 0

    def poll() -> int:
        answer = http.get(fork, offset=tail, live="long-poll", timeout="500ms")
        assert answer.next_offset == tail
        return answer.status

    assert at_once([write, poll])[1] == 204
    assert appended.is_set()


def test_events_across_the_boundary(http: Streams, text: tuple[str, list[str]]) -> None:
    """specs/README.md: "Every SSE `event: data` is followed by its own `event: control`, and each data event decodes alone."; forks: "the inherited
    part is delivered at once\""""
    source, _ = text
    fork = f"{source}-fork"
    http.fork(fork, source).expect(201)
    http.append(fork, b"own1")
    with Events(http, fork, offset="-1") as events:
        assert "".join(events.until_offset(http.tail(fork))) == "<000><111><222><333>own1"
        http.append(source, b"elsewhere")
        tail = http.append(fork, b"own2")
        assert "".join(events.until_offset(tail)) == "own2"


def test_events_of_json_decode_alone(http: Streams, source: str) -> None:
    """specs/README.md: "each data event decodes alone\""""
    fork = f"{source}-fork"
    http.fork(fork, source).expect(201)
    tail = http.append_json(fork, 10)
    with Events(http, fork, offset="-1") as events:
        found, kinds = [], []
        while (event := events.next()) is not None:
            kinds.append(event.kind)
            if event.kind == "data":
                found += event.json()
            elif event.json()["streamNextOffset"] == tail:
                break
    assert found == list(range(11))
    assert all(following == "control" for kind, following in itertools.pairwise(kinds) if kind == "data")


def test_reads_of_the_fork_while_the_source_grows(http: Streams, source: str) -> None:
    """specs/README.md forks: "The fork inherits the source strictly before that point": whatever is appended to the source at that moment"""
    http_forks = [f"{source}-{number}" for number in range(6)]

    def write() -> int:
        for number in range(10, 40):
            http.append_json(source, number)
        return 0

    def fork() -> int:
        for path in http_forks:
            tail = http.fork(path, source).expect(201).next_offset
            found = http.read_json(path)
            assert found == list(range(len(found))) and len(found) >= 10
            http.append_json(path, "own")
            assert http.read_json(path, tail) == ["own"]
        return 0

    at_once([write, fork])
    whole = http.read_json(source)
    assert whole == list(range(40))
    for path in http_forks:
        *inherited, own = http.read_json(path)
        assert inherited == whole[: len(inherited)] and own == "own"
