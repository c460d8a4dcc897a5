"""Majority arithmetic, for one voter set and for two at once (joint consensus). Pure counting; nobody here knows roles or logs."""

from collections.abc import Callable, Collection


def majority(voters: Collection[int]) -> int:
    return len(voters) // 2 + 1


def reached(voters: tuple[int, ...], value_of: Callable[[int], int]) -> int:
    """The highest value that a majority of `voters` has reached."""
    if len(voters) == 1:
        return value_of(voters[0])
    values = sorted([value_of(voter) for voter in voters], reverse=True)
    return values[len(voters) // 2]


def reached_jointly(voters: tuple[int, ...], old_voters: tuple[int, ...], value_of: Callable[[int], int]) -> int:
    """The highest value that a majority of each set has reached. `old_voters` is empty outside a joint change."""
    value = reached(voters, value_of)
    return min(value, reached(old_voters, value_of)) if old_voters else value


def won(voters: tuple[int, ...], old_voters: tuple[int, ...], agreed: Collection[int]) -> bool:
    """Did a majority of each set agree?"""
    return bool(voters) and all(sum(voter in agreed for voter in one) >= majority(one) for one in (voters, old_voters) if one)


def lost(voters: tuple[int, ...], old_voters: tuple[int, ...], refused: Collection[int]) -> bool:
    """Can no majority be had any more?"""
    return any(sum(voter not in refused for voter in one) < majority(one) for one in (voters, old_voters) if one)
