// Device memory: the bytes in use and the map of device addresses, behind one lock. libcudart and libcuda allocate from the
// same bytes:
//
//     free = total - context - held by others - used
//
// Device addresses come from a region of the process that is reserved without access rights: they collide with nothing,
// and host code that follows one faults at once instead of reading something else.

#define _GNU_SOURCE
#include "null_gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
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
static size_t range_count, range_capacity;

static uintptr_t region_start, region_end;
static pthread_once_t region_once = PTHREAD_ONCE_INIT;

// The first page of the region belongs to the context; addresses of __device__ variables point there.
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

static void ensure_region(void) { pthread_once(&region_once, reserve_region); }

size_t null_round_to_pages(size_t bytes) { return (bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1); }

static size_t capacity(void) {
    size_t total = null_total_bytes(), taken = null_card()->context_bytes + null_card()->reserve_bytes;
    return total > taken ? total - taken : 0;
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
    if (fits)
        null_cudnn_takes();
    return fits;
}

void null_refund(int device, size_t bytes) {
    pthread_mutex_lock(&lock);
    used_bytes[device] -= bytes;
    pthread_mutex_unlock(&lock);
    null_cudnn_gives_back();
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

// Returns the index of the first range whose end lies above `address`.
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

static bool grow_ranges(void) {
    if (range_count < range_capacity)
        return true;
    size_t wanted = range_capacity ? 2 * range_capacity : 256;
    range *larger = realloc(ranges, wanted * sizeof *larger);
    if (!larger)
        return false;
    ranges = larger;
    range_capacity = wanted;
    return true;
}

// Takes the lowest gap that is large enough: addresses are reused, so that a long search for a batch size never runs out.
uintptr_t null_reserve_range(size_t bytes, range_kind kind) {
    ensure_region();
    bytes = null_round_to_pages(bytes);
    pthread_mutex_lock(&lock);
    uintptr_t address = region_start + PAGE_BYTES;
    size_t index = 0;
    while (index < range_count && ranges[index].address - address < bytes) {
        address = ranges[index].address + ranges[index].bytes;
        index++;
    }
    if (!region_start || bytes > region_end - address || !grow_ranges()) {
        address = 0;
    } else {
        memmove(&ranges[index + 1], &ranges[index], (range_count - index) * sizeof *ranges);
        ranges[index] = (range){address, bytes, kind, null_device()};
        range_count++;
    }
    pthread_mutex_unlock(&lock);
    return address;
}

size_t null_release_range(uintptr_t address, range_kind kind, int *device) {
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
    int device = 0;  // the context's page is in no range
    null_find_range((uintptr_t)pointer, &base, &bytes, &device);
    return device;
}

uintptr_t null_symbol_address(void) {
    ensure_region();
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
    *address = null_reserve_range(bytes, RANGE_ALLOCATION);
    if (*address)
        return CUDA_OK;
    null_refund(null_device(), bytes);
    return CUDA_OUT_OF_MEMORY;
}

int null_release(uintptr_t address) {
    if (!address)
        return CUDA_OK;
    int device;
    size_t bytes = null_release_range(address, RANGE_ALLOCATION, &device);
    if (!bytes)
        return CUDA_INVALID_VALUE;
    null_refund(device, bytes);
    return CUDA_OK;
}

// ---- pinned host memory: real memory of this process, listed so that `is_pinned` can be answered ----

typedef struct pinned {
    struct pinned *next;
    void *pointer;
    size_t bytes;
    bool owned;  // allocated here, not registered
} pinned;

static pinned *all_pinned;

static int add_pinned(void *pointer, size_t bytes, bool owned) {
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

static int remove_pinned(void *pointer, bool owned) {
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
    return add_pinned(*pointer, bytes, true);
}

int null_host_release(void *pointer) {
    if (!pointer)
        return CUDA_OK;
    int error = remove_pinned(pointer, true);
    if (!error)
        free(pointer);
    return error;
}

int null_host_register(void *pointer, size_t bytes) { return add_pinned(pointer, bytes, false); }

int null_host_unregister(void *pointer) { return remove_pinned(pointer, false); }

bool null_is_pinned(const void *pointer) {
    pthread_mutex_lock(&lock);
    const pinned *entry = all_pinned;
    while (entry && (uintptr_t)pointer - (uintptr_t)entry->pointer >= entry->bytes)
        entry = entry->next;
    pthread_mutex_unlock(&lock);
    return entry != NULL;
}

// ---- kept copies ----

// Small data that makes a round trip through the device while ranks agree on something: the program reads back what it
// wrote. Otherwise nothing is kept, since what a kernel would have made of it is unknown.

enum { MAX_COPIES = 64, MAX_COPY_BYTES = 1 << 20 };

typedef struct {
    uintptr_t address;
    size_t bytes;
    void *data;
} kept_copy;

static pthread_mutex_t copies_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int keepers;
static kept_copy copies[MAX_COPIES];  // one without data is free

static void drop_copy(kept_copy *copy) {
    free(copy->data);
    *copy = (kept_copy){0};
}

// The agent calls it with 1 before and 0 after. Calls may be nested, and the last end drops all copies.
SERVED void oomdoctor_null_keep_copies(int keep) {
    if (atomic_fetch_add(&keepers, keep ? 1 : -1) != 1 || keep)
        return;
    pthread_mutex_lock(&copies_lock);
    for (int i = 0; i < MAX_COPIES; i++)
        drop_copy(&copies[i]);
    pthread_mutex_unlock(&copies_lock);
}

static void keep_copy(void *device, const void *source, size_t bytes) {
    if (!keepers)
        return;
    uintptr_t address = (uintptr_t)device;
    bool known = !null_is_device_address(source) && bytes <= MAX_COPY_BYTES;
    kept_copy *slot = NULL;
    pthread_mutex_lock(&copies_lock);
    for (int i = 0; i < MAX_COPIES; i++) {
        if (copies[i].data && copies[i].address < address + bytes && address < copies[i].address + copies[i].bytes)
            drop_copy(&copies[i]);  // overwritten, if only in part
        if (!copies[i].data)
            slot = &copies[i];
    }
    void *data = known && slot ? malloc(bytes) : NULL;
    if (data)
        *slot = (kept_copy){address, bytes, memcpy(data, source, bytes)};
    pthread_mutex_unlock(&copies_lock);
}

static bool recall_copy(void *destination, const void *device, size_t bytes) {
    bool found = false;
    if (!keepers)
        return false;
    uintptr_t address = (uintptr_t)device;
    pthread_mutex_lock(&copies_lock);
    for (int i = 0; i < MAX_COPIES && !found; i++) {
        const kept_copy *copy = &copies[i];
        found = copy->data && address >= copy->address && address + bytes <= copy->address + copy->bytes;
        if (found)
            memcpy(destination, (char *)copy->data + (address - copy->address), bytes);
    }
    pthread_mutex_unlock(&copies_lock);
    return found;
}

// ---- copies ----

// A copy from the device writes zeros, a copy to the device is dropped, and a copy within the host is a copy. The addresses
// decide, as they do under unified addressing, so that a wrong `kind` cannot make host code touch the device. Reads are
// counted and told, because a program does something else with those zeros than with the data of a real GPU.
static _Atomic uint64_t reads;
static const char *(*_Atomic on_read)(uint64_t bytes);
static _Thread_local uint64_t answer;
static _Thread_local bool has_answer;

SERVED uint64_t oomdoctor_null_reads(void) { return reads; }

// Calls `function` with the bytes of each read from now on, in the thread that reads; NULL ends it. Where it returns a text,
// Python's main thread raises a RuntimeError with it as soon as it goes on. An answer that it gives is for this read, which
// is then not counted.
SERVED void oomdoctor_null_on_read(const char *(*function)(uint64_t)) { on_read = function; }

static int raise_error(void *text) {
    void (*set_error)(void *, const char *) = (void (*)(void *, const char *))dlsym(RTLD_DEFAULT, "PyErr_SetString");
    void **type = dlsym(RTLD_DEFAULT, "PyExc_RuntimeError");
    if (set_error && type)
        set_error(*type, text);
    return set_error && type ? -1 : 0;
}

static void raise_soon(const char *text) {
    int (*add)(int (*)(void *), void *) = (int (*)(int (*)(void *), void *))dlsym(RTLD_DEFAULT, "Py_AddPendingCall");
    if (add)
        add(raise_error, (void *)text);
}

// Gives `value`, an integer, to every read of up to eight bytes in this thread, until it is called with `given` 0. It is
// for operators that read how many elements they have found, where the agent knows it.
SERVED void oomdoctor_null_answer_reads(uint64_t value, int given) {
    answer = value;
    has_answer = given != 0;
}

// What a library would have written there is zeros: the state of a computation that succeeded.
static _Thread_local uintptr_t zeros_start, zeros_end;

void null_expect_zeros(const void *device, size_t bytes) {
    uintptr_t start = (uintptr_t)device;
    zeros_start = start == zeros_end ? zeros_start : start;  // a batch's states lie in a row
    zeros_end = start + bytes;
}

static bool takes_expected_zeros(const void *source, size_t bytes) {
    uintptr_t start = (uintptr_t)source;
    bool expected = zeros_end && start >= zeros_start && start + bytes <= zeros_end;
    zeros_start = zeros_end = expected ? 0 : zeros_end;
    return expected;
}

static void read_device(void *destination, const void *source, size_t bytes) {
    if (recall_copy(destination, source, bytes))
        return;
    memset(destination, 0, bytes);
    if (takes_expected_zeros(source, bytes))
        return;
    if (has_answer && bytes <= sizeof answer) {
        memcpy(destination, &answer, bytes);  // little-endian: the low bytes come first
        return;
    }
    uint64_t given = answer;
    bool was_given = has_answer;
    has_answer = false;
    const char *(*function)(uint64_t) = on_read;
    const char *text = function ? function(bytes) : NULL;
    if (!has_answer)
        reads++;
    else if (bytes <= sizeof answer)
        memcpy(destination, &answer, bytes);
    oomdoctor_null_answer_reads(given, was_given);
    if (text)
        raise_soon(text);
}

void null_copy(void *destination, const void *source, size_t bytes) {
    if (bytes == 0)
        return;
    if (null_is_device_address(destination))
        keep_copy(destination, source, bytes);
    else if (null_is_device_address(source))
        read_device(destination, source, bytes);
    else
        memmove(destination, source, bytes);
}
