"""Pack a recorded training run into the columns that the tape's tests compare with.

Usage: python pack.py RUN.json.gz OUT.json.gz

RUN is an object with "job" (the contract's JSON), "events" (entries of one device's trace in a
torch.cuda.memory snapshot: [action, address, size, ...], from before the model is built) and "marks"
([index of an event at which a phase begins, step, phase, micro batch]).

Kept: for every phase of the first two steps, its allocations and frees in order. An allocation is an index into
the table of sizes; a free is minus the number of allocations made since the one that it frees, counting that
one. Frees that follow each other are sorted, because their order changes nothing. Left out: addresses, stacks,
times, everything before the first step.
"""

import gzip
import json
import sys

STEPS = (1, 2)


def stream(recorded):
    """The allocations (sizes) and frees (~number) of a run, and where each of its events lies in them."""
    live, events, place = {}, [], []
    count = 0
    for action, address, size, *_ in recorded:
        place.append(len(events))
        if action == "alloc":
            live[address] = count
            count += 1
            events.append(size)
        elif action == "free_completed":
            events.append(~live.pop(address))
    place.append(len(events))
    return events, place


def pack(run):
    events, place = stream(run["events"])
    starts = [(place[index], step, phase, micro) for index, step, phase, micro in run["marks"]]
    ends = [start[0] for start in starts[1:]] + [len(events)]
    allocations = [0]
    for event in events:
        allocations.append(allocations[-1] + (event > 0))
    sizes, phases = {}, []
    for (start, step, phase, micro), end in zip(starts, ends, strict=True):
        if step not in STEPS:
            continue
        column, frees = [], []
        for index in range(start, end):
            if events[index] > 0:
                column += [*sorted(frees), sizes.setdefault(events[index], len(sizes))]
                frees = []
            else:
                frees.append(~events[index] - allocations[index])
        phases.append([step, phase, micro, column + sorted(frees)])
    return {"job": run["job"], "sizes": list(sizes), "phases": phases}


if __name__ == "__main__":
    with gzip.open(sys.argv[1], "rt") as source:
        packed = json.dumps(pack(json.load(source)), separators=(",", ":"))
    with open(sys.argv[2], "wb") as target:
        target.write(gzip.compress(packed.encode(), 9, mtime=0))
