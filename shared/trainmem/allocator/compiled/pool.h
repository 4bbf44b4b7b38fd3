/* The free blocks of a pool, sorted by their sizes, then by their addresses.

   Recorded steps free many blocks of few sizes, most of them at an end of what is free of their size. So there is a
   sorted list for every 32nd of an octave of sizes, two levels of bits say which lists have blocks (as in TLSF), and
   a place is looked for from both ends of one list. */

#ifndef TRAINMEM_POOL_H
#define TRAINMEM_POOL_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { LEAST_SIZE_BITS = 9, STEP_BITS = 5, STEPS = 1 << STEP_BITS, OCTAVES = 42, LISTS = OCTAVES * STEPS };
enum { LIVE = -1 };

/* A piece of a segment, between its neighbours there and, while it is free, between those in its list. Blocks are
   known by their numbers. Number 0 stands for what lies beyond a segment's ends: it is never free, and its neighbours
   say nothing. A list is a ring, closed by a block that is only its head. */
typedef struct {
    int64_t address, size;
    int32_t before, after;  /* in the segment */
    int32_t smaller;        /* in the list; LIVE where the block is not free */
    int32_t larger_or_pool; /* in the list; where the block is not free, the number of its pool */
} Block;

typedef struct {
    int32_t stream;
    int32_t heads;               /* number of the first list's head; those of the others follow */
    int64_t count;               /* of free blocks */
    uint64_t octaves;            /* bits: which have any */
    uint32_t steps[OCTAVES + 1]; /* bits, by octave: which of its lists have any; nothing beyond the last octave */
} Pool;

static inline void pool_begin(Pool *pool, int32_t stream, int32_t heads) {
    pool->stream = stream;
    pool->heads = heads;
    pool->count = 0;
    pool->octaves = 0;
    memset(pool->steps, 0, sizeof pool->steps);
}

/* Index of the list for a size between 512 bytes and 2^51. */
static inline int32_t list_of(int64_t size) {
    int32_t bits = 63 - __builtin_clzll((uint64_t)size);
    return (bits - LEAST_SIZE_BITS - 1) * STEPS + (int32_t)(size >> (bits - STEP_BITS));
}

/* Index of the first list from `index` on that has blocks; LISTS where none has. */
static inline int32_t next_list(const Pool *pool, int32_t index) {
    int32_t octave = index >> STEP_BITS;
    uint32_t steps = pool->steps[octave] & (UINT32_MAX << (index % STEPS));
    if (steps == 0) {
        uint64_t octaves = pool->octaves & (UINT64_MAX << octave << 1);
        if (octaves == 0) {
            return LISTS;
        }
        octave = __builtin_ctzll(octaves);
        steps = pool->steps[octave];
    }
    return octave * STEPS + __builtin_ctz(steps);
}

static inline bool is_free(const Block *block) {
    return block->smaller != LIVE;
}

static inline bool is_below(const Block *block, int64_t size, int64_t address) {
    return block->size < size || (block->size == size && block->address < address);
}

/* The first block of a list that is not smaller than `size` or, among equals, not below `address`; else its head. */
static inline int32_t first_from(const Block *blocks, int32_t head, int64_t size, int64_t address) {
    int32_t low = blocks[head].larger_or_pool, high = blocks[head].smaller;
    if (!is_below(blocks + low, size, address)) {
        return low;
    }
    if (is_below(blocks + high, size, address)) {
        return head;
    }
    for (;;) {
        low = blocks[low].larger_or_pool;
        if (!is_below(blocks + low, size, address)) {
            return low;
        }
        int32_t next = blocks[high].smaller;
        if (is_below(blocks + next, size, address)) {
            return high;
        }
        high = next;
    }
}

/* The smallest block that holds `size`, of equals the lowest; 0 for none. */
static inline int32_t best_fit(const Block *blocks, const Pool *pool, int64_t size) {
    int32_t index = list_of(size);
    int32_t found = next_list(pool, index);
    if (found == index) {
        int32_t head = pool->heads + index, number = first_from(blocks, head, size, INT64_MIN);
        if (number != head) {
            return number;
        }
        found = next_list(pool, index + 1);
    }
    return found < LISTS ? blocks[pool->heads + found].larger_or_pool : 0;
}

static inline void insert_free(Block *blocks, Pool *pool, int32_t number) {
    Block *block = blocks + number;
    int32_t index = list_of(block->size), octave = index >> STEP_BITS, head = pool->heads + index, larger = head;
    uint32_t step = (uint32_t)1 << (index % STEPS);
    pool->count++;
    if (pool->steps[octave] & step) {
        larger = first_from(blocks, head, block->size, block->address);
    } else {
        pool->steps[octave] |= step;
        pool->octaves |= (uint64_t)1 << octave;
        blocks[head].smaller = head;
    }
    int32_t smaller = blocks[larger].smaller;
    block->smaller = smaller;
    block->larger_or_pool = larger;
    blocks[smaller].larger_or_pool = number;
    blocks[larger].smaller = number;
}

static inline void remove_free(Block *blocks, Pool *pool, int32_t number) {
    Block *block = blocks + number;
    int32_t smaller = block->smaller, larger = block->larger_or_pool;
    blocks[smaller].larger_or_pool = larger;
    blocks[larger].smaller = smaller;
    pool->count--;
    if (smaller == larger) {
        int32_t index = larger - pool->heads, octave = index >> STEP_BITS;
        pool->steps[octave] &= ~((uint32_t)1 << (index % STEPS));
        if (pool->steps[octave] == 0) {
            pool->octaves &= ~((uint64_t)1 << octave);
        }
    }
}

#endif
