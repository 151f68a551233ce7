"""Grammars made deterministic: subsets of positions, whose calls push late.

A state of the machine is a set of items (tag, pending, position): a way in which the
text so far may be read. `pending` are calls that are open but not pushed: the
alternatives disagree about them, so they wait, at most four deep. Where all items that
can read the next byte are inside a call, the calls are pushed: the calling state keeps
where each goes on, and the items' tags count these. A value ends with the set of tags
that ended, its label; the calling state goes on where those were called.

An end before a byte counts only if what was called can go on with that byte. So one
byte of look-ahead decides exactly, and a state that could both end and go on at one
byte is a conflict.
"""

import time
from typing import NamedTuple

from decoding.automata import byte_machine, call_sites, positions, pushdown
from decoding.automata.positions import BETWEEN, END
from models.errors import ConstraintError

MOST_PENDING = 4
MOST_STATES = 20_000

Item = tuple[int, tuple[int, ...], int]  # (tag, pending, position)
Frame = tuple[int, int]  # (tag, position behind a call)


class Conflict(ConstraintError):
    """A grammar that one stack cannot decide; `sites`: the calls that were pushed."""

    def __init__(self, message: str, sites: set[call_sites.Site]) -> None:
        super().__init__(message)
        self.sites = sites


class TooLarge(ConstraintError):
    """A grammar that needs too many states or too much time."""


class _Tag(NamedTuple):
    place: int  # in the frames of the calling state
    follow: int  # classes with which the calling state can go on


class _Items(NamedTuple):
    """The items of a state with those that they lead to before a byte is read."""

    readers: dict[int, list[tuple[Item, int]]]  # class -> (item, position behind)
    over: dict[int, int]  # tag -> classes before which it may end


class Subsets:
    """The construction, from the whole text's rule on."""

    def __init__(
        self,
        sites: call_sites.CallSites,
        pushed: set[call_sites.Site],
        seconds: float,
        most: int = MOST_STATES,
    ) -> None:
        self.positions = positions.Positions(sites, pushed)
        self.classes = self.positions.classes
        self.most, self.seconds = most, seconds
        self.deadline = time.monotonic() + seconds
        self.tags: list[_Tag] = []
        self.tag_number: dict[_Tag, int] = {}
        self.tag_frames: dict[int, set[Frame]] = {}
        self.tag_names: dict[int, str] = {}
        self.firsts: dict[Frame, int] = {}
        self.labels: dict[frozenset[int], int] = {}
        # Of each state:
        self.number: dict[frozenset[Item], int] = {}
        self.items: list[_Items] = []
        self.moves: list[dict[int, int]] = []  # class -> state, CALL +, POP +
        self.ends: list[int] = []
        self.frames: list[dict[frozenset[Frame], int]] = []  # -> tag's index
        self.back: list[dict[int, int]] = []
        self.wanted: list[int] = []  # classes that are read there
        self.explored: list[int] = []
        self.live: list[int] = []  # classes at which there is a move
        self.after: list[set[int]] = []  # states of the same value
        self.pops: list[dict[int, int]] = []  # label -> classes
        self.roots: list[set[int]] = []  # states in which its value began
        self.callers: list[set[int]] = []  # of a value that begins here
        self.called: list[dict[frozenset[Item], int]] = []
        self.todo: list[int] = []
        self._run()

    def _run(self) -> None:
        root = self.tag(0, 1 << self.classes.end, set(), "the text")
        self.label(frozenset([0]))
        self.start = self.state(frozenset([(root, (), self.positions.start(0))]))
        self.add_root(self.start, {self.start})
        self.want(self.start, self.classes.all)
        while self.todo:
            state = self.todo.pop()
            fresh = self.wanted[state] & ~self.explored[state]
            self.explored[state] |= fresh
            self.explore(state, fresh)

    def tag(self, index: int, follow: int, frames: set[Frame], name: str) -> int:
        key = _Tag(index, follow)
        if key not in self.tag_number:
            self.tag_number[key] = len(self.tags)
            self.tags.append(key)
        number = self.tag_number[key]
        self.tag_frames.setdefault(number, set()).update(frames)
        self.tag_names.setdefault(number, name)
        return number

    def label(self, indices: frozenset[int]) -> int:
        if indices not in self.labels:
            if len(self.labels) == byte_machine.MOST_LABELS:
                raise TooLarge(
                    "the grammar's alternatives end together in over "
                    f"{byte_machine.MOST_LABELS} ways: make fewer of them begin alike"
                )
            self.labels[indices] = len(self.labels)
        return self.labels[indices]

    def state(self, kernel: frozenset[Item]) -> int:
        """Return the number of the state of the items `kernel`."""
        if kernel in self.number:
            return self.number[kernel]
        state = len(self.items)
        if state >= self.most:
            raise TooLarge(
                f"the grammar needs more than {self.most} states: make its "
                "alternatives fewer or tell them apart earlier"
            )
        if time.monotonic() > self.deadline:
            raise TooLarge(
                f"the grammar needs more than {self.seconds:.1f} seconds and {state} "
                "states: make its alternatives fewer or tell them apart earlier"
            )
        self.number[kernel] = state
        items = self.reached(kernel)
        self.items.append(items)
        self.moves.append({})
        self.frames.append({})
        self.back.append({})
        self.wanted.append(0)
        self.explored.append(0)
        self.live.append(0)
        self.after.append(set())
        self.pops.append({})
        self.roots.append(set())
        self.callers.append(set())
        self.called.append({})
        is_over = not items.readers and all(
            mask == self.classes.all for mask in items.over.values()
        )
        ends = -1
        if is_over and items.over:
            ends = self.label(frozenset(self.tags[t].place for t in items.over))
            self.pops[state][ends] = self.classes.all
        else:
            for kind in items.readers:
                self.live[state] |= 1 << kind
            for tag, mask in items.over.items():
                self.live[state] |= mask & self.tags[tag].follow
        self.ends.append(ends)
        return state

    def reached(self, kernel: frozenset[Item]) -> _Items:
        """Follow calls and ends from the items, up to the next byte."""
        step, members = self.positions.step, self.classes.members
        lexed = self.positions.lexed(p for _, _, p in kernel)
        readers: dict[int, list[tuple[Item, int]]] = {}
        over: dict[int, int] = {}
        open_at: dict[Item, int] = {}
        todo = [(item, self.classes.all) for item in sorted(kernel)]
        while todo:
            item, mask = todo.pop()
            mask &= ~open_at.get(item, 0)
            if not mask:
                continue
            open_at[item] = open_at.get(item, 0) | mask
            tag, pending, position = item
            can = step(position, lexed if item in kernel else BETWEEN)
            for some, after in can.reads:
                for kind in members(some & mask):
                    readers.setdefault(kind, []).append((item, after))
            for some, behind, callee in can.pushes:
                if some & mask:
                    todo.append(((tag, (*pending, behind), callee), some & mask))
            if ending := can.over & mask:
                if pending:
                    todo.append(((tag, pending[:-1], pending[-1]), ending))
                else:
                    over[tag] = over.get(tag, 0) | ending
        return _Items(readers, over)

    def first(self, frame: Frame) -> int:
        """Return the classes with which the text goes on behind a call."""
        if frame not in self.firsts:
            tag, behind = frame
            items = self.reached(frozenset([(tag, (), behind)]))
            mask = 0
            for kind in items.readers:
                mask |= 1 << kind
            for ended, some in items.over.items():
                mask |= some & self.tags[ended].follow
            self.firsts[frame] = mask
        return self.firsts[frame]

    def want(self, state: int, classes: int) -> None:
        classes &= self.live[state]
        if classes & ~self.wanted[state]:
            self.wanted[state] |= classes
            self.todo.append(state)

    def explore(self, state: int, classes: int) -> None:
        """Find the moves of `state` at classes of bytes; those read alike together."""
        items = self.items[state]
        alike: dict[tuple, list[int]] = {}
        for kind in self.classes.members(classes):
            over = tuple(
                tag
                for tag, mask in items.over.items()
                if mask & self.tags[tag].follow & 1 << kind
            )
            readers = tuple(items.readers.get(kind, ()))
            alike.setdefault((readers, over), []).append(kind)
        for (readers, over), kinds in alike.items():
            if readers and over:
                raise self.conflict(kinds[0], over[0], readers[0][0])
            mask = sum(1 << kind for kind in kinds)
            if over:
                label = self.label(frozenset(self.tags[t].place for t in over))
                move = byte_machine.POP + label
                self.pop(state, label, mask)
            else:
                move = self.move(state, readers, mask, kinds[0])
            self.moves[state].update(dict.fromkeys(kinds, move))

    def move(
        self, state: int, readers: tuple[tuple[Item, int], ...], mask: int, kind: int
    ) -> int:
        """Return the state behind a byte of `mask`, or the call that reads it."""
        inside = frozenset(item for item, _ in readers)
        if all(pending for _, pending, _ in inside):
            callee = self.push(state, inside)
            self.want(callee, mask)
            return byte_machine.CALL + callee
        deepest = max(inside, key=lambda item: len(item[1]))
        if len(deepest[1]) > MOST_PENDING:
            flattest = min(inside, key=lambda item: len(item[1]))
            raise self.disagreement(kind, deepest, flattest)
        after = self.state(
            frozenset((t, pending, to) for (t, pending, _), to in readers)
        )
        self.link(state, after, self.classes.all)
        return after

    def link(self, state: int, after: int, classes: int) -> None:
        """Let the value of `state` go on in `after`, which reads `classes`."""
        self.after[state].add(after)
        self.add_root(after, self.roots[state])
        self.want(after, classes)

    def push(self, state: int, inside: frozenset[Item]) -> int:
        """Push the outermost pending call of the items; return the callee's state."""
        if inside in self.called[state]:
            return self.called[state][inside]
        callees: dict[Frame, set[tuple]] = {}
        for tag, pending, position in inside:
            callees.setdefault((tag, pending[0]), set()).add((pending[1:], position))
        # Calls of the same values end together: one tag.
        frames: dict[frozenset[tuple], set[Frame]] = {}
        for frame, items in callees.items():
            frames.setdefault(frozenset(items), set()).add(frame)
        kernel: set[Item] = set()
        for value, group in sorted(frames.items(), key=lambda pair: sorted(pair[0])):
            known = self.frames[state]
            index = known.setdefault(frozenset(group), len(known))
            follow = 0
            for frame in group:
                follow |= self.first(frame)
            tag = self.tag(index, follow, group, self.positions.name(min(value)[1]))
            kernel |= {(tag, pending, position) for pending, position in value}
        callee = self.state(frozenset(kernel))
        self.called[state][inside] = callee
        self.callers[callee].add(state)
        self.add_root(callee, {callee})
        for label, classes in self.ended(callee).items():
            self.resume(state, label, classes)
        return callee

    def ended(self, root: int) -> dict[int, int]:
        """Return the labels, and the classes of bytes, with which a value ends."""
        labels: dict[int, int] = {}
        seen, todo = {root}, [root]
        while todo:
            state = todo.pop()
            for label, classes in self.pops[state].items():
                labels[label] = labels.get(label, 0) | classes
            fresh = self.after[state] - seen
            seen |= fresh
            todo += fresh
        return labels

    def pop(self, state: int, label: int, classes: int) -> None:
        self.pops[state][label] = self.pops[state].get(label, 0) | classes
        for root in sorted(self.roots[state]):
            for caller in sorted(self.callers[root]):
                self.resume(caller, label, classes)

    def add_root(self, state: int, roots: set[int]) -> None:
        todo = [(state, roots)]
        while todo:
            at, more = todo.pop()
            fresh = more - self.roots[at]
            if not fresh:
                continue
            self.roots[at] |= fresh
            todo += [(after, fresh) for after in sorted(self.after[at])]
            for label, classes in list(self.pops[at].items()):
                for root in sorted(fresh):
                    for caller in sorted(self.callers[root]):
                        self.resume(caller, label, classes)

    def resume(self, caller: int, label: int, classes: int) -> None:
        """Let `caller` go on behind a value that ended with `label`."""
        if label not in self.back[caller]:
            indices = next(i for i, number in self.labels.items() if number == label)
            kernel = frozenset(
                (tag, (), behind)
                for group, index in self.frames[caller].items()
                if index in indices
                for tag, behind in group
            )
            self.back[caller][label] = self.state(kernel)
        self.link(caller, self.back[caller][label], classes)

    def shown(self, kind: int) -> str:
        if kind == self.classes.end:
            return "the end of the text"
        byte = self.classes.bytes[kind][0]
        return f"byte {bytes([byte])!r}"[:-1].replace("b'", "'", 1) + "'"

    def conflict(self, kind: int, over: int, item: Item) -> Conflict:
        sites: set[call_sites.Site] = set()
        for _, behind in self.tag_frames[over]:
            sites |= self.positions.sites_behind.get(behind, set())
        return Conflict(
            f"at {self.shown(kind)} a value of {self.tag_names[over]!r} may end, or go "
            f"on in {self.positions.name(item[2])!r}: one byte must tell them apart",
            sites,
        )

    def disagreement(self, kind: int, deepest: Item, flattest: Item) -> Conflict:
        names = [self.positions.name(p) for p in (deepest[2], flattest[2])]
        sites: set[call_sites.Site] = set()
        for behind in deepest[1]:
            if behind != END:
                sites |= self.positions.sites_behind[behind]
        return Conflict(
            f"at {self.shown(kind)} the text may be in {names[0]!r} or {names[1]!r}, "
            f"which are over {MOST_PENDING} calls apart: tell them apart earlier",
            sites,
        )

    def builder(self) -> tuple[pushdown.Builder, int]:
        """Return the states as those of a machine, and the first one."""
        built = pushdown.Builder(len(self.items) + byte_machine.STRING + 1)
        shift = byte_machine.STRING

        def moved(to: int) -> int:
            return to if to & byte_machine.POP else to + shift

        for state, row in enumerate(self.moves):
            final = row.get(self.classes.end, 0)
            label = final - byte_machine.POP if final & byte_machine.POP else -1
            built.state(self.ends[state], label)
            for kind, to in row.items():
                if kind != self.classes.end:
                    built.read(state + shift, self.classes.bytes[kind], moved(to))
            built.back[-1] = {
                label: to + shift for label, to in self.back[state].items()
            }
        return built, self.start + shift
