/* What an allocator consists of, and the room it takes. */

#ifndef TRAINMEM_ALLOCATOR_H
#define TRAINMEM_ALLOCATOR_H

#include "addresses.h"
#include "pool.h"

enum { NONE = -1 };

typedef struct {
    int64_t capacity, outside, cap, large_segment; /* capacity and cap: NONE for no limit */
    int64_t allocated, reserved, retries, highest;
    bool is_full; /* the device had no room for the last request */
    Addresses addresses;
    Pool *pools; /* two of each stream, the small and the large one */
    Block *blocks;
    int32_t unused;    /* a block that may be used again, and after it the next ones; 0 for none */
    int32_t *block_of; /* by allocation: its block, 0 once freed */
    int64_t *bytes_of; /* by allocation: the size of the block it got */
    size_t pool_count, block_count, allocation_count;
    size_t pool_room, block_room, block_of_room, bytes_of_room;
} Allocator;

/* Number of the small pool of a stream, made where there is none; NONE without memory. The large one is the next. */
int32_t pools_of(Allocator *it, int32_t stream);

/* Room for all that `events` more events can make, so that nothing after it asks for memory. */
bool reserve(Allocator *it, size_t events, const int32_t *streams, size_t stream_count);

#endif
