"""The caching allocator's rules written the slow, plain way: linked blocks and linear searches.

It shares nothing with `trainmem.allocator` but the settings and the addresses, so that the two can be
compared on any stream of events.
"""

from dataclasses import dataclass

from trainmem.allocator import DeviceAddresses
from trainmem.units import MIB


@dataclass(eq=False)
class Block:
    address: int
    size: int
    pool: tuple
    segment: int
    is_free: bool = True
    is_mapped: bool = True
    is_expandable: bool = False
    before: "Block | None" = None
    after: "Block | None" = None
    idle_since: int = 0

    @property
    def is_whole(self):
        return self.before is None and self.after is None

    @property
    def order(self):
        return (self.size, self.address)


class Reference:
    def __init__(self, settings, capacity=None, outside=0):
        self.settings = settings
        self.capacity, self.outside = capacity, outside
        self.fraction = settings.per_process_memory_fraction
        self.cap = int(self.fraction * capacity) if capacity and self.fraction < 1 else None
        self.placement = DeviceAddresses()
        self.blocks = []
        self.live = {}
        self.reserved = self.allocated = self.searches = self.retries = 0

    def free_blocks(self, pool, mapped=True):
        found = [b for b in self.blocks if b.is_free and b.is_mapped == mapped and b.pool == pool]
        return sorted(found, key=lambda b: b.order if mapped else b.address)

    def malloc(self, number, requested, stream=0, private=0):
        size = self.round(requested)
        is_small = size <= MIB
        pool = (private, stream, is_small)
        if self.cap and self.settings.garbage_collection_threshold and not is_small and not private:
            self.searches += 1
        block = self.find(pool, size)
        if block is None:
            block = self.obtain(pool, size)
        if block is None:
            return False
        rest = block.size - size
        limit = self.settings.max_split_size_bytes
        if is_small or self.settings.expandable_segments:
            splits = rest >= 512
        else:
            splits = rest > MIB and (limit is None or size < limit)
        if splits:
            self.split(block, size)
        block.is_free = False
        self.live[number] = block
        self.allocated += block.size
        return True

    def free(self, number):
        block = self.live.pop(number)
        self.allocated -= block.size
        block.is_free = True
        self.merge(block)

    def round(self, requested):
        if requested < 512:
            return 512
        interval = min(max(requested.bit_length() - 1 - 20, 0), 15)
        divisions = self.settings.roundup_power2_divisions[interval]
        if divisions > 1 and requested > 512 * divisions:
            floor = 1 << (requested.bit_length() - 1)
            size = floor
            while size < requested:
                size += floor // divisions
            return size
        return (requested + 511) // 512 * 512

    def find(self, pool, size):
        fitting = [b for b in self.free_blocks(pool) if b.size >= size]
        if not fitting:
            return None
        block = fitting[0]
        if self.settings.expandable_segments:

            def room(b):
                return b.size + (b.after.size if b.after and not b.after.is_mapped else 0)

            for other in fitting[1:]:
                if room(other) >= room(block):
                    break
                block = other
        limit = self.settings.max_split_size_bytes
        if limit is not None:
            if size < limit and block.size >= limit:
                return None
            if size >= limit and block.size >= size + self.settings.max_non_split_rounding_bytes:
                return None
        return block

    def obtain(self, pool, size):
        if self.cap and self.settings.garbage_collection_threshold:
            self.collect_garbage()
        block = self.grow(pool, size)
        if block is None and self.release_oversize(pool, size):
            block = self.grow(pool, size)
        if block is None and not pool[0]:
            self.release_idle()
            self.retries += 1
            block = self.grow(pool, size)
        return block

    def grow(self, pool, size):
        if pool[2]:
            segment = 2 * MIB
        elif size < 10 * MIB:
            segment = self.settings.large_segment_size_bytes
        else:
            segment = (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        if self.cap is not None and self.reserved + segment > self.cap:
            return None
        if self.settings.expandable_segments:
            return self.expand(pool, size)
        if not self.device_has(segment):
            return None
        self.reserved += segment
        address = self.placement.place(segment)
        block = Block(address, segment, pool, address)
        self.blocks.append(block)
        return block

    def device_has(self, size):
        return self.capacity is None or self.outside + self.reserved + size <= self.capacity

    def expand(self, pool, size):
        page = 2 * MIB if pool[2] else self.settings.large_segment_size_bytes
        for start in self.free_blocks(pool, mapped=False):
            if start.before is not None and start.before.is_free:
                start = start.before
            total, block = 0, start
            while block is not None and block.is_free and total < size:
                total, block = total + block.size, block.after
            if total >= size:
                break
        else:
            space = 1 << 40 if self.capacity is None else self.capacity + self.capacity // 8
            space = (space + page - 1) // page * page
            address = self.placement.place(space)
            start = Block(address, space, pool, address, is_mapped=False, is_expandable=True)
            self.blocks.append(start)
        if not start.is_mapped:
            start = self.map(start, min(size, start.size), page)
        while start is not None and start.size < size:
            start = self.map(start.after, min(size - start.size, start.after.size), page)
        return start

    def map(self, block, size, page):
        size = (size + page - 1) // page * page
        if not self.device_has(size):
            return None
        self.reserved += size
        if size < block.size:
            self.split(block, size)
        block.is_mapped = True
        return self.merge(block)

    def split(self, block, size):
        rest = Block(
            block.address + size,
            block.size - size,
            block.pool,
            block.segment,
            is_mapped=block.is_mapped,
            is_expandable=block.is_expandable,
            before=block,
            after=block.after,
        )
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self.blocks.append(rest)
        return rest

    def merge(self, block):
        block.idle_since = self.searches
        for other in (block.before, block.after):
            if other is None or not other.is_free or other.is_mapped != block.is_mapped:
                continue
            if other is block.before:
                block.address, block.before = other.address, other.before
                if block.before is not None:
                    block.before.after = block
            else:
                block.after = other.after
                if block.after is not None:
                    block.after.before = block
            block.size += other.size
            self.blocks.remove(other)
        return block

    def drop(self, block):
        self.reserved -= block.size
        self.blocks.remove(block)
        self.placement.release(block.address, block.size)

    def release_idle(self):
        for block in [b for b in self.blocks if b.is_free and b.is_mapped and not b.pool[0]]:
            if block.is_expandable:
                self.unmap(block)
            elif block.is_whole:
                self.drop(block)

    def unmap(self, block):
        page = 2 * MIB if block.pool[2] else self.settings.large_segment_size_bytes
        first = block.segment + (block.address - block.segment + page - 1) // page * page
        last = block.segment + (block.address + block.size - block.segment) // page * page
        if first >= last:
            return
        if first > block.address:
            block = self.split(block, first - block.address)
        if last < block.address + block.size:
            self.split(block, last - block.address)
        self.reserved -= block.size
        block.is_mapped = False
        self.merge(block)
        if block.is_whole:
            self.blocks.remove(block)
            self.placement.release(block.address, block.size)

    def release_oversize(self, pool, size):
        limit = self.settings.max_split_size_bytes
        if limit is None:
            return False
        wanted = max(size, limit)
        oversize = [b for b in self.free_blocks(pool) if b.size >= limit]
        larger = [b for b in oversize if b.size >= wanted]
        if larger and not larger[0].is_expandable:
            self.drop(larger[0])
            return True
        released = 0
        for block in reversed([b for b in oversize if b.size < wanted]):
            if released >= wanted:
                break
            if not block.is_expandable:
                released += block.size
                self.drop(block)
        return released >= wanted

    def collect_garbage(self):
        target = self.reserved - int(self.settings.garbage_collection_threshold * self.cap)
        while target > 0:
            idle = [
                b
                for b in self.blocks
                if b.is_free and b.is_whole and not (b.pool[0] or b.pool[2] or b.is_expandable)
            ]
            ages = [self.searches - b.idle_since for b in idle]
            old = [b for b, age in zip(idle, ages, strict=True) if age >= sum(ages) / len(ages)]
            if not old:
                return
            for block in old:
                target -= block.size
                self.drop(block)
