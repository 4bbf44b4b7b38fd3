/* PyTorch's CUDA caching allocator under its default rules: trainmem/allocator/caching.py, compiled.

   Left out beside what that file leaves out: private pools, expandable segments, unsplittable blocks, garbage
   collection, sizes rounded to powers of two, and frees that wait for another stream. */

#include <stdlib.h>
#include <string.h>

#include "addresses.h"

#define MIB ((int64_t)1 << 20)

static const int64_t MIN_BLOCK = 512;
static const int64_t MOST_OF_SMALL_POOL = 1 * MIB;
static const int64_t SMALL_SEGMENT = 2 * MIB;
static const int64_t LEAST_OF_OWN_SEGMENT = 10 * MIB;
static const int64_t MOST_REQUESTED = (int64_t)1 << 50; /* more fits no device, and no address space */

enum { NONE = -1 };
enum { OK = 0, NO_MEMORY_HERE = -1, NO_ADDRESS_LEFT = -2, NOT_LIVE = -3, ZERO = -4 };

/* A piece of a segment, between its neighbours there. */
typedef struct {
    int64_t address, size;
    int32_t before, after;
    int32_t heap;
    bool is_free;
} Block;

/* Numbers of free blocks, sorted by their sizes, then by their addresses. */
typedef struct {
    int32_t *blocks;
    size_t count, room;
} FreeList;

/* The free blocks of one stream. */
typedef struct {
    int32_t stream;
    FreeList small, large;
} Heap;

typedef struct {
    int64_t capacity, outside, cap, large_segment; /* capacity and cap: NONE for no limit */
    int64_t allocated, reserved, retries, highest;
    bool is_full; /* the device had no room for the last request */
    Addresses addresses;
    Heap *heaps;
    size_t heap_count, heap_room;
    Block *blocks;
    int32_t *unused; /* blocks that may be used again */
    size_t block_count, block_room, unused_count, unused_room;
    int32_t *block_of; /* by allocation: its block, NONE once freed */
    int64_t *bytes_of; /* by allocation: the size of the block it got */
    size_t allocation_count, block_of_room, bytes_of_room;
} Allocator;

/* Of the sources that this was built from. */
const uint32_t trainmem_fingerprint = TRAINMEM_FINGERPRINT;

Allocator *trainmem_new(int64_t capacity, int64_t outside, int64_t cap, int64_t large_segment, int32_t rising,
                        int64_t segments_before_kernels) {
    Allocator *it = calloc(1, sizeof *it);
    if (it == NULL) {
        return NULL;
    }
    it->capacity = capacity;
    it->outside = outside;
    it->cap = cap;
    it->large_segment = large_segment;
    if (!addresses_begin(&it->addresses, rising != 0, segments_before_kernels)) {
        addresses_end(&it->addresses);
        free(it);
        return NULL;
    }
    return it;
}

void trainmem_delete(Allocator *it) {
    for (size_t index = 0; index < it->heap_count; index++) {
        free(it->heaps[index].small.blocks);
        free(it->heaps[index].large.blocks);
    }
    addresses_end(&it->addresses);
    free(it->heaps);
    free(it->blocks);
    free(it->unused);
    free(it->block_of);
    free(it->bytes_of);
    free(it);
}

static FreeList *free_list(Allocator *it, int32_t heap, int64_t size) {
    return size <= MOST_OF_SMALL_POOL ? &it->heaps[heap].small : &it->heaps[heap].large;
}

/* Index of the first free block that is not smaller than `size` or, among equals, not below `address`. */
static size_t free_index(const Allocator *it, const FreeList *list, int64_t size, int64_t address) {
    size_t low = 0, high = list->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const Block *block = it->blocks + list->blocks[middle];
        if (block->size < size || (block->size == size && block->address < address)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void insert_free(const Allocator *it, FreeList *list, int32_t number) {
    size_t index = free_index(it, list, it->blocks[number].size, it->blocks[number].address);
    memmove(list->blocks + index + 1, list->blocks + index, (list->count - index) * sizeof *list->blocks);
    list->blocks[index] = number;
    list->count++;
}

static void remove_free(FreeList *list, size_t index) {
    list->count--;
    memmove(list->blocks + index, list->blocks + index + 1, (list->count - index) * sizeof *list->blocks);
}

static int32_t new_block(Allocator *it, Block block) {
    int32_t number = it->unused_count ? it->unused[--it->unused_count] : (int32_t)it->block_count++;
    it->blocks[number] = block;
    return number;
}

static void drop_block(Allocator *it, int32_t number) {
    it->unused[it->unused_count++] = number;
}

static int32_t heap_of(Allocator *it, int32_t stream) {
    for (size_t index = 0; index < it->heap_count; index++) {
        if (it->heaps[index].stream == stream) {
            return (int32_t)index;
        }
    }
    if (!make_room((void **)&it->heaps, &it->heap_room, it->heap_count + 1, sizeof *it->heaps)) {
        return NONE;
    }
    it->heaps[it->heap_count] = (Heap){.stream = stream};
    return (int32_t)it->heap_count++;
}

/* Room for all that `events` more events can make, so that nothing after it asks for memory. */
static bool reserve(Allocator *it, size_t events, const int32_t *streams, size_t stream_count) {
    if (heap_of(it, 0) == NONE) {
        return false;
    }
    for (size_t index = 0; index < stream_count; index++) {
        if (heap_of(it, streams[index]) == NONE) {
            return false;
        }
    }
    for (size_t index = 0; index < it->heap_count; index++) {
        FreeList *lists[] = {&it->heaps[index].small, &it->heaps[index].large};
        for (size_t which = 0; which < 2; which++) {
            FreeList *list = lists[which];
            if (!make_room((void **)&list->blocks, &list->room, list->count + events, sizeof *list->blocks)) {
                return false;
            }
        }
    }
    size_t blocks = it->block_count + 2 * events, allocations = it->allocation_count + events;
    return make_room((void **)&it->blocks, &it->block_room, blocks, sizeof *it->blocks) &&
           make_room((void **)&it->unused, &it->unused_room, blocks, sizeof *it->unused) &&
           make_room((void **)&it->block_of, &it->block_of_room, allocations, sizeof *it->block_of) &&
           make_room((void **)&it->bytes_of, &it->bytes_of_room, allocations, sizeof *it->bytes_of) &&
           addresses_reserve(&it->addresses, events);
}

static int by_address(const void *one, const void *other) {
    int64_t left = ((const Range *)one)->address, right = ((const Range *)other)->address;
    return (left > right) - (left < right);
}

/* torch.cuda.empty_cache: gives every segment that is one free block back to the device. */
int32_t trainmem_empty_cache(Allocator *it) {
    size_t most = 0, count = 0;
    for (size_t index = 0; index < it->heap_count; index++) {
        most += it->heaps[index].small.count + it->heaps[index].large.count;
    }
    Range *idle = malloc((most + 1) * sizeof *idle);
    if (idle == NULL) {
        return NO_MEMORY_HERE;
    }
    for (size_t index = 0; index < it->heap_count; index++) {
        FreeList *lists[] = {&it->heaps[index].small, &it->heaps[index].large};
        for (size_t which = 0; which < 2; which++) {
            FreeList *list = lists[which];
            size_t kept = 0;
            for (size_t entry = 0; entry < list->count; entry++) {
                int32_t number = list->blocks[entry];
                const Block *block = it->blocks + number;
                if (block->before == NONE && block->after == NONE) {
                    idle[count++] = (Range){block->address, block->size};
                    it->reserved -= block->size;
                    drop_block(it, number);
                } else {
                    list->blocks[kept++] = number;
                }
            }
            list->count = kept;
        }
    }
    qsort(idle, count, sizeof *idle, by_address);
    for (size_t index = 0; index < count; index++) {
        addresses_release(&it->addresses, idle[index].address, idle[index].size);
    }
    free(idle);
    return OK;
}

int32_t trainmem_load_kernels(Allocator *it, int64_t size) {
    if (!addresses_reserve(&it->addresses, (size_t)(size / SMALL_SEGMENT) + 1)) {
        return NO_MEMORY_HERE;
    }
    return addresses_load_kernels(&it->addresses, size) ? OK : NO_ADDRESS_LEFT;
}

static bool device_has(const Allocator *it, int64_t segment) {
    if (it->cap != NONE && it->reserved + segment > it->cap) {
        return false;
    }
    return it->capacity == NONE || it->outside + it->reserved + segment <= it->capacity;
}

/* A segment as one block that is in no list yet; an error, with `is_full` set where it is that. */
static int32_t new_segment(Allocator *it, int64_t size, int32_t heap) {
    int64_t segment = SMALL_SEGMENT;
    if (size > MOST_OF_SMALL_POOL) {
        segment = it->large_segment;
        if (size >= LEAST_OF_OWN_SEGMENT) {
            segment = (size + SMALL_SEGMENT - 1) / SMALL_SEGMENT * SMALL_SEGMENT;
        }
    }
    if (!device_has(it, segment)) {
        if (trainmem_empty_cache(it) != OK) {
            return NO_MEMORY_HERE;
        }
        it->retries++;
        if (!device_has(it, segment)) {
            it->is_full = true;
            return NO_MEMORY_HERE;
        }
    }
    int64_t address = addresses_place(&it->addresses, segment);
    if (address == NO_ADDRESS) {
        return NO_ADDRESS_LEFT;
    }
    it->reserved += segment;
    return new_block(it, (Block){address, segment, NONE, NONE, heap, false});
}

/* The smallest free block that fits, else a new segment; its rest is split off where the pool allows it. */
static int32_t allocate(Allocator *it, int64_t size, int32_t heap) {
    FreeList *list = free_list(it, heap, size);
    int64_t least_rest = size <= MOST_OF_SMALL_POOL ? MIN_BLOCK : MOST_OF_SMALL_POOL + 1;
    size_t index = free_index(it, list, size, INT64_MIN);
    int32_t number;
    if (index < list->count) {
        number = list->blocks[index];
        remove_free(list, index);
    } else {
        number = new_segment(it, size, heap);
        if (number < 0) {
            return number;
        }
    }
    Block *block = it->blocks + number;
    block->is_free = false;
    if (block->size - size >= least_rest) {
        Block rest = {block->address + size, block->size - size, number, block->after, heap, true};
        int32_t other = new_block(it, rest);
        if (rest.after != NONE) {
            it->blocks[rest.after].before = other;
        }
        block->after = other;
        block->size = size;
        insert_free(it, list, other);
    }
    return number;
}

/* Takes a free neighbour out of its list, so that it can become part of the block that is freed. */
static void take_neighbour(Allocator *it, FreeList *list, int32_t number) {
    const Block *block = it->blocks + number;
    remove_free(list, free_index(it, list, block->size, block->address));
    drop_block(it, number);
}

static void release(Allocator *it, int32_t number) {
    Block *block = it->blocks + number;
    FreeList *list = free_list(it, block->heap, block->size);
    int32_t after = block->after, before = block->before;
    if (after != NONE && it->blocks[after].is_free) {
        take_neighbour(it, list, after);
        block->size += it->blocks[after].size;
        block->after = it->blocks[after].after;
        if (block->after != NONE) {
            it->blocks[block->after].before = number;
        }
    }
    if (before != NONE && it->blocks[before].is_free) {
        take_neighbour(it, list, before);
        block->address = it->blocks[before].address;
        block->size += it->blocks[before].size;
        block->before = it->blocks[before].before;
        if (block->before != NONE) {
            it->blocks[block->before].after = number;
        }
    }
    block->is_free = true;
    insert_free(it, list, number);
}

/* Plays events: above zero an allocation of that many bytes, ~number the free of one, and of `later` ones after it.
   `streamed` holds the numbers of allocations, in order, that are on a stream of `streams`; all others are on the
   default one. After each event the counters are written to `allocated` and `reserved`, where those are not NULL.
   Answers how many events were played: all of them, or fewer with `is_full` set where the device was that; else an
   error, with the event's index in `highest`. */
int64_t trainmem_feed(Allocator *it, const int64_t *events, int64_t count, int64_t later, const int64_t *streamed,
                      const int32_t *streams, int64_t stream_count, int64_t *allocated, int64_t *reserved) {
    it->is_full = false;
    it->highest = 0;
    if (!reserve(it, (size_t)count, streams, (size_t)stream_count)) {
        return NO_MEMORY_HERE;
    }
    int64_t highest = 0, next_streamed = 0;
    for (int64_t index = 0; index < count; index++) {
        int64_t event = events[index];
        int32_t heap = 0;
        if (event > 0) {
            if (next_streamed < stream_count && streamed[next_streamed] == (int64_t)it->allocation_count) {
                heap = heap_of(it, streams[next_streamed++]);
            }
            if (event > MOST_REQUESTED) {
                if (it->capacity == NONE) {
                    it->highest = index;
                    return NO_ADDRESS_LEFT;
                }
                event = MOST_REQUESTED;
            }
            int32_t number = allocate(it, (event + MIN_BLOCK - 1) / MIN_BLOCK * MIN_BLOCK, heap);
            if (number < 0) {
                it->highest = it->is_full ? highest : index;
                return it->is_full ? index : number;
            }
            int64_t size = it->blocks[number].size;
            it->block_of[it->allocation_count] = number;
            it->bytes_of[it->allocation_count++] = size;
            it->allocated += size;
        } else {
            int64_t number = ~event + later;
            bool exists = number >= 0 && number < (int64_t)it->allocation_count;
            if (event == 0 || !exists || it->block_of[number] == NONE) {
                it->highest = index;
                return event == 0 ? ZERO : NOT_LIVE;
            }
            it->allocated -= it->bytes_of[number];
            release(it, it->block_of[number]);
            it->block_of[number] = NONE;
        }
        if (it->allocated > highest) {
            highest = it->allocated;
        }
        if (allocated != NULL) {
            allocated[index] = it->allocated;
            reserved[index] = it->reserved;
        }
    }
    it->highest = highest;
    return count;
}

/* allocated, reserved, retries, highest (allocated after any event of the last feed; the event's index after an
   error), whether the device had no room for the last request, allocations so far. */
void trainmem_counters(const Allocator *it, int64_t out[6]) {
    out[0] = it->allocated;
    out[1] = it->reserved;
    out[2] = it->retries;
    out[3] = it->highest;
    out[4] = it->is_full;
    out[5] = (int64_t)it->allocation_count;
}

/* Size of the block that each allocation got. */
void trainmem_block_bytes(const Allocator *it, int64_t *out) {
    for (size_t number = 0; number < it->allocation_count; number++) {
        out[number] = it->bytes_of[number];
    }
}

/* Where the free blocks lie, heap by heap, and the allocations from `first` on (NONE once freed). Answers how many
   numbers that is, and writes them where `out` is not NULL. */
int64_t trainmem_layout(const Allocator *it, int64_t first, int64_t *out) {
    int64_t count = 0;
    for (size_t index = 0; index < it->heap_count; index++) {
        const FreeList *lists[] = {&it->heaps[index].small, &it->heaps[index].large};
        for (size_t which = 0; which < 2; which++) {
            const FreeList *list = lists[which];
            if (out != NULL) {
                out[count] = (int64_t)list->count;
            }
            count++;
            for (size_t entry = 0; entry < list->count; entry++, count += 2) {
                if (out != NULL) {
                    out[count] = it->blocks[list->blocks[entry]].address;
                    out[count + 1] = it->blocks[list->blocks[entry]].size;
                }
            }
        }
    }
    for (size_t number = (size_t)first; number < it->allocation_count; number++, count++) {
        if (out != NULL) {
            int32_t block = it->block_of[number];
            out[count] = block == NONE ? NONE : it->blocks[block].address;
        }
    }
    return count;
}
