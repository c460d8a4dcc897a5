"""Why Raft did not take a request. Each is definite: nothing was proposed, so trying again (elsewhere) cannot duplicate anything."""


class Refused(Exception):
    """Base of all refusals."""


class NotLeader(Refused):
    """`leader` is the replica to ask instead, 0 if nobody knows."""

    def __init__(self, leader: int) -> None:
        super().__init__(f"not the leader; the leader is replica {leader}" if leader else "no leader is known")
        self.leader = leader


class LeaderMoving(Refused):
    """Leadership is being handed to another replica; proposals wait for it there."""

    def __init__(self, target: int) -> None:
        super().__init__(f"leadership is moving to replica {target}")
        self.target = target


class UncommittedFull(Refused):
    """Too many bytes wait for their commit. The way out is to wait: they commit or the leader steps down."""

    def __init__(self, bytes_now: int, bytes_max: int) -> None:
        super().__init__(f"{bytes_now} uncommitted bytes, at most {bytes_max}")
        self.bytes_now = bytes_now
        self.bytes_max = bytes_max


class ChangeRefused(Refused):
    """A membership change that is not possible now, or never."""


class InvariantBroken(AssertionError):
    """A rule of Raft does not hold here. The group is fenced on this node: no vote, no acknowledgement, until an operator or a rebuild."""
