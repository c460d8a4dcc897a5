"""curl as a client: curl_client.py write|produce URL, tail URL sse|long-poll, create|read URL... Every request is one curl process.

Before us: run.py, which starts us and reads one JSON object per line (program.py tells their meaning). Writers end when stdin ends. This is what
a shell script could do: curl's exit code and the status say what happened, the headers or the control event say where to go on. The stream is
text, a line per message, where the other clients write JSON. Not here: any HTTP of Python's, and any opinion on what was seen."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from typing import NamedTuple, NoReturn

CONTENT_TYPE = "text/plain"
PACE_S = 0.02
BACK_OFF_S = 0.05
CONNECT_FAILED = 7
"""curl's exit code when nobody accepted the connection: nothing was sent."""
QUICK = ("--connect-timeout", "2", "--max-time", "10")
HEAD = re.compile(rb"HTTP/1\.1 (\d+)[^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")
PERSISTENT = ("--retry", "20", "--retry-all-errors", "--retry-delay", "1", "--retry-max-time", "30")


class Answer(NamedTuple):
    exit_code: int
    status: int
    headers: dict[str, str]
    body: bytes


def say(told: str, **more: object) -> None:
    print(json.dumps({"told": told, **more}), flush=True)


def curl(url: str, *options: str) -> Answer:
    done = subprocess.run(["curl", "--silent", "--include", *options, url], stdout=subprocess.PIPE, check=False)
    return last_answer(done.returncode, done.stdout)


def last_answer(exit_code: int, output: bytes) -> Answer:
    """A request that curl repeated has printed the answers before the last one too, each with its head and `Content-Length` bytes."""
    status, headers, body = 0, dict[str, str](), output
    while (head := HEAD.match(body)) is not None:
        status = int(head[1])
        fields = (line.partition(":") for line in head[2].decode("ascii").split("\r\n") if line)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        body = body[head.end() :]
        after = body[int(headers.get("content-length", "0")) :]
        if not after.startswith(b"HTTP/1.1 "):
            break
        body = after
    return Answer(exit_code, status, headers, body)


def stdin_end() -> threading.Event:
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    return ended


def create(*urls: str) -> None:
    for url, expected in zip(urls, (201, 200), strict=True):
        answer = curl(url, *QUICK, "--request", "PUT", "--header", f"Content-Type: {CONTENT_TYPE}")
        if answer.status != expected:
            raise RuntimeError(answer)
        say("created")


def append(url: str, n: int, *options: str) -> Answer:
    body = f"{n}: message {n} \u00e9\U0001f30a\n"
    return curl(url, *QUICK, "--request", "POST", "--header", f"Content-Type: {CONTENT_TYPE}", "--data-binary", body, *options)


def outcome(answer: Answer) -> tuple[str, str]:
    if answer.exit_code == CONNECT_FAILED:
        return "refused", "connection refused"
    if answer.exit_code != 0 or answer.status == 0:
        return "unknown", f"curl ended with {answer.exit_code}"
    if answer.status in (200, 204):
        return "acknowledged", ""
    why = f"{answer.status} {answer.body.decode(errors='replace')}"
    if answer.status == 503:
        return ("unknown" if "outcome_unknown" in why else "refused"), why
    return "unknown" if answer.status >= 500 else "failed", why


def write(url: str) -> None:
    """Appends without a producer: a refusal is repeated, an unknown outcome never."""
    ended, n = stdin_end(), 0
    while not ended.is_set():
        told, why = outcome(append(url, n))
        say(told, n=n, why=why)
        n += told != "refused"
        time.sleep(PACE_S if told == "acknowledged" else BACK_OFF_S)
    say("done", count=n)


def produce(url: str) -> None:
    """Exactly once: curl itself repeats a request that failed, with the same producer headers."""
    ended, n = stdin_end(), 0
    producer = ("--header", f"Producer-Id: curl-{os.getpid()}", "--header", "Producer-Epoch: 0")
    while not ended.is_set():
        told, why = outcome(append(url, n, *PERSISTENT, *producer, "--header", f"Producer-Seq: {n}"))
        say("failed" if told != "acknowledged" else told, n=n, why=why)
        n += 1
        time.sleep(PACE_S)
    say("done", count=n)


def numbers(text: str) -> list[int]:
    if text and not text.endswith("\n"):
        raise RuntimeError(f"a message was cut: {text!r}")
    return [int(line.partition(":")[0]) for line in text.splitlines()]


def tail(url: str, live: str) -> NoReturn:
    offset = "-1"
    while True:
        answer = curl(f"{url}?offset={offset}", *QUICK)
        if answer.exit_code == 0 and answer.status == 200:
            offset = seen(answer.body.decode(), answer.headers["stream-next-offset"])
            if answer.headers.get("stream-up-to-date") == "true":
                break
        else:
            time.sleep(BACK_OFF_S)
    say("live")
    while True:
        offset, why = (tail_sse if live == "sse" else tail_long_poll)(url, offset)
        if why:
            say("again", why=why, offset=offset)
            time.sleep(BACK_OFF_S)


def seen(text: str, offset: str) -> str:
    if text:
        say("seen", ns=numbers(text), offset=offset)
    return offset


def tail_long_poll(url: str, offset: str) -> tuple[str, str]:
    """One long-poll: the offset to go on from, and why it was not answered."""
    answer = curl(f"{url}?offset={offset}&live=long-poll", "--connect-timeout", "2", "--max-time", "45")
    if 400 <= answer.status < 500:
        raise RuntimeError(answer)
    if answer.exit_code != 0 or answer.status not in (200, 204):
        return offset, f"curl ended with {answer.exit_code}, status {answer.status}"
    return seen(answer.body.decode() if answer.status == 200 else "", answer.headers["stream-next-offset"]), ""


def tail_sse(url: str, offset: str) -> tuple[str, str]:
    """One SSE response until its end. What came without its control event is not taken: it will come again."""
    command = ["curl", "--silent", "--no-buffer", "--fail", "--connect-timeout", "2", f"{url}?offset={offset}&live=sse"]
    kind, data, held = "", [], ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stdout is not None
        for line in process.stdout:
            line = line.removesuffix("\n")
            if line.startswith("event:"):
                kind = line[6:].removeprefix(" ")
            elif line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif not line:
                if kind == "data":
                    held = "\n".join(data)
                elif kind == "control":
                    offset, held = seen(held, json.loads("\n".join(data))["streamNextOffset"]), ""
                kind, data = "", []
    return offset, f"curl ended with {process.returncode}"


def read(*urls: str) -> None:
    for url in urls:
        say("content", ns=numbers(whole(url)))


def whole(url: str) -> str:
    text, offset = "", "-1"
    while True:
        answer = curl(f"{url}?offset={offset}", *QUICK, *PERSISTENT)
        if answer.exit_code != 0 or answer.status != 200:
            raise RuntimeError(answer)
        text, offset = text + answer.body.decode(), answer.headers["stream-next-offset"]
        if answer.headers.get("stream-up-to-date") == "true":
            return text


if __name__ == "__main__":
    try:
        {"create": create, "write": write, "produce": produce, "tail": tail, "read": read}[sys.argv[1]](*sys.argv[2:])
    except Exception as failure:
        say("failed", why=repr(failure))
        raise
