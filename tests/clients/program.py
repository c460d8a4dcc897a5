"""One client program while it runs: what it said so far, and its end. run.py starts one for each role of each client.

A program says one JSON object per line, `told` names its kind:
  created, live        the stream exists; the tail has seen everything there was and waits for more
  seen, content        the messages `ns`, as a tail was given them up to `offset`, or as a whole read found them
  again                a tail's response ended (`why`); it goes on from `offset`
  acknowledged         message `n` was answered with success
  refused              message `n` was definitely not appended; the writer tries the same again
  unknown              nobody knows whether message `n` was appended; a writer without a producer goes on with the next
  handed               message `n` was handed to a producer that works in the background
  done                 a writer's end: `count` messages, all settled
  failed               what must not happen happened (`why`)
Not here: judgement (verdict.py)."""

import itertools
import json
import os
import subprocess
import tempfile
import threading
import time
from types import TracebackType
from typing import Any

END_TIMEOUT_S = 5.0
# A proxy of the machine is for its way out; the nodes are on the loopback.
NO_PROXY = {"NO_PROXY": "*", "no_proxy": "*"}


class Program:
    def __init__(self, argv: list[str]) -> None:
        self.argv = argv
        self.said: list[tuple[float, dict[str, Any]]] = []
        """When, and what. Grows while the program runs; read by the main thread."""
        self._errors = tempfile.TemporaryFile("w+b")  # noqa: SIM115  # until the program's end
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | NO_PROXY
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, encoding="utf-8", env=env)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                said = {"told": "failed", "why": f"said {line[:200]!r}"}
            self.said.append((time.monotonic(), said))

    def ask_to_end(self) -> None:
        """A writer finishes what it has begun and says `done`."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def is_over(self) -> bool:
        return self._process.poll() is not None and not self._listener.is_alive()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._listener.join(END_TIMEOUT_S)

    # --- what it said ----------------------------------------------------------------------------------------------------------------

    def all(self, *kinds: str) -> list[dict[str, Any]]:
        return [said for _, said in list(self.said) if said["told"] in kinds]

    def messages(self) -> list[int]:
        """Everything that a tail or a read was given, in order."""
        return [n for said in self.all("seen", "content") for n in said["ns"]]

    def problems(self) -> list[str]:
        found = [str(said["why"]) for said in self.all("failed")]
        if not found and self._process.poll() not in (None, 0):
            self._errors.seek(0)
            found = [f"ended with {self._process.returncode}: {self._errors.read()[-500:].decode(errors='replace')}"]
        return found

    def longest_silence_s(self) -> float:
        times = [when for when, said in list(self.said) if said["told"] == "seen"]
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)
