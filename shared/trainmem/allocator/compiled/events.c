/* Streams of events, put together. */

#include <stdint.h>

/* Writes `count` events to `out`. Where `slots` is negative a value allocates that many bytes, else it frees the
   allocation that stands so many after `bases[slot]`. */
void trainmem_lay(const int64_t *values, const int32_t *slots, int64_t count, const int64_t *bases, int64_t *out) {
    for (int64_t index = 0; index < count; index++) {
        out[index] = slots[index] < 0 ? values[index] : ~(bases[slots[index]] + values[index]);
    }
}

/* The first of the allocations that events free; -1 where they free nothing. */
int64_t trainmem_first_freed(const int64_t *events, int64_t count) {
    int64_t first = INT64_MAX;
    for (int64_t index = 0; index < count; index++) {
        if (events[index] < 0 && ~events[index] < first) {
            first = ~events[index];
        }
    }
    return first == INT64_MAX ? -1 : first;
}
