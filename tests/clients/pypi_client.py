"""The PyPI client `durable-streams` as a program: pypi_client.py write|produce URL, tail URL sse|long-poll, create|read URL...

Before us: run.py, which starts us in client_venv.py's environment and reads one JSON object per line (program.py tells their meaning). Writers end
when stdin ends. What the library leaves to its user is done here and nothing more: it repeats nothing by itself, so a tail goes on at the last
offset it was given. It has no producer, but headers that are asked for anew at each request, which are enough for one. Not here: anything of ours,
and any opinion on what was seen."""

import json
import os
import sys
import threading
import time
from typing import Any

import httpx
from durable_streams import DurableStream, DurableStreamError, stream

CONTENT_TYPE = "application/json"
PACE_S = 0.02
BACK_OFF_S = 0.05
TIMEOUT = httpx.Timeout(10, read=45)
"""A silent long-poll is answered after 30 s, a silent SSE response carries a comment every 15 s."""


def say(told: str, **more: object) -> None:
    print(json.dumps({"told": told, **more}), flush=True)


def message(n: int) -> dict[str, object]:
    return {"n": n, "text": f"message {n} \u00e9\U0001f30a"}


def stdin_end() -> threading.Event:
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    return ended


def create(*urls: str) -> None:
    for url in urls:
        DurableStream.create(url, content_type=CONTENT_TYPE).close()
        say("created")


def outcome(error: Exception) -> tuple[str, str]:
    if isinstance(error, DurableStreamError):
        if error.status == 503:
            code = json.loads(error.details)["error"]["code"]
            return "unknown" if code == "outcome_unknown" else "refused", code
        return "unknown" if error.status is not None and error.status >= 500 else "failed", f"{error} {error.details}"
    if isinstance(error, httpx.ConnectError):
        return "refused", repr(error)
    if isinstance(error, httpx.TransportError):
        return "unknown", repr(error)
    return "failed", repr(error)


def attempt(handle: DurableStream, n: int) -> str:
    try:
        handle.append(message(n))
        told, why = "acknowledged", ""
    except Exception as error:
        told, why = outcome(error)
    say(told, n=n, why=why)
    return told


def write(url: str) -> None:
    """Appends without a producer: a refusal is repeated, an unknown outcome never."""
    ended, n = stdin_end(), 0
    with DurableStream(url, content_type=CONTENT_TYPE, timeout=TIMEOUT) as handle:
        while not ended.is_set():
            told = attempt(handle, n)
            n += told != "refused"
            time.sleep(PACE_S if told == "acknowledged" else BACK_OFF_S)
    say("done", count=n)


def produce(url: str) -> None:
    """Exactly once: the same sequence number until it is acknowledged."""
    ended, n, repeated = stdin_end(), 0, 0
    headers = {"Producer-Id": f"pypi-{os.getpid()}", "Producer-Epoch": "0", "Producer-Seq": lambda: str(n)}
    with DurableStream(url, content_type=CONTENT_TYPE, headers=headers, timeout=TIMEOUT) as handle:
        while not ended.is_set():
            while (told := attempt(handle, n)) in ("refused", "unknown"):
                repeated += 1
                time.sleep(BACK_OFF_S)
            n += told == "acknowledged"
            time.sleep(PACE_S)
    say("done", count=n, repeated=repeated)


def tail(url: str, live: Any) -> None:
    offset, is_live = "-1", False
    while True:
        why = "the response ended"
        try:
            if not is_live:  # the library tells of the end only with data, and a live tail may have none yet
                with stream(url, offset=offset, live=False, timeout=TIMEOUT) as response:
                    for event in response.iter_events("json"):
                        offset = seen(event)
                    is_live = response.up_to_date
                if is_live:
                    say("live")
                continue
            with stream(url, offset=offset, live=live, timeout=TIMEOUT) as response:
                for event in response.iter_events("json"):
                    offset = seen(event)
        except (DurableStreamError, httpx.TransportError) as error:
            if isinstance(error, DurableStreamError) and error.status is not None and error.status < 500:
                raise
            why = repr(error)
        say("again", why=why, offset=offset)
        time.sleep(BACK_OFF_S)


def seen(event: Any) -> str:
    if event.data:
        say("seen", ns=[each["n"] for each in event.data], offset=event.next_offset)
    return str(event.next_offset)


def read(*urls: str) -> None:
    for url in urls:
        with stream(url, offset="-1", live=False, timeout=TIMEOUT) as response:
            say("content", ns=[each["n"] for each in response.read_json()])


if __name__ == "__main__":
    try:
        {"create": create, "write": write, "produce": produce, "tail": tail, "read": read}[sys.argv[1]](*sys.argv[2:])
    except Exception as failure:
        say("failed", why=repr(failure))
        raise
