#include "allocator.h"

#include <stdatomic.h>
#include <stdlib.h>

/* The allocator that was deleted last: the next one takes its memory, which the system then need not clear again. */
static _Atomic(Allocator *) spare;

static void end(Allocator *it) {
    if (it == NULL) {
        return;
    }
    addresses_end(&it->addresses);
    free(it->pools);
    free(it->blocks);
    free(it->block_of);
    free(it->bytes_of);
    free(it);
}

Allocator *trainmem_new(int64_t capacity, int64_t outside, int64_t cap, int64_t large_segment, int32_t rising,
                        int64_t segments_before_kernels) {
    Allocator *it = atomic_exchange(&spare, NULL);
    if (it == NULL) {
        it = calloc(1, sizeof *it);
    }
    if (it == NULL) {
        return NULL;
    }
    it->capacity = capacity;
    it->outside = outside;
    it->cap = cap;
    it->large_segment = large_segment;
    it->allocated = it->reserved = it->retries = it->highest = 0;
    it->is_full = false;
    it->unused = 0;
    it->pool_count = it->allocation_count = 0;
    it->block_count = 1;
    if (!addresses_begin(&it->addresses, rising != 0, segments_before_kernels)) {
        end(it);
        return NULL;
    }
    return it;
}

void trainmem_delete(Allocator *it) {
    end(atomic_exchange(&spare, it));
}

int32_t pools_of(Allocator *it, int32_t stream) {
    for (size_t index = 0; index < it->pool_count; index += 2) {
        if (it->pools[index].stream == stream) {
            return (int32_t)index;
        }
    }
    size_t pools = it->pool_count + 2, blocks = it->block_count + 2 * LISTS;
    if (!make_room((void **)&it->pools, &it->pool_room, pools, sizeof *it->pools) ||
        !make_room((void **)&it->blocks, &it->block_room, blocks, sizeof *it->blocks)) {
        return NONE;
    }
    for (; it->pool_count < pools; it->block_count += LISTS) {
        pool_begin(it->pools + it->pool_count++, stream, (int32_t)it->block_count);
    }
    return (int32_t)pools - 2;
}

bool reserve(Allocator *it, size_t events, const int32_t *streams, size_t stream_count) {
    if (pools_of(it, 0) == NONE) {
        return false;
    }
    for (size_t index = 0; index < stream_count; index++) {
        if (pools_of(it, streams[index]) == NONE) {
            return false;
        }
    }
    size_t blocks = it->block_count + 2 * events, allocations = it->allocation_count + events;
    if (!make_room((void **)&it->blocks, &it->block_room, blocks, sizeof *it->blocks)) {
        return false;
    }
    it->blocks[0] = (Block){.smaller = LIVE};
    return make_room((void **)&it->block_of, &it->block_of_room, allocations, sizeof *it->block_of) &&
           make_room((void **)&it->bytes_of, &it->bytes_of_room, allocations, sizeof *it->bytes_of) &&
           addresses_reserve(&it->addresses, events);
}
