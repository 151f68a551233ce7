"""Time of a program's collectives on the links of a TPU slice, from below.

A group of devices sends over the links between its own chips. The chip that has the
fewest of them bounds the group: in a block of 2 x 4 chips a corner has two of its four
links. A group without neighbours sends over one link, through other chips. Not counted:
the hops through chips in between, the time to start, and groups that share a link.
"""

from collections.abc import Collection, Iterable, Sequence

from kernels.chips import Chip
from kernels.hlo import Collective

Coordinates = Sequence[tuple[int, ...]]  # of each device, in the program's order


def seconds(
    collectives: Iterable[Collective], chip: Chip, at: Coordinates
) -> tuple[float, float]:
    """Return the least time of the collectives that wait, and of those that do not.

    Args:
        collectives: of a program.
        chip: of the slice; without a known interconnect all is 0.
        at: coordinates of the program's devices.
    """
    waiting = running = 0.0
    if not chip.interconnect:
        return waiting, running
    for one in collectives:
        used = min((links(group, chip, at) for group in one.groups), default=1)
        time = one.sent / (chip.interconnect * used / chip.links)
        waiting, running = waiting + time * one.waits, running + time * (not one.waits)
    return waiting, running


def links(group: Collection[int], chip: Chip, at: Coordinates) -> int:
    """Return how many links each chip of a group has to others of it, at least 1."""
    extents = [max(axis) + 1 for axis in zip(*at)]
    members = {tuple(at[device]) for device in group}
    fewest = min(len(members & neighbours(place, extents, chip)) for place in members)
    return max(fewest, 1)


def neighbours(
    place: tuple[int, ...], extents: Sequence[int], chip: Chip
) -> set[tuple[int, ...]]:
    """Return the coordinates of the chips to which a chip of a slice has links."""
    found = set()
    for axis, extent in enumerate(extents):
        for step in (-1, 1):
            to = place[axis] + step
            if wraps(axis, extents, chip):
                to %= extent
            if 0 <= to < extent and to != place[axis]:
                found.add((*place[:axis], to, *place[axis + 1 :]))
    return found


def wraps(axis: int, extents: Sequence[int], chip: Chip) -> bool:
    """Test whether the links of an axis close a ring.

    A 3D slice is a torus where every axis is a multiple of 4 chips, a 2D slice along an
    axis as long as the Pod's, 16 (Google Cloud's pages of the chips).
    """
    if chip.links == 6:
        return all(extent % 4 == 0 for extent in extents)
    return extents[axis] == 16
