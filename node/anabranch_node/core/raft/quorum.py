"""Majority arithmetic, for one voter set and for two at once (joint consensus). Pure counting; nobody here knows roles or logs."""

from collections.abc import Collection


def majority(voters: Collection[int]) -> int:
    return len(voters) // 2 + 1


def reached(values: list[int], old_values: list[int]) -> int:
    """The highest value that a majority of the voters has reached, given each one's; in a joint change a majority of the old voters, too."""
    values.sort()
    value = values[(len(values) - 1) // 2]
    if old_values:
        old_values.sort()
        value = min(value, old_values[(len(old_values) - 1) // 2])
    return value


def won(voters: tuple[int, ...], old_voters: tuple[int, ...], agreed: Collection[int]) -> bool:
    """Did a majority of each set agree?"""
    return bool(voters) and all(sum(voter in agreed for voter in one) >= majority(one) for one in (voters, old_voters) if one)


def lost(voters: tuple[int, ...], old_voters: tuple[int, ...], refused: Collection[int]) -> bool:
    """Can no majority be had any more?"""
    return any(sum(voter not in refused for voter in one) < majority(one) for one in (voters, old_voters) if one)
