"""Events a second through the allocator, on the events of recorded training steps.

Usage: python bench/allocator.py [EVENTS]

The recorded three steps are repeated until the stream has at least EVENTS (default 100,000). The best of
five runs counts. Under the default settings the machine code, where it was built, is compared with the Python.
"""

import gzip
import json
import sys
import time
from pathlib import Path

from trainmem.allocator import AllocatorSettings, CachingAllocator, compiled, stream_allocator

RECORDINGS = Path(__file__).parent.parent / "tests" / "data" / "allocator"
SETTINGS = {
    "defaults": "",
    "expandable segments": "expandable_segments:True",
    "power-of-two divisions": "roundup_power2_divisions:8",
    "max_split_size 128 MiB": "max_split_size_mb:128",
}
RUNS = 5


def repeated(events, length):
    """The stream over and over; what the recording leaves live is freed at the end of each round."""
    allocations = sum(event > 0 for event in events)
    freed = {~event for event in events if event < 0}
    round_trip = [*events, *(~number for number in range(allocations) if number not in freed)]
    stream = []
    while len(stream) < length:
        earlier = len(stream) // len(round_trip) * allocations
        stream.extend(event if event > 0 else event - earlier for event in round_trip)
    return stream


def best_seconds(make, settings, stream):
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        make(settings).highest(stream)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main():
    length = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    for name in ("amp", "ckpt"):
        recording = json.loads(gzip.decompress((RECORDINGS / f"{name}.json.gz").read_bytes()))
        stream = repeated(recording["events"], length)
        for label, text in SETTINGS.items():
            settings = AllocatorSettings.parse(text)
            best = best_seconds(CachingAllocator, settings, stream)
            print(
                f"{name:5} {label:24} {len(stream):8,} events {best * 1000:7.1f} ms "
                f"{len(stream) / best:10,.0f} events/s"
            )
            if compiled.is_compiled() and not text:
                ratio = best / best_seconds(stream_allocator, settings, stream)
                print(f"{name:5} {label + ', compiled':24} {ratio:.1f} times as fast")


if __name__ == "__main__":
    main()
