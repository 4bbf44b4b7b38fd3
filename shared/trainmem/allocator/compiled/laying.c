/* Streams of events, put together of parts: trainmem/allocator/compiled/laying.py, compiled. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NONE = -1 };

/* What a place makes: what any does, also what each does in a first row, also what the first of its part does there. */
enum { STEADY, FIRST, LEADING, LEVELS };

/* An event of a part. Where `slot` is negative it allocates `sizes[size]` bytes at places of level ~slot and higher, else it frees the allocation of that
   `rank` of each part that stands in the slot; `size` is then that of the allocation, NONE of a given one. */
typedef struct {
    int32_t slot, size, rank;
} PartEvent;

/* The parts one after the other: where the events and the ranks of each begin, and those of the one behind the last. */
typedef struct {
    const PartEvent *events;
    const int32_t *event_begin, *rank_begin;
    int64_t count;
} Parts;

/* Which part stands at each place of a row; for each place and slot where its homes begin in `homes`: places whose
   part made what is freed, or ~index of a number that is given. */
typedef struct {
    const int32_t *order, *levels, *slot_begin, *home_begin, *homes; /* levels: of each place in a first row */
    int64_t count;
} Row;

static bool is_made(PartEvent event, const int64_t *sizes, int level) {
    return sizes[event.size] > 0 && ~event.slot <= level;
}

/* For each part and rank: how many allocations the part makes before that one. */
static void number_ranks(const Parts *parts, const int64_t *sizes, int level, int32_t *before) {
    for (int64_t part = 0; part < parts->count; part++) {
        int32_t made = 0;
        for (int32_t index = parts->event_begin[part]; index < parts->event_begin[part + 1]; index++) {
            PartEvent event = parts->events[index];
            if (event.slot < 0 && is_made(event, sizes, level)) {
                if (event.rank != NONE) {
                    before[parts->rank_begin[part] + event.rank] = made;
                }
                made++;
            }
        }
    }
}

/* Writes the events of a row to `out`; `start` allocations come before it. Answers how many events there are.
   `starts` and `begins`: for each place, and behind the last, how many allocations and events come before it;
   `ranks`: where in `before` the ranks of its part begin. */
int64_t trainmem_lay(const Parts *parts, const Row *row, const int64_t *sizes, const int64_t *given, int32_t first,
                     int64_t start, int32_t *before, int32_t *ranks, int64_t *starts, int64_t *begins, int64_t *out) {
    int32_t all_ranks = parts->rank_begin[parts->count];
    for (int level = STEADY; level < (first ? LEVELS : FIRST); level++) {
        number_ranks(parts, sizes, level, before + level * all_ranks);
    }
    int64_t written = 0, allocations = start;
    for (int64_t place = 0; place < row->count; place++) {
        int32_t part = row->order[place];
        int level = first ? row->levels[place] : STEADY;
        ranks[place] = parts->rank_begin[part] + level * all_ranks;
        starts[place] = allocations;
        begins[place] = written;
        for (int32_t index = parts->event_begin[part]; index < parts->event_begin[part + 1]; index++) {
            PartEvent event = parts->events[index];
            if (event.slot < 0) {
                if (is_made(event, sizes, level)) {
                    out[written++] = sizes[event.size];
                    allocations++;
                }
                continue;
            }
            if (event.size < 0 ? first == 0 : sizes[event.size] <= 0) {
                continue;
            }
            int32_t slot = row->slot_begin[place] + event.slot;
            for (int32_t each = row->home_begin[slot]; each < row->home_begin[slot + 1]; each++) {
                int32_t home = row->homes[each];
                int64_t number = home < 0 ? given[~home] : starts[home] + before[ranks[home] + event.rank];
                out[written++] = ~number;
            }
        }
    }
    starts[row->count] = allocations;
    begins[row->count] = written;
    return written;
}
