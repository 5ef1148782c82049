// The driver's virtual memory management: addresses (cuMemAddressReserve) and memory (cuMemCreate) are allocated apart, and
// cuMemMap joins them. PyTorch's expandable segments use it. Only cuMemCreate counts as used memory; the bytes are free
// again when the handle is released and no mapping of it is left.

#include "null_gpu.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct {
    size_t bytes;
    int device;
    int references;  // the handle itself, and each mapping
} physical;

typedef struct mapping {
    struct mapping *next;
    uintptr_t address;
    size_t bytes;
    physical *memory;
} mapping;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mapping *mappings;

static void drop_reference(physical *memory) {
    pthread_mutex_lock(&lock);
    bool last = --memory->references == 0;
    pthread_mutex_unlock(&lock);
    if (!last)
        return;
    null_refund(memory->device, memory->bytes);
    free(memory);
}

SERVED int cuMemGetAllocationGranularity(size_t *granularity, const void *properties, int option) {
    *granularity = PAGE_BYTES;
    return CUDA_OK;
}

SERVED int cuMemAddressReserve(uintptr_t *address, size_t bytes, size_t alignment, uintptr_t wanted, uint64_t flags) {
    *address = null_reserve_range(bytes, RANGE_RESERVATION);
    return *address ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

SERVED int cuMemAddressFree(uintptr_t address, size_t bytes) {
    int device;
    return null_release_range(address, RANGE_RESERVATION, &device) ? CUDA_OK : CUDA_INVALID_VALUE;
}

// CUmemAllocationProp: the fields that are read.
typedef struct {
    int type, handle_types, location_type, device;
} allocation_properties;

SERVED int cuMemCreate(physical **memory, size_t bytes, const allocation_properties *properties, uint64_t flags) {
    int device = properties ? properties->device : null_device();
    if (bytes == 0 || bytes % PAGE_BYTES || !null_has_device(device))
        return CUDA_INVALID_VALUE;
    if (!null_charge(device, bytes))
        return CUDA_OUT_OF_MEMORY;
    *memory = malloc(sizeof **memory);
    if (!*memory) {
        null_refund(device, bytes);
        return CUDA_OUT_OF_MEMORY;
    }
    **memory = (physical){bytes, device, 1};
    return CUDA_OK;
}

SERVED int cuMemRelease(physical *memory) {
    drop_reference(memory);
    return CUDA_OK;
}

SERVED int cuMemMap(uintptr_t address, size_t bytes, size_t offset, physical *memory, uint64_t flags) {
    mapping *entry = malloc(sizeof *entry);
    if (!entry)
        return CUDA_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    *entry = (mapping){mappings, address, bytes, memory};
    mappings = entry;
    memory->references++;
    pthread_mutex_unlock(&lock);
    return CUDA_OK;
}

// Removes one mapping that lies within the span from the list.
static mapping *remove_mapping_within(uintptr_t address, size_t bytes) {
    pthread_mutex_lock(&lock);
    mapping **link = &mappings;
    while (*link && ((*link)->address < address || (*link)->address + (*link)->bytes > address + bytes))
        link = &(*link)->next;
    mapping *entry = *link;
    if (entry)
        *link = entry->next;
    pthread_mutex_unlock(&lock);
    return entry;
}

SERVED int cuMemUnmap(uintptr_t address, size_t bytes) {
    size_t unmapped = 0;
    for (mapping *entry; (entry = remove_mapping_within(address, bytes)) != NULL;) {
        unmapped += entry->bytes;
        drop_reference(entry->memory);
        free(entry);
    }
    return unmapped == bytes ? CUDA_OK : CUDA_INVALID_VALUE;
}

SERVED_NO_OP(cuMemSetAccess)
