"""Lists of levers that make a job fit: which are tried, in which order, and which of them are worth saying."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations

from trainmem.estimate import Detail
from trainmem.fit.outcome import Outcome, answer, can_fit, outcome
from trainmem.fit.room import Room
from trainmem.fit.steps import Choice, Steps, combined_share, steps_of
from trainmem.job import TrainingJob
from trainmem.levers import ALL_LEVERS, MOST_RANKS

__all__ = ["levers_that_fit"]

_MOST_LEVERS = 4
_DEVICES_OF_A_HOST = 8
_AS_MUCH = 1.25
_LEVER = {lever.key: lever for lever in ALL_LEVERS}

_FREE = ("attention", "zero_grad")
"""Cost neither time nor numerics: pulled before anything else, wherever they save."""

_TIME = ("optimizer_fused", "micro_batch", "loss", "checkpointing")
"""Cost time alone, and go with every dearer lever."""

_DEARER = (("optimizer_8bit", "precision"), ("lora",), ("qlora",), ("sharding",), ("offload",))
"""What costs more than time, least first: numerics, trained parameters, machines, the host's own step."""

_INSTEAD = {
    "optimizer_fused": {"optimizer_8bit", "lora", "qlora", "offload"},
    "optimizer_8bit": {"lora", "qlora", "offload"},
    "precision": {"lora", "qlora", "offload"},
    "lora": {"qlora", "offload"},
    "qlora": {"sharding", "offload"},
    "sharding": {"offload"},
}
"""Levers that take each other's place, or that nobody pulls together."""

_WITH_SHARDING = ("precision", "optimizer_8bit", "lora")
"""What joins sharding where time alone does not do."""


def levers_that_fit(job: TrainingJob, room: Room, detail: Detail, *, most: int) -> tuple[Steps, ...]:
    """Up to ``most`` lists for a job that does not fit, by what they cost.

    Levers that cost nothing come first in every list. Of lists that cost time alone two are told; then for
    each dearer lever the best list that cannot do without it: the fewest devices, the fewest levers, the
    quickest step. No list contains another, none is two levers longer than the shortest, and none is outdone
    by a shorter and quicker one of cheaper levers that leaves about as much room. A list that is only tight
    gets one lever more that loosens it.
    """
    free: Steps = ()
    for key in _FREE:
        freed = steps_of(Choice(((_LEVER[key], 1),)), job, room)
        if freed is not None:
            free, job = (*free, *freed), freed[-1].job
    search = _Search(job, room, detail)
    if free and search.outcome(Choice(())).fits:
        return (free,)
    told = search.of_time()
    for level in _DEARER:
        told += sorted(filter(None, map(search.of_lever, level)), key=combined_share)
    kept = [steps for at, steps in enumerate(told) if not any(_outdone(steps, other) for other in told[:at])]
    return tuple((*free, *steps) for steps in kept[:most])


def _outdone(steps: Steps, cheaper: Steps) -> bool:
    """Whether a list of cheaper levers is also shorter and quicker and leaves about as much room."""
    peak, other = (answer(found[-1].job, "fast").peak_allocated_bytes for found in (steps, cheaper))
    is_quicker = combined_share(cheaper) <= combined_share(steps)
    return len(cheaper) < len(steps) and is_quicker and other <= _AS_MUCH * peak


class _Search:
    def __init__(self, job: TrainingJob, room: Room, detail: Detail) -> None:
        self.job, self.room, self.detail = job, room, detail
        self.found: list[frozenset[str]] = []

    def outcome(self, choice: Choice) -> Outcome:
        """Of the job after these levers, which apply."""
        job = choice.apply(self.job)
        return outcome(job, self.room, self.detail) if job else Outcome(fits=False, basis="bound")

    def of_time(self) -> list[Steps]:
        """The two best lists of levers that cost nothing but time."""
        told: list[Steps] = []
        if self._hopeless(()):
            return told
        for size in range(1, len(_TIME) + 1):
            if len(told) == 2 or size > self._longest():
                break
            choices = self._fitting(_chosen(_TIME, size))
            while len(told) < 2 and (best := self._best(choices)):
                told.append(best)
        return sorted(told, key=lambda steps: (len(steps), combined_share(steps)))

    def of_lever(self, key: str) -> Steps | None:
        """The best list that cannot do without this lever."""
        if key == "sharding":
            return self._of_sharding()
        return None if self._hopeless((key,)) else self._shortest((key,))

    def _of_sharding(self) -> Steps | None:
        """Over the fewest devices: over more than a host's eight only where nothing else fits."""
        lever, ranks = _LEVER["sharding"], self.job.sharding.data_parallel
        most = max(_DEVICES_OF_A_HOST, 2 * ranks) if self.found else MOST_RANKS
        for keys in (("sharding",), *(("sharding", other) for other in _WITH_SHARDING)):
            pulls, sharded = 1, lever.pull(self.job)
            while sharded is not None and sharded.sharding.data_parallel <= most:
                if not self._hopeless(keys, pulls):
                    best = self._shortest(keys, pulls)
                    if best is not None:
                        return best
                pulls, sharded = pulls + 1, lever.pull(sharded)
        return None

    def _shortest(self, keys: tuple[str, ...], ranks: int = 1) -> Steps | None:
        for size in range(len(keys), self._longest() + 1):
            best = self._best(self._fitting(_chosen(_TIME, size - len(keys), *keys), ranks))
            if best is not None:
                return best
        return None

    def _longest(self) -> int:
        return min([_MOST_LEVERS, *(len(keys) + 1 for keys in self.found)])

    def _hopeless(self, keys: tuple[str, ...], ranks: int = 1) -> bool:
        """Whether these levers do not even fit with every lever beside them that costs time alone.

        Accumulation keeps gradients through the forward pass, so a smaller micro batch need not help: both ways.
        """
        beside = [key for key in _TIME if _LEVER[key].pull(self.job) and not _clash(frozenset({key, *keys}))]
        largest = [key for key in beside if key != "micro_batch"]
        return not any(
            self._pulled(self._choice((*keys, *among), ranks)) is not None for among in (largest, beside)
        )

    def _fitting(self, lists: Iterator[Sequence[str]], ranks: int = 1) -> Iterator[Choice]:
        """The lists that the fast peak lets through, quickest step first, each looked at when its turn comes."""
        waiting: list[tuple[float, int, Choice, bool]] = []
        for number, keys in enumerate(lists):
            choice = self._choice(keys, ranks)
            waiting.append((choice.time(self.job, self.room), number, choice, False))
        heapify(waiting)
        while waiting:
            time, number, choice, is_pulled = heappop(waiting)
            if is_pulled:
                yield choice
            elif not self._contains_another(choice.keys) and (pulled := self._pulled(choice)):
                # The micro batch pulled again takes longer than it promised.
                time = time if pulled == choice else pulled.time(self.job, self.room)
                heappush(waiting, (time, number, pulled, True))

    def _choice(self, keys: Sequence[str], ranks: int) -> Choice:
        choice = Choice(())
        for key in keys:
            choice = choice.with_lever(_LEVER[key], ranks if key == "sharding" else 1)
        return choice

    def _contains_another(self, keys: frozenset[str]) -> bool:
        return any(other <= keys for other in self.found)

    def _pulled(self, choice: Choice) -> Choice | None:
        """The micro batch pulled as seldom as the fast peak lets it; None: it does not let these levers through."""
        job = choice.apply(self.job)
        while job is not None and not can_fit(job, self.room):
            smaller = choice.smaller()
            if smaller is None:
                return None
            choice, job = smaller, smaller.apply(self.job)
        return choice if job is not None else None

    def _best(self, choices: Iterator[Choice]) -> Steps | None:
        """The first that fits with ease, else the first that is tight, loosened; left tight only where nothing else
        was told yet."""
        tight: tuple[Choice, Steps] | None = None
        for choice in choices:
            if self._contains_another(choice.keys):
                continue
            settled: Choice | None = choice
            while settled is not None and not self.outcome(settled).fits:
                # The allocator needs more than the fast peak: a smaller micro batch still may do.
                settled = settled.smaller() if settled.apply(self.job) else None
            steps = steps_of(settled, self.job, self.room) if settled else None
            if settled is None or steps is None:
                continue
            if not self.outcome(settled).tight:
                return self._told(steps)
            tight = tight or (settled, steps)
        if tight is None:
            return None
        loosened = self._loosened(tight[0])
        if loosened is None and not self.found:
            loosened = tight[1]
        return self._told(loosened) if loosened is not None else None

    def _told(self, steps: Steps) -> Steps:
        self.found.append(frozenset(step.lever.key for step in steps))
        return steps

    def _loosened(self, choice: Choice) -> Steps | None:
        """With the micro batch pulled again, or one lever more that costs time alone; None: still tight."""
        longer = [choice.with_lever(_LEVER[key]) for key in _TIME if key not in choice.keys]
        if smaller := choice.smaller():
            longer.append(smaller)
        for other in sorted(longer, key=lambda other: other.time(self.job, self.room)):
            # Packing the base is what one does next, whatever else has been pulled.
            if _clash(other.keys) or (self._contains_another(other.keys) and "qlora" not in other.keys):
                continue
            state, steps = self.outcome(other), steps_of(other, self.job, self.room)
            if steps is not None and state.fits and not state.tight:
                return steps
        return None


def _clash(keys: frozenset[str]) -> bool:
    return any(_INSTEAD.get(key, set()) & keys for key in keys)


def _chosen(among: Sequence[str], count: int, *keys: str) -> Iterator[Sequence[str]]:
    """``keys`` with every ``count`` of ``among`` that go with them."""
    for others in combinations(among, count):
        if not _clash(frozenset((*others, *keys))):
            yield (*others, *keys)
