/* Streams of events, put together of parts: trainmem/allocator/compiled/laying.py, compiled. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ALLOCATED = -1, ALLOCATED_ONCE = -2 };

/* An event of a part. Where `slot` is negative it allocates `sizes[size]` bytes, else it frees the allocation of that
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
    const int32_t *order, *slot_begin, *home_begin, *homes;
    int64_t count;
} Row;

static bool is_made(PartEvent event, const int64_t *sizes, bool first) {
    return sizes[event.size] > 0 && (first || event.slot == ALLOCATED);
}

/* For each part and rank: how many allocations the part makes before that one. */
static void number_ranks(const Parts *parts, const int64_t *sizes, bool first, int32_t *before) {
    for (int64_t part = 0; part < parts->count; part++) {
        int32_t made = 0;
        for (int32_t index = parts->event_begin[part]; index < parts->event_begin[part + 1]; index++) {
            PartEvent event = parts->events[index];
            if (event.slot < 0 && is_made(event, sizes, first)) {
                if (event.slot == ALLOCATED) {
                    before[parts->rank_begin[part] + event.rank] = made;
                }
                made++;
            }
        }
    }
}

/* Writes the events of a row to `out`; `start` allocations come before it. Answers how many events there are.
   `starts` and `begins`: for each place, and behind the last, how many allocations and events come before it. */
int64_t trainmem_lay(const Parts *parts, const Row *row, const int64_t *sizes, const int64_t *given, int32_t first,
                     int64_t start, int32_t *before, int64_t *starts, int64_t *begins, int64_t *out) {
    number_ranks(parts, sizes, first != 0, before);
    int64_t written = 0, allocations = start;
    for (int64_t place = 0; place < row->count; place++) {
        int32_t part = row->order[place];
        starts[place] = allocations;
        begins[place] = written;
        for (int32_t index = parts->event_begin[part]; index < parts->event_begin[part + 1]; index++) {
            PartEvent event = parts->events[index];
            if (event.slot < 0) {
                if (is_made(event, sizes, first != 0)) {
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
                int64_t number = home < 0 ? given[~home]
                                          : starts[home] + before[parts->rank_begin[row->order[home]] + event.rank];
                out[written++] = ~number;
            }
        }
    }
    starts[row->count] = allocations;
    begins[row->count] = written;
    return written;
}
