// The card, read once from the environment, so that every child process sees the same one, and the devices of the process.
// The card's total alone can change while the process runs, through `oomdoctor_null_set_capacity`.

#include "null_gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static card the_card;
static atomic_size_t total_bytes;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static size_t read_number(const char *name, size_t fallback) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : fallback;
}

// The defaults are the figures of an RTX 3090: the library also loads outside
// oomdoctor, for instance in a debugger.
static void read_environment(void) {
    const char *name = getenv("OOMDOCTOR_NULL_NAME");
    const char *capability = getenv("OOMDOCTOR_NULL_COMPUTE_CAPABILITY");
    snprintf(the_card.name, sizeof the_card.name, "%s", name && *name ? name : "Null GPU");
    the_card.total_bytes = read_number("OOMDOCTOR_NULL_TOTAL_BYTES", (size_t)24 << 30);
    the_card.context_bytes = read_number("OOMDOCTOR_NULL_CONTEXT_BYTES", 0);
    the_card.reserve_bytes = read_number("OOMDOCTOR_NULL_RESERVE_BYTES", 0);
    if (!capability || sscanf(capability, "%d.%d", &the_card.major, &the_card.minor) != 2) {
        the_card.major = 8;
        the_card.minor = 6;
    }
    the_card.sm_count = (int)read_number("OOMDOCTOR_NULL_SM_COUNT", 82);
    the_card.threads_per_sm = (int)read_number("OOMDOCTOR_NULL_THREADS_PER_SM", 1536);
    the_card.shared_memory_per_block_optin = (int)read_number("OOMDOCTOR_NULL_SHARED_MEMORY_PER_BLOCK_BYTES", 101376);
    the_card.l2_bytes = (int)read_number("OOMDOCTOR_NULL_L2_BYTES", (size_t)6 << 20);
    atomic_store(&total_bytes, the_card.total_bytes);
}

const card *null_card(void) {
    pthread_once(&once, read_environment);
    return &the_card;
}

size_t null_total_bytes(void) {
    null_card();
    return atomic_load(&total_bytes);
}

// Sets the bytes that PyTorch may take: the total becomes `capacity` plus the bytes of the context and of others.
// Existing allocations stay, even where they exceed the new capacity.
SERVED void oomdoctor_null_set_capacity(uint64_t capacity) {
    atomic_store(&total_bytes, (size_t)capacity + null_card()->context_bytes + null_card()->reserve_bytes);
}

SERVED uint64_t oomdoctor_null_capacity(void) {
    return null_total_bytes() - null_card()->context_bytes - null_card()->reserve_bytes;
}

// ---- devices ----

// There is one device, except where OOMDOCTOR_NULL_DEVICES says how many, and in a process that a launcher started beside others on the same machine: each process uses the
// device of its own LOCAL_RANK, so there are LOCAL_WORLD_SIZE devices. All are the same card, each with its own memory. The
// memory counted is this process's: what another rank allocates on "the same" device is not counted here.

static _Thread_local int current_device;

// The environment is read at each call: a process that was forked before CUDA was initialised may have another one by now.
int null_device_count(void) {
    const char *own = getenv("OOMDOCTOR_NULL_DEVICES");
    const char *text = own ? own : getenv("LOCAL_WORLD_SIZE");
    long count = text ? strtol(text, NULL, 10) : 1;
    return count < 1 ? 1 : count > MAX_DEVICES ? MAX_DEVICES : (int)count;
}

bool null_has_device(int device) { return device >= 0 && device < null_device_count(); }

int null_device(void) { return current_device; }

int null_use_device(int device) {
    if (!null_has_device(device))
        return CUDA_INVALID_DEVICE;
    current_device = device;
    return CUDA_OK;
}
