// The one account of device memory and the one map of device addresses, behind one lock. Whoever asks, through libcudart
// or through libcuda, takes from the same bytes:
//
//     free = total - context - used
//
// Device addresses come from a region of the process that is reserved without access rights: they collide with nothing,
// and host code that follows one faults at once instead of reading something else.

#define _GNU_SOURCE
#include "null_gpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
    uintptr_t address;
    size_t bytes;
    range_kind kind;
    int device;
} range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t used_bytes[MAX_DEVICES];
static size_t peak_used_bytes[MAX_DEVICES];

static range *ranges;  // in order of address
static size_t range_count, range_room;

static uintptr_t region_start, region_end;
static pthread_once_t region_once = PTHREAD_ONCE_INIT;

// The first page of the region belongs to the context: __device__ variables pretend to be there.
static void reserve_region(void) {
    // Each stream and pool with expandable segments reserves 1.125 times the card, so the region is large. A process whose
    // address space is limited (ulimit -v) gets a smaller one.
    for (size_t bytes = (size_t)16 << 40; bytes >= (size_t)64 << 30; bytes /= 4) {
        void *start = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED)
            continue;
        madvise(start, bytes, MADV_DONTDUMP);
        region_start = ((uintptr_t)start + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
        region_end = (uintptr_t)start + bytes;
        return;
    }
}

static void make_region(void) { pthread_once(&region_once, reserve_region); }

size_t null_round_to_pages(size_t bytes) { return (bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1); }

static size_t capacity(void) {
    size_t total = null_total_bytes(), context = null_card()->context_bytes;
    return total > context ? total - context : 0;
}

bool null_charge(int device, size_t bytes) {
    pthread_mutex_lock(&lock);
    size_t *used = &used_bytes[device], *peak = &peak_used_bytes[device];
    bool fits = *used <= capacity() && bytes <= capacity() - *used;
    if (fits) {
        *used += bytes;
        if (*used > *peak)
            *peak = *used;
    }
    pthread_mutex_unlock(&lock);
    return fits;
}

void null_refund(int device, size_t bytes) {
    pthread_mutex_lock(&lock);
    used_bytes[device] -= bytes;
    pthread_mutex_unlock(&lock);
}

size_t null_used_bytes(int device) {
    pthread_mutex_lock(&lock);
    size_t bytes = used_bytes[device];
    pthread_mutex_unlock(&lock);
    return bytes;
}

size_t null_free_bytes(int device) {
    size_t used = null_used_bytes(device);
    return capacity() > used ? capacity() - used : 0;
}

SERVED uint64_t oomdoctor_null_used(void) { return null_used_bytes(null_device()); }

SERVED uint64_t oomdoctor_null_peak_used(void) {
    pthread_mutex_lock(&lock);
    size_t bytes = peak_used_bytes[null_device()];
    pthread_mutex_unlock(&lock);
    return bytes;
}

// The first range whose end lies above `address`.
static size_t first_range_above(uintptr_t address) {
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].address + ranges[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool make_room_for_range(void) {
    if (range_count < range_room)
        return true;
    size_t room = range_room ? 2 * range_room : 256;
    range *larger = realloc(ranges, room * sizeof *larger);
    if (!larger)
        return false;
    ranges = larger;
    range_room = room;
    return true;
}

// Lowest gap that is large enough: addresses are used again, so that a long search for a batch size never runs out.
uintptr_t null_take_range(size_t bytes, range_kind kind) {
    make_region();
    bytes = null_round_to_pages(bytes);
    pthread_mutex_lock(&lock);
    uintptr_t address = region_start + PAGE_BYTES;
    size_t index = 0;
    while (index < range_count && ranges[index].address - address < bytes) {
        address = ranges[index].address + ranges[index].bytes;
        index++;
    }
    if (!region_start || bytes > region_end - address || !make_room_for_range()) {
        address = 0;
    } else {
        memmove(&ranges[index + 1], &ranges[index], (range_count - index) * sizeof *ranges);
        ranges[index] = (range){address, bytes, kind, null_device()};
        range_count++;
    }
    pthread_mutex_unlock(&lock);
    return address;
}

size_t null_give_range_back(uintptr_t address, range_kind kind, int *device) {
    size_t bytes = 0;
    pthread_mutex_lock(&lock);
    size_t index = first_range_above(address);
    if (index < range_count && ranges[index].address == address && ranges[index].kind == kind) {
        bytes = ranges[index].bytes;
        *device = ranges[index].device;
        range_count--;
        memmove(&ranges[index], &ranges[index + 1], (range_count - index) * sizeof *ranges);
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}

bool null_find_range(uintptr_t address, uintptr_t *base, size_t *bytes, int *device) {
    pthread_mutex_lock(&lock);
    size_t index = first_range_above(address);
    bool found = index < range_count && ranges[index].address <= address;
    if (found) {
        *base = ranges[index].address;
        *bytes = ranges[index].bytes;
        *device = ranges[index].device;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool null_is_device_address(const void *pointer) {
    return (uintptr_t)pointer >= region_start && (uintptr_t)pointer < region_end;
}

int null_device_of(const void *pointer) {
    uintptr_t base;
    size_t bytes;
    int device = 0;  // of the page that is the context's
    null_find_range((uintptr_t)pointer, &base, &bytes, &device);
    return device;
}

uintptr_t null_symbol_address(void) {
    make_region();
    return region_start;
}

// cudaMalloc and cuMemAlloc. Every allocation takes whole pages; the real driver packs several small ones into a page,
// which PyTorch's allocator never lets it do (it asks for 2 MiB at least, unless PYTORCH_NO_CUDA_MEMORY_CACHING is set).
int null_allocate(size_t bytes, uintptr_t *address) {
    *address = 0;
    if (bytes == 0)
        return CUDA_OK;
    if (bytes > SIZE_MAX / 2)
        return CUDA_OUT_OF_MEMORY;
    bytes = null_round_to_pages(bytes);
    if (!null_charge(null_device(), bytes))
        return CUDA_OUT_OF_MEMORY;
    *address = null_take_range(bytes, RANGE_ALLOCATION);
    if (*address)
        return CUDA_OK;
    null_refund(null_device(), bytes);
    return CUDA_OUT_OF_MEMORY;
}

int null_release(uintptr_t address) {
    if (!address)
        return CUDA_OK;
    int device;
    size_t bytes = null_give_range_back(address, RANGE_ALLOCATION, &device);
    if (!bytes)
        return CUDA_INVALID_VALUE;
    null_refund(device, bytes);
    return CUDA_OK;
}

// ---- pinned host memory: real memory of this process, remembered so that `is_pinned` can be answered ----

typedef struct pinned {
    struct pinned *next;
    void *pointer;
    size_t bytes;
    bool owned;  // allocated here, not registered
} pinned;

static pinned *all_pinned;

static int remember_pinned(void *pointer, size_t bytes, bool owned) {
    pinned *entry = malloc(sizeof *entry);
    if (!entry)
        return CUDA_OUT_OF_MEMORY;
    *entry = (pinned){NULL, pointer, bytes, owned};
    pthread_mutex_lock(&lock);
    entry->next = all_pinned;
    all_pinned = entry;
    pthread_mutex_unlock(&lock);
    return CUDA_OK;
}

static int forget_pinned(void *pointer, bool owned) {
    pthread_mutex_lock(&lock);
    pinned **link = &all_pinned;
    while (*link && ((*link)->pointer != pointer || (*link)->owned != owned))
        link = &(*link)->next;
    pinned *entry = *link;
    if (entry)
        *link = entry->next;
    pthread_mutex_unlock(&lock);
    if (!entry)
        return CUDA_INVALID_VALUE;
    free(entry);
    return CUDA_OK;
}

int null_host_allocate(void **pointer, size_t bytes) {
    *pointer = NULL;
    if (bytes == 0)
        return CUDA_OK;
    if (posix_memalign(pointer, 4096, bytes) != 0)
        return CUDA_OUT_OF_MEMORY;
    return remember_pinned(*pointer, bytes, true);
}

int null_host_release(void *pointer) {
    if (!pointer)
        return CUDA_OK;
    int error = forget_pinned(pointer, true);
    if (!error)
        free(pointer);
    return error;
}

int null_host_register(void *pointer, size_t bytes) { return remember_pinned(pointer, bytes, false); }

int null_host_unregister(void *pointer) { return forget_pinned(pointer, false); }

bool null_is_pinned(const void *pointer) {
    pthread_mutex_lock(&lock);
    const pinned *entry = all_pinned;
    while (entry && (uintptr_t)pointer - (uintptr_t)entry->pointer >= entry->bytes)
        entry = entry->next;
    pthread_mutex_unlock(&lock);
    return entry != NULL;
}

// ---- copies ----

// From the device come zeros; what goes to the device is dropped; between two places on the host it is a copy. The
// addresses decide, as they do under unified addressing, so that a wrong `kind` cannot make host code touch the device.
// Reads are counted, because what a program does with those zeros is not what it would do on a real GPU.
static _Atomic uint64_t reads;

SERVED uint64_t oomdoctor_null_reads(void) { return reads; }

void null_copy(void *destination, const void *source, size_t bytes) {
    if (bytes == 0)
        return;
    if (null_is_device_address(destination)) {
        null_keep_copy(destination, source, bytes);
    } else if (null_is_device_address(source)) {
        if (null_recall_copy(destination, source, bytes))
            return;
        reads++;
        memset(destination, 0, bytes);
    } else
        memmove(destination, source, bytes);
}
