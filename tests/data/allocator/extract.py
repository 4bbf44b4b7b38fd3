"""Turn a recorded snapshot into the columns that the allocator's tests replay.

Usage: python extract.py SNAPSHOT.pickle.gz OUT.json.gz

Kept: the stream of allocations and frees, each allocation's stream and private pool, the address that the real
allocator gave it, every segment event, and the blocks that lived at the end. Left out: call stacks and times.
"""

import gzip
import json
import pickle
import sys


class PlainUnpickler(pickle.Unpickler):
    """A snapshot holds only plain values; anything else is refused."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in a snapshot")


def pool_of(snapshot, address):
    for segment in snapshot["segments"]:
        if segment["address"] <= address < segment["address"] + segment["total_size"]:
            return segment["segment_pool_id"][0]
    return 0


def extract(snapshot):
    (trace,) = [trace for trace in snapshot["device_traces"] if trace]
    events, addresses, streams, pools, segments, empty_cache_before = [], [], [], [], [], []
    live, stream_numbers, out_of_memory = {}, {0: 0}, None
    for entry in trace:
        action = entry["action"]
        stream = stream_numbers.setdefault(entry["stream"], len(stream_numbers))
        if action == "alloc":
            live[entry["addr"]] = len(addresses)
            events.append(entry["size"])
            addresses.append(entry["addr"])
            streams.append(stream)
            pools.append(pool_of(snapshot, entry["addr"]))
        elif action == "free_completed":
            events.append(~live.pop(entry["addr"]))
        elif action == "oom":
            out_of_memory = {"event_index": len(events), "size": entry["size"], "free": entry["device_free"]}
        elif action.startswith("segment"):
            # Nothing ran short of memory in these recordings: segments are given back by empty_cache.
            if action in ("segment_free", "segment_unmap") and empty_cache_before[-1:] != [len(events)]:
                empty_cache_before.append(len(events))
            segments.append([action, entry["addr"], entry["size"], stream])
    blocks = [
        [block["address"], block["size"], block["requested_size"]]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    return {
        "events": events,
        "addresses": addresses,
        "streams": streams if any(streams) else None,
        "pools": pools if any(pools) else None,
        "segments": segments,
        "empty_cache_before": empty_cache_before,
        "expandable_segments": snapshot["allocator_settings"]["expandable_segments"],
        "out_of_memory": out_of_memory,
        "blocks_at_end": sorted(blocks),
        "reserved_at_end": sum(segment["total_size"] for segment in snapshot["segments"]),
    }


if __name__ == "__main__":
    with gzip.open(sys.argv[1]) as file:
        columns = extract(PlainUnpickler(file).load())
    with open(sys.argv[2], "wb") as file:
        file.write(gzip.compress(json.dumps(columns, separators=(",", ":")).encode(), mtime=0))
