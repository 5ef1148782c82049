// What the card looks like: read once from the environment, so that every child process sees the same card. The total
// alone can change while the process runs, through `oomdoctor_null_set_capacity`.

#include "null_gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static card the_card;
static atomic_size_t total_bytes;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static size_t number(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

// The figures used where the environment says nothing are those of an RTX 3090: the library also loads outside
// oomdoctor, for instance in a debugger.
static void read_environment(void) {
    const char *name = getenv("OOMDOCTOR_NULL_NAME");
    const char *capability = getenv("OOMDOCTOR_NULL_COMPUTE_CAPABILITY");
    snprintf(the_card.name, sizeof the_card.name, "%s", name && *name ? name : "Null GPU");
    the_card.total_bytes = number("OOMDOCTOR_NULL_TOTAL_BYTES", (size_t)24 << 30);
    the_card.context_bytes = number("OOMDOCTOR_NULL_CONTEXT_BYTES", 0);
    if (!capability || sscanf(capability, "%d.%d", &the_card.major, &the_card.minor) != 2) {
        the_card.major = 8;
        the_card.minor = 6;
    }
    the_card.sm_count = (int)number("OOMDOCTOR_NULL_SM_COUNT", 82);
    the_card.threads_per_sm = (int)number("OOMDOCTOR_NULL_THREADS_PER_SM", 1536);
    the_card.shared_memory_per_block_optin = (int)number("OOMDOCTOR_NULL_SHARED_MEMORY_PER_BLOCK_BYTES", 101376);
    the_card.l2_bytes = (int)number("OOMDOCTOR_NULL_L2_BYTES", (size_t)6 << 20);
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

// Changes what PyTorch may take: the total becomes `capacity` plus the context's share. What is already allocated stays,
// even where it is more than the new capacity.
SERVED void oomdoctor_null_set_capacity(uint64_t capacity) {
    atomic_store(&total_bytes, (size_t)capacity + null_card()->context_bytes);
}

SERVED uint64_t oomdoctor_null_capacity(void) {
    return null_total_bytes() - null_card()->context_bytes;
}
