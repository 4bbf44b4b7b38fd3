/* What an allocator can be asked. */

#include "allocator.h"

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

/* Where the free blocks lie, pool by pool, and the allocations from `first` on (NONE once freed). Answers how many
   numbers that is, and writes them where `out` is not NULL. */
int64_t trainmem_layout(const Allocator *it, int64_t first, int64_t *out) {
    int64_t allocations = (int64_t)it->allocation_count;
    int64_t count = first < allocations ? allocations - first : 0;
    for (size_t index = 0; index < it->pool_count; index++) {
        count += 1 + 2 * it->pools[index].count;
    }
    if (out == NULL) {
        return count;
    }
    for (size_t index = 0; index < it->pool_count; index++) {
        const Pool *pool = it->pools + index;
        *out++ = pool->count;
        for (int32_t list = next_list(pool, 0); list < LISTS; list = next_list(pool, list + 1)) {
            int32_t head = pool->heads + list, number = it->blocks[head].larger_or_pool;
            while (number != head) {
                *out++ = it->blocks[number].address;
                *out++ = it->blocks[number].size;
                number = it->blocks[number].larger_or_pool;
            }
        }
    }
    for (int64_t number = first; number < allocations; number++) {
        int32_t block = it->block_of[number];
        *out++ = block ? it->blocks[block].address : NONE;
    }
    return count;
}
