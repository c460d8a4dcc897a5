"""Several hands at the same time: each runs its function in a thread of its own, all let go by one barrier."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def at_once(actions: Sequence[Callable[[], T]]) -> list[T]:
    """What each gave, in their order; the first error of any is raised."""
    barrier = threading.Barrier(len(actions))

    def run(action: Callable[[], T]) -> T:
        barrier.wait()
        return action()

    with ThreadPoolExecutor(len(actions)) as pool:
        return [future.result() for future in [pool.submit(run, action) for action in actions]]
