"""Recorded allocator events (tests/data/allocator), and a placement that gives the recorded addresses."""

import gzip
import json
from pathlib import Path

DATA = Path(__file__).parent.parent / "data" / "allocator"
DEVICE_BYTES = 150_109_880_320


def load_recording(name):
    return json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))


class RecordedAddresses:
    """Segments where the recorded run had them, in the order in which it asked for them."""

    def __init__(self, recording):
        if recording["expandable_segments"]:
            # The range of an expandable segment is not recorded, only its first page: one for each pool.
            firsts = {}
            for _, address, size, _ in recording["segments"]:
                firsts.setdefault(size == 2 << 20, address)
            self._segments = [(address, None) for address in firsts.values()]
        else:
            self._segments = [
                (address, size)
                for action, address, size, _ in recording["segments"]
                if action == "segment_alloc"
            ]

    def place(self, size_bytes):
        address, recorded_size = self._segments.pop(0)
        assert recorded_size in (None, size_bytes)
        return address

    def release(self, address, size_bytes):
        pass
