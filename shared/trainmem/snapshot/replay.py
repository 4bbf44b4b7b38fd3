"""Events played once: every block with its true size, when it came and when it went."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter

from trainmem.allocator import AllocatorSettings
from trainmem.snapshot.extents import Extents, largest_rest_bytes
from trainmem.snapshot.model import Action, BlockState, Snapshot, Trace
from trainmem.snapshot.reserved import reserved_at_start, segment_events
from trainmem.snapshot.rests import add_rests
from trainmem.snapshot.settings import settings_of

__all__ = ["BEFORE", "Blocks", "Replay", "replay_device"]

_MOST_FAILURES = 20
_RANGES_KEPT = 200

BEFORE = -1
"""Start of a block that existed before the first event."""


@dataclass(slots=True)
class Blocks:
    """One row a block: it is allocated from event ``start`` on, up to but not including event ``end``."""

    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    """Number of events for a block that was never freed."""

    requested: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    """What it counts for in the allocated bytes: the request rounded up, and its unsplit rest."""

    address: list[int] = field(default_factory=list)
    stack: list[int] = field(default_factory=list)
    """Where it was allocated; -1 when that is unknown."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(slots=True)
class Replay:
    """What the events of one device add up to."""

    blocks: Blocks
    events: int
    allocated: list[int] | None
    """Allocated bytes after 0, 1, 2, ... events; ``None`` when sizes were put right afterwards."""

    reserved_at_start_bytes: int
    segment_events: list[int]
    is_exact: bool
    """False when some sizes are requests rounded to 512 bytes, because addresses and segments do not agree.
    """

    unmatched_frees: int
    """Frees of blocks whose allocation came before the recording, or was lost."""

    unfreed_before: int
    """Blocks from before the recording that were still there at its end."""

    missed_frees: int
    """Allocations at an address that was still taken: their free was lost."""

    double_frees: int
    out_of_memory: list[int]
    free_at_failure: list[list[tuple[int, int]]]
    """The largest free ranges (address, size) at each out-of-memory event; empty when they are not known."""

    pending_at_end: int
    """Blocks freed by the program that another stream still held."""


def replay_device(snapshot: Snapshot, trace: Trace) -> Replay:
    """Play the events of one device, starting from what must have been there before them."""
    is_host = trace.kind == "host"
    settings = settings_of(snapshot)
    changes = segment_events(trace)
    before = reserved_at_start(trace, changes, snapshot.segments, is_host=is_host)
    at_end = _blocks_at_end(snapshot, trace.device, is_host=is_host)
    player = _Player(trace, settings, len(snapshot.stacks))
    player.seed(at_end, is_complete=before.total_bytes == 0 and bool(changes))
    follows = bool(changes) or bool(before.segments) or bool(before.mapped)
    if follows and not is_host:
        for address, size in before.segments:
            player.extents.add_segment(address, size)
        for address, size in before.mapped:
            player.extents.map(address, size)
        player.measure_seeds(sorted([*before.segments, *before.mapped]))
        player.extents.occupy(player.occupied_at_start())
    player.play()
    wrong = player.settle(at_end)
    return Replay(
        blocks=player.blocks,
        events=len(trace),
        allocated=player.levels if wrong == 0 else None,
        reserved_at_start_bytes=before.total_bytes,
        segment_events=changes,
        is_exact=follows
        and not is_host
        and player.unplaced == 0
        and player.uncertain_seeds == 0
        and wrong == 0,
        unmatched_frees=player.unmatched_frees,
        unfreed_before=player.unfreed_before,
        missed_frees=player.missed_frees,
        double_frees=player.double_frees,
        out_of_memory=player.out_of_memory,
        free_at_failure=player.free_at_failure,
        pending_at_end=player.count_pending(),
    )


@dataclass(frozen=True, slots=True)
class _EndBlock:
    size: int
    requested: int
    stack: int
    is_allocated: bool


def _blocks_at_end(snapshot: Snapshot, device: int, *, is_host: bool) -> dict[int, _EndBlock]:
    """Active blocks of the segments by address."""
    segments, blocks = snapshot.segments, snapshot.end_blocks
    wanted = [
        of == device and bool(host) is is_host
        for of, host in zip(segments.device, segments.is_host, strict=True)
    ]
    return {
        address: _EndBlock(size, requested, stack, state == BlockState.ALLOCATED)
        for segment, address, size, requested, state, stack in zip(
            blocks.segment,
            blocks.address,
            blocks.size,
            blocks.requested,
            blocks.state,
            blocks.stack,
            strict=True,
        )
        if state != BlockState.INACTIVE and wanted[segment]
    }


class _Player:
    """The state of the replay: live blocks by address, and the free ranges around them."""

    def __init__(self, trace: Trace, settings: AllocatorSettings, stacks: int) -> None:
        self.trace = trace
        self.stacks = stacks
        self.settings = settings
        self.blocks = Blocks()
        self.extents = Extents()
        self.live: dict[int, int] = {}
        """Blocks that have their address: allocated, or freed by the program and not yet completed."""

        self.freed_at: dict[int, int] = {}
        """Which event frees a seeded block."""

        self.out_of_memory: list[int] = []
        self.free_at_failure: list[list[tuple[int, int]]] = []
        self.levels: list[int] = []
        self.unplaced = 0
        self.uncertain_seeds = 0
        self.unmatched_frees = 0
        self.unfreed_before = 0
        self.missed_frees = 0
        self.double_frees = 0

    def seed(self, at_end: dict[int, _EndBlock], *, is_complete: bool) -> None:
        """Find the blocks that were there before the first event: freed without an allocation, or never
        freed.
        """
        if is_complete:
            return
        trace = self.trace
        seen: set[int] = set()
        for event, (action, address, size) in enumerate(
            zip(trace.action, trace.address, trace.size, strict=True)
        ):
            if action == Action.ALLOC:
                seen.add(address)
            elif (
                action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.FREE) and address not in seen
            ):
                seen.add(address)
                self.live[address] = self._add(size, self.settings.rounded(size), address, -1)
                # A completion alone: the program had freed the block before the first event.
                if action == Action.FREE_COMPLETED:
                    self.blocks.end[-1] = BEFORE
                else:
                    self.freed_at[len(self.blocks) - 1] = event
                    self.unmatched_frees += 1
        for address, block in at_end.items():
            if address not in seen:
                self.live[address] = self._add(block.requested, block.size, address, block.stack)
                if block.is_allocated:
                    self.unfreed_before += 1
                else:
                    self.blocks.end[-1] = BEFORE

    def measure_seeds(self, segments: list[tuple[int, int]]) -> None:
        """Give the seeded blocks the rests that their surroundings show."""
        blocks = self.blocks
        ends = [self.freed_at.get(number, end) for number, end in enumerate(blocks.end)]
        uncertain = add_rests(
            blocks.address,
            blocks.size,
            ends,
            trace=self.trace,
            segments=segments,
            settings=self.settings,
        )
        self.uncertain_seeds = uncertain

    def occupied_at_start(self) -> list[tuple[int, int]]:
        """Address and size of the blocks seeded so far."""
        return list(zip(self.blocks.address, self.blocks.size, strict=True))

    def play(self) -> None:
        """Every event in order."""
        trace, settings, extents = self.trace, self.settings, self.extents
        blocks, live = self.blocks, self.live
        ends, sizes = blocks.end, blocks.size
        add_start, add_end, add_size = blocks.start.append, ends.append, sizes.append
        add_request, add_address = blocks.requested.append, blocks.address.append
        number = len(blocks)
        size_at, start_of_end, walls = extents.size_at, extents.start_of_end, extents.walls
        events = len(trace)
        powers = any(divisions > 1 for divisions in settings.roundup_power2_divisions)
        small_rest = largest_rest_bytes(1, settings)
        large_rest = largest_rest_bytes((1 << 20) + 512, settings)
        unsplittable = settings.max_split_size_bytes or 1 << 64
        follows = (
            bool(size_at)
            or bool(trace.action.count(Action.SEGMENT_ALLOC))
            or bool(trace.action.count(Action.SEGMENT_MAP))
        )
        unplaced = 0
        now = sum(size for size, end in zip(sizes, ends, strict=True) if end != BEFORE)
        levels = [now]
        record = levels.append

        for event, (action, address, size) in enumerate(
            zip(trace.action, trace.address, trace.size, strict=True)
        ):
            if action == 1:  # ALLOC
                block = settings.rounded(size) if powers else (size + 511) & -512 or 512
                room = size_at.get(address, 0)
                rest = room - block
                if rest > (small_rest if block <= 1048576 else large_rest) and block < unsplittable:
                    del size_at[address]
                    size_at[address + block] = rest
                    start_of_end[address + room] = address + block
                elif rest >= 0:
                    del size_at[address]
                    # nothing ends there where events out of order gave the same bytes back twice
                    if start_of_end.pop(address + room, None) is None:
                        unplaced += 1
                    block = room
                elif follows:
                    unplaced += 1
                lost = live.get(address)
                if lost is not None and ends[lost] == events:
                    ends[lost] = event
                    now -= sizes[lost]
                    self.missed_frees += 1
                live[address] = number
                number += 1
                add_start(event)
                add_end(events)
                add_request(size)
                add_size(block)
                add_address(address)
                now += block
            elif action == 2:  # FREE_REQUESTED
                freed = live.get(address)
                if freed is None or ends[freed] != events:
                    self.double_frees += 1
                else:
                    ends[freed] = event
                    now -= sizes[freed]
            elif action == 3 or action == 11:  # FREE_COMPLETED, FREE
                freed = live.pop(address, None)
                if freed is None:
                    self.double_frees += 1
                elif ends[freed] == events:
                    ends[freed] = event
                    now -= sizes[freed]
                if follows and freed is not None:
                    end = address + sizes[freed]
                    if end in size_at and end not in walls:
                        end += size_at.pop(end)
                    if address in start_of_end and address not in walls:
                        address = start_of_end.pop(address)
                    size_at[address] = end - address
                    start_of_end[end] = address
            elif action == Action.SEGMENT_ALLOC:
                extents.add_segment(address, size)
            elif action == Action.SEGMENT_FREE:
                extents.remove_segment(address, size)
            elif action == Action.SEGMENT_MAP:
                extents.map(address, size)
            elif action == Action.SEGMENT_UNMAP:
                extents.unmap(address, size)
            elif action == Action.OOM and len(self.out_of_memory) < _MOST_FAILURES:
                self.out_of_memory.append(event)
                self.free_at_failure.append(nlargest(_RANGES_KEPT, size_at.items(), key=itemgetter(1)))
            record(now)
        self.unplaced = unplaced
        self.levels = levels
        self._name_stacks()

    def settle(self, at_end: dict[int, _EndBlock]) -> int:
        """Take the true size of blocks that were still there at the end; how many had been told wrong."""
        wrong = 0
        sizes = self.blocks.size
        for address, number in self.live.items():
            block = at_end.get(address)
            if block is not None and block.size != sizes[number]:
                sizes[number] = block.size
                wrong += 1
        return wrong

    def count_pending(self) -> int:
        """Blocks that the program freed and another stream still holds."""
        ends, events = self.blocks.end, len(self.trace)
        return sum(ends[number] != events for number in self.live.values())

    def _add(self, requested: int, size: int, address: int, stack: int) -> int:
        blocks = self.blocks
        blocks.start.append(BEFORE)
        blocks.end.append(len(self.trace))
        blocks.requested.append(requested)
        blocks.size.append(size)
        blocks.address.append(address)
        blocks.stack.append(stack)
        return len(blocks.start) - 1

    def _name_stacks(self) -> None:
        trace, blocks = self.trace, self.blocks
        starts = blocks.start[len(blocks.stack) :]
        named = list(map(trace.stack.__getitem__, starts))
        if trace.forward_stack is not None:
            forward = map(trace.forward_stack.__getitem__, starts)
            named = [
                self.stacks + other if stack < 0 <= other else stack
                for stack, other in zip(named, forward, strict=True)
            ]
        blocks.stack.extend(named)
