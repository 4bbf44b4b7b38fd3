/* Streams of events, looked through. */

#include <stdint.h>

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

/* The event that makes an allocation; -1 where it is not among them. */
int64_t trainmem_event_of(const int64_t *events, int64_t count, int64_t number) {
    for (int64_t index = 0; index < count; index++) {
        if (events[index] > 0 && number-- == 0) {
            return index;
        }
    }
    return -1;
}
