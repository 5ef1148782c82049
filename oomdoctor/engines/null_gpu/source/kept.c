// Small data that makes a round trip through the device while a program is told to agree with other ranks on something:
// what it reads back is what it wrote. Otherwise nothing is kept, since nobody knows what a kernel would have made of it.

#include "null_gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_COPIES = 64, MOST_BYTES = 1 << 20 };

typedef struct {
    uintptr_t address;
    size_t bytes;
    void *data;
} kept_copy;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int wanted;
static kept_copy copies[MOST_COPIES];  // one without data is free

static void forget(kept_copy *copy) {
    free(copy->data);
    *copy = (kept_copy){0};
}

// The hook says when: 1 before, 0 after. Calls may be nested, and the last end forgets.
SERVED void oomdoctor_null_keep_copies(int keep) {
    if (atomic_fetch_add(&wanted, keep ? 1 : -1) != 1 || keep)
        return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_COPIES; i++)
        forget(&copies[i]);
    pthread_mutex_unlock(&lock);
}

void null_keep_copy(void *device, const void *source, size_t bytes) {
    if (!wanted)
        return;
    uintptr_t address = (uintptr_t)device;
    bool known = !null_is_device_address(source) && bytes <= MOST_BYTES;
    kept_copy *place = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_COPIES; i++) {
        if (copies[i].data && copies[i].address < address + bytes && address < copies[i].address + copies[i].bytes)
            forget(&copies[i]);  // overwritten, if only in part
        if (!copies[i].data)
            place = &copies[i];
    }
    void *data = known && place ? malloc(bytes) : NULL;
    if (data)
        *place = (kept_copy){address, bytes, memcpy(data, source, bytes)};
    pthread_mutex_unlock(&lock);
}

bool null_recall_copy(void *destination, const void *device, size_t bytes) {
    bool found = false;
    if (!wanted)
        return false;
    uintptr_t address = (uintptr_t)device;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_COPIES && !found; i++) {
        const kept_copy *copy = &copies[i];
        found = copy->data && address >= copy->address && address + bytes <= copy->address + copy->bytes;
        if (found)
            memcpy(destination, (char *)copy->data + (address - copy->address), bytes);
    }
    pthread_mutex_unlock(&lock);
    return found;
}
