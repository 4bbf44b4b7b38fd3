/* Where cudaMalloc puts a new segment: trainmem/allocator/addresses.py, compiled. */

#ifndef TRAINMEM_ADDRESSES_H
#define TRAINMEM_ADDRESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int64_t address, size, used;
} Chunk;

/* A range of addresses nobody has: a hole in a chunk, or a gap between chunks. */
typedef struct {
    int64_t address, size;
} Range;

/* All three lists go from high addresses to low ones, since the driver goes down: what is new lies at their end. */
typedef struct {
    bool rising;
    int64_t next;      /* rising: the address of the next segment */
    int64_t wait;      /* segments before the first kernel opens the late hole */
    int64_t placed;
    int64_t bottom;    /* the lowest address of any chunk */
    int64_t largest;   /* no hole is larger */
    size_t taken;      /* ranges that segments and kernels have now */
    Chunk *chunks;
    Range *holes, *gaps;
    size_t chunk_count, hole_count, gap_count, chunk_room, hole_room, gap_room;
} Addresses;

enum { NO_ADDRESS = -1 };

/* Of a process that has made nothing; the lists keep the memory they have, all zero where it is none. False where the
   machine has no memory for them. */
bool addresses_begin(Addresses *at, bool rising, int64_t segments_before_kernels);
void addresses_end(Addresses *at);

/* Room for so many more segments, so that the functions below need none. */
bool addresses_reserve(Addresses *at, size_t segments);

/* The address of a new segment; NO_ADDRESS where a process has none left. */
int64_t addresses_place(Addresses *at, int64_t size);
void addresses_release(Addresses *at, int64_t address, int64_t size);

/* False where there is no address left; a segment's room for every 2 MiB. */
bool addresses_load_kernels(Addresses *at, int64_t size);

/* Makes room for `count` elements of a list; false without memory. */
bool make_room(void **list, size_t *room, size_t count, size_t element);

#endif
