/* PyTorch's CUDA caching allocator under its default rules: trainmem/allocator/caching.py, compiled.

   Left out beside what that file leaves out: private pools, expandable segments, unsplittable blocks, garbage
   collection, sizes rounded to powers of two, and frees that wait for another stream. */

#include <stdlib.h>

#include "allocator.h"

#define MIB ((int64_t)1 << 20)

static const int64_t MIN_BLOCK = 512;
static const int64_t MOST_OF_SMALL_POOL = 1 * MIB;
static const int64_t SMALL_SEGMENT = 2 * MIB;
static const int64_t LEAST_OF_OWN_SEGMENT = 10 * MIB;
static const int64_t MOST_REQUESTED = (int64_t)1 << 50; /* more fits no device, and no address space */

enum { OK = 0, NO_MEMORY_HERE = -1, NO_ADDRESS_LEFT = -2, NOT_LIVE = -3, ZERO = -4 };

/* Of the sources that this was built from. */
const uint32_t trainmem_fingerprint = TRAINMEM_FINGERPRINT;

/* A number for a block that is to be filled in. */
static int32_t new_block(Allocator *it) {
    int32_t number = it->unused;
    if (number == 0) {
        return (int32_t)it->block_count++;
    }
    it->unused = it->blocks[number].after;
    return number;
}

static void drop_block(Allocator *it, int32_t number) {
    it->blocks[number].after = it->unused;
    it->unused = number;
}

static int by_address(const void *one, const void *other) {
    int64_t left = ((const Range *)one)->address, right = ((const Range *)other)->address;
    return (left > right) - (left < right);
}

/* torch.cuda.empty_cache: gives every segment that is one free block back to the device. */
int32_t trainmem_empty_cache(Allocator *it) {
    int64_t most = 0, count = 0;
    for (size_t index = 0; index < it->pool_count; index++) {
        most += it->pools[index].count;
    }
    Range *idle = malloc((size_t)(most + 1) * sizeof *idle);
    if (idle == NULL) {
        return NO_MEMORY_HERE;
    }
    for (size_t index = 0; index < it->pool_count; index++) {
        Pool *pool = it->pools + index;
        for (int32_t list = next_list(pool, 0); list < LISTS; list = next_list(pool, list + 1)) {
            int32_t head = pool->heads + list, number = it->blocks[head].larger_or_pool;
            while (number != head) {
                Block block = it->blocks[number];
                if (block.before == 0 && block.after == 0) {
                    idle[count++] = (Range){block.address, block.size};
                    it->reserved -= block.size;
                    remove_free(it->blocks, pool, number);
                    drop_block(it, number);
                }
                number = block.larger_or_pool;
            }
        }
    }
    qsort(idle, (size_t)count, sizeof *idle, by_address);
    for (int64_t index = 0; index < count; index++) {
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
static int32_t new_segment(Allocator *it, int64_t size) {
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
    int32_t number = new_block(it);
    it->blocks[number] = (Block){.address = address, .size = segment};
    return number;
}

/* The smallest free block that fits, else a new segment; its rest is split off where the pool allows it. */
static int32_t allocate(Allocator *it, int64_t size, int32_t pools) {
    bool is_small = size <= MOST_OF_SMALL_POOL;
    int32_t number_of_pool = is_small ? pools : pools + 1;
    int64_t least_rest = is_small ? MIN_BLOCK : MOST_OF_SMALL_POOL + 1;
    Pool *pool = it->pools + number_of_pool;
    int32_t number = best_fit(it->blocks, pool, size);
    if (number) {
        remove_free(it->blocks, pool, number);
    } else {
        number = new_segment(it, size);
        if (number < 0) {
            return number;
        }
    }
    Block *blocks = it->blocks, *block = blocks + number;
    block->smaller = LIVE;
    block->larger_or_pool = number_of_pool;
    int64_t rest = block->size - size;
    if (rest >= least_rest) {
        int32_t other = new_block(it), after = block->after;
        blocks[other].address = block->address + size;
        blocks[other].size = rest;
        blocks[other].before = number;
        blocks[other].after = after;
        blocks[after].before = other;
        block->after = other;
        block->size = size;
        insert_free(blocks, pool, other);
    }
    return number;
}

static void release(Allocator *it, int32_t number) {
    Block *blocks = it->blocks, *block = blocks + number;
    Pool *pool = it->pools + block->larger_or_pool;
    int32_t after = block->after, before = block->before;
    if (is_free(blocks + after)) {
        remove_free(blocks, pool, after);
        block->size += blocks[after].size;
        block->after = blocks[after].after;
        blocks[block->after].before = number;
        drop_block(it, after);
    }
    if (is_free(blocks + before)) {
        remove_free(blocks, pool, before);
        block->address = blocks[before].address;
        block->size += blocks[before].size;
        block->before = blocks[before].before;
        blocks[block->before].after = number;
        drop_block(it, before);
    }
    insert_free(blocks, pool, number);
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
        int32_t pools = 0;
        if (event > 0) {
            if (next_streamed < stream_count && streamed[next_streamed] == (int64_t)it->allocation_count) {
                pools = pools_of(it, streams[next_streamed++]);
            }
            if (event > MOST_REQUESTED) {
                if (it->capacity == NONE) {
                    it->highest = index;
                    return NO_ADDRESS_LEFT;
                }
                event = MOST_REQUESTED;
            }
            int32_t number = allocate(it, (event + MIN_BLOCK - 1) / MIN_BLOCK * MIN_BLOCK, pools);
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
            if (event == 0 || !exists || !it->block_of[number]) {
                it->highest = index;
                return event == 0 ? ZERO : NOT_LIVE;
            }
            it->allocated -= it->bytes_of[number];
            release(it, it->block_of[number]);
            it->block_of[number] = 0;
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
