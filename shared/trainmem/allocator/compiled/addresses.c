#include "addresses.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)

static const int64_t CHUNK_BYTES = 32 * MIB;
static const int64_t PAGE_BYTES = 2 * MIB;
static const int64_t TOP = (int64_t)1 << 46;
static const int64_t FIRST_RISING = (int64_t)1 << 40;

bool make_room(void **list, size_t *room, size_t count, size_t element) {
    if (count <= *room) {
        return true;
    }
    size_t larger = 2 * *room > count ? 2 * *room : count;
    void *moved = realloc(*list, larger * element);
    if (moved == NULL) {
        return false;
    }
    *list = moved;
    *room = larger;
    return true;
}

/* Index of the first range of a falling list that does not lie above `address`. */
static size_t range_index(const Range *list, size_t count, int64_t address) {
    size_t low = 0;
    while (low < count) {
        size_t middle = (low + count) / 2;
        if (list[middle].address > address) {
            low = middle + 1;
        } else {
            count = middle;
        }
    }
    return low;
}

static void insert_range(Range *list, size_t *count, int64_t address, int64_t size) {
    size_t index = range_index(list, *count, address);
    memmove(list + index + 1, list + index, (*count - index) * sizeof *list);
    list[index] = (Range){address, size};
    ++*count;
}

static void remove_range(Range *list, size_t *count, size_t index) {
    --*count;
    memmove(list + index, list + index + 1, (*count - index) * sizeof *list);
}

/* Index of the chunk that `address` lies in, or where a chunk there would stand. */
static size_t chunk_index(const Addresses *at, int64_t address) {
    size_t low = 0, high = at->chunk_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (at->chunks[middle].address > address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void insert_chunk(Addresses *at, Chunk chunk) {
    size_t index = chunk_index(at, chunk.address);
    memmove(at->chunks + index + 1, at->chunks + index, (at->chunk_count - index) * sizeof chunk);
    at->chunks[index] = chunk;
    at->chunk_count++;
}

static void insert_hole(Addresses *at, int64_t address, int64_t size) {
    insert_range(at->holes, &at->hole_count, address, size);
    if (size > at->largest) {
        at->largest = size;
    }
}

static void startup_chunk(Addresses *at, int64_t address, int64_t size, int64_t rest) {
    insert_chunk(at, (Chunk){address, size, size - rest});
    insert_hole(at, address + size - rest, rest);
    at->bottom = address;
    at->taken++;
}

bool addresses_begin(Addresses *at, bool rising, int64_t segments_before_kernels) {
    *at = (Addresses){
        .rising = rising,
        .next = FIRST_RISING,
        .wait = segments_before_kernels,
        .bottom = TOP,
        .chunks = at->chunks,
        .holes = at->holes,
        .gaps = at->gaps,
        .chunk_room = at->chunk_room,
        .hole_room = at->hole_room,
        .gap_room = at->gap_room,
    };
    if (!addresses_reserve(at, 2)) {
        return false;
    }
    startup_chunk(at, TOP, 96 * MIB, 24 * MIB);
    startup_chunk(at, TOP - 416 * MIB, 416 * MIB, 2 * MIB);
    return true;
}

void addresses_end(Addresses *at) {
    free(at->chunks);
    free(at->holes);
    free(at->gaps);
}

bool addresses_reserve(Addresses *at, size_t segments) {
    /* A segment opens one chunk at most. A hole lies at the end of a chunk or below something taken, a gap below a
       chunk. */
    size_t chunks = at->chunk_count + segments + 1;
    size_t holes = chunks + at->taken + segments + 1;
    return make_room((void **)&at->chunks, &at->chunk_room, chunks, sizeof *at->chunks) &&
           make_room((void **)&at->holes, &at->hole_room, holes, sizeof *at->holes) &&
           make_room((void **)&at->gaps, &at->gap_room, chunks, sizeof *at->gaps);
}

/* An address for a new chunk: the highest gap that holds it, else below all others. */
static int64_t chunk_address(Addresses *at, int64_t size) {
    for (size_t index = 0; index < at->gap_count; index++) {
        Range *gap = at->gaps + index;
        if (gap->size >= size) {
            int64_t address = gap->address + gap->size - size;
            gap->size -= size;
            if (gap->size == 0) {
                remove_range(at->gaps, &at->gap_count, index);
            }
            return address;
        }
    }
    if (at->bottom < size) {
        return NO_ADDRESS;
    }
    at->bottom -= size;
    return at->bottom;
}

/* Index of the lowest hole that holds `size`; the number of holes where none does. */
static size_t fitting_hole(Addresses *at, int64_t size) {
    if (size > at->largest) {
        return at->hole_count;
    }
    int64_t largest = 0;
    for (size_t index = at->hole_count; index-- > 0;) {
        if (at->holes[index].size >= size) {
            return index;
        }
        if (at->holes[index].size > largest) {
            largest = at->holes[index].size;
        }
    }
    at->largest = largest;
    return at->hole_count;
}

/* The beginning of the lowest hole that holds `size`, else of a new chunk. */
static int64_t take(Addresses *at, int64_t size) {
    at->taken++;
    size_t index = fitting_hole(at, size);
    if (index < at->hole_count) {
        Range *hole = at->holes + index;
        int64_t address = hole->address;
        hole->address += size;
        hole->size -= size;
        if (hole->size == 0) {
            remove_range(at->holes, &at->hole_count, index);
        }
        at->chunks[chunk_index(at, address)].used += size;
        return address;
    }
    int64_t whole = (size + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
    int64_t address = chunk_address(at, whole);
    if (address != NO_ADDRESS) {
        insert_chunk(at, (Chunk){address, whole, size});
        if (whole > size) {
            insert_hole(at, address + size, whole - size);
        }
    }
    return address;
}

int64_t addresses_place(Addresses *at, int64_t size) {
    if (at->rising) {
        at->next += size;
        return at->next - size;
    }
    if (at->placed == at->wait) {
        addresses_release(at, TOP - 416 * MIB, 414 * MIB);
    }
    at->placed++;
    return take(at, size);
}

bool addresses_load_kernels(Addresses *at, int64_t size) {
    for (int64_t page = 0; !at->rising && page < size / PAGE_BYTES; page++) {
        if (take(at, PAGE_BYTES) == NO_ADDRESS) {
            return false;
        }
    }
    return true;
}

static void release_chunk(Addresses *at, size_t index) {
    int64_t start = at->chunks[index].address, end = start + at->chunks[index].size;
    at->chunk_count--;
    memmove(at->chunks + index, at->chunks + index + 1, (at->chunk_count - index) * sizeof *at->chunks);
    size_t below = range_index(at->gaps, at->gap_count, start);
    if (below < at->gap_count && at->gaps[below].address + at->gaps[below].size == start) {
        start = at->gaps[below].address;
        remove_range(at->gaps, &at->gap_count, below);
    }
    if (below > 0 && at->gaps[below - 1].address == end) {
        end += at->gaps[below - 1].size;
        remove_range(at->gaps, &at->gap_count, below - 1);
    }
    if (start == at->bottom) {
        at->bottom = end;
    } else {
        insert_range(at->gaps, &at->gap_count, start, end - start);
    }
}

void addresses_release(Addresses *at, int64_t address, int64_t size) {
    if (at->rising) {
        return;
    }
    size_t index = chunk_index(at, address);
    Chunk *chunk = at->chunks + index;
    chunk->used -= size;
    at->taken--;
    int64_t first = address, last = address + size;
    /* Holes of one chunk that touch are one hole; those of neighbouring chunks are not. */
    size_t below = range_index(at->holes, at->hole_count, address);
    if (last < chunk->address + chunk->size && below > 0 && at->holes[below - 1].address == last) {
        last += at->holes[below - 1].size;
        remove_range(at->holes, &at->hole_count, --below);
    }
    if (first > chunk->address && below < at->hole_count &&
        at->holes[below].address + at->holes[below].size == first) {
        first = at->holes[below].address;
        remove_range(at->holes, &at->hole_count, below);
    }
    if (chunk->used) {
        insert_hole(at, first, last - first);
    } else {
        release_chunk(at, index);
    }
}
