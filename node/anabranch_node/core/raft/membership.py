"""Who belongs to a group, and which steps from one configuration to the next are legal.

Voters change only through a joint configuration (both sets must agree), so that a swap of old and new voter is one change and no step
has an unsafe middle. Learners receive everything and count for nothing. A configuration holds from the moment it is in the log."""

import struct
from typing import NamedTuple

from anabranch_node.core.raft.errors import ChangeRefused

_COUNTS = struct.Struct("<BBB")
MEMBERS_MAX = 31
"""Far above any replication factor; a configuration is sent, logged and counted often."""


class Configuration(NamedTuple):
    voters: tuple[int, ...] = ()
    old_voters: tuple[int, ...] = ()  # not empty: joint, both sets must agree
    learners: tuple[int, ...] = ()

    @property
    def joint(self) -> bool:
        return bool(self.old_voters)

    def is_voter(self, replica: int) -> bool:
        return replica in self.voters or replica in self.old_voters

    def members(self) -> tuple[int, ...]:
        """Everyone who is sent the log, each once, in a fixed order."""
        return tuple(sorted({*self.voters, *self.old_voters, *self.learners}))

    def all_voters(self) -> tuple[int, ...]:
        return tuple(sorted({*self.voters, *self.old_voters}))


def encode(config: Configuration) -> bytes:
    ids = config.voters + config.old_voters + config.learners
    return _COUNTS.pack(len(config.voters), len(config.old_voters), len(config.learners)) + struct.pack(f"<{len(ids)}Q", *ids)


def decode(data: bytes) -> Configuration:
    voters, old_voters, learners = _COUNTS.unpack_from(data)
    total = voters + old_voters + learners
    if len(data) != _COUNTS.size + 8 * total:
        raise ValueError(f"a configuration of {total} replicas takes {_COUNTS.size + 8 * total} bytes, not {len(data)}")
    ids = struct.unpack_from(f"<{total}Q", data, _COUNTS.size)
    return Configuration(ids[:voters], ids[voters : voters + old_voters], ids[voters + old_voters :])


def enter(current: Configuration, voters: tuple[int, ...], learners: tuple[int, ...]) -> Configuration:
    """The next configuration on the way to (voters, learners): joint if voters change, final at once if only learners do."""
    if current.joint:
        raise ChangeRefused("a joint change is under way")
    if not voters:
        raise ChangeRefused("a group without voters can never decide anything again")
    if len(set(voters)) != len(voters) or len(set(learners)) != len(learners) or set(voters) & set(learners):
        raise ChangeRefused(f"a replica is named twice: voters {voters}, learners {learners}")
    if not all(0 < replica < 1 << 64 for replica in voters + learners):
        raise ChangeRefused("replica ids are positive and fit 64 bits; 0 means nobody")
    if len(voters) + len(learners) > MEMBERS_MAX:
        raise ChangeRefused(f"{len(voters) + len(learners)} members, at most {MEMBERS_MAX}")
    target = Configuration(tuple(sorted(voters)), (), tuple(sorted(learners)))
    if target == current:
        raise ChangeRefused("that is the configuration already")
    return target._replace(old_voters=current.voters) if target.voters != current.voters else target


def leave(joint: Configuration) -> Configuration:
    return joint._replace(old_voters=())
