// libcudart: kernels. They are registered when a library is loaded, queried, and launched; none ever runs.

#include "null_gpu.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct {
    unsigned x, y, z;
} dim3;

// ---- launches: the grid is checked, because too large a grid is a size limit of the batch that is not memory ----

static int launch(dim3 grid, dim3 block) {
    bool fits = null_launch_fits(grid.x, grid.y, grid.z, block.x, block.y, block.z);
    return null_fail(fits ? CUDA_OK : CUDA_INVALID_CONFIGURATION);
}

SERVED int cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, handle stream) {
    return launch(grid, block);
}

SERVED int __cudaLaunchKernel(handle kernel, dim3 grid, dim3 block, void **arguments, size_t shared, handle stream) {
    return launch(grid, block);
}

SERVED int cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                       handle stream) {
    return launch(grid, block);
}

typedef struct {
    dim3 grid, block;
} launch_configuration;  // the first fields of cudaLaunchConfig_t

SERVED int cudaLaunchKernelExC(const launch_configuration *configuration, const void *function, void **arguments) {
    return launch(configuration->grid, configuration->block);
}

// `kernel<<<grid, block>>>(...)` is compiled to a push of the configuration and, where that answers 0, a call of the
// kernel's host function, which pops it and launches.
static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    handle stream;
} pushed;

SERVED unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, handle stream) {
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared = shared;
    pushed.stream = stream;
    return 0;
}

SERVED int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, handle *stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *stream = pushed.stream;
    return CUDA_OK;
}

SERVED int __cudaGetKernel(handle *kernel, const void *function) {
    *kernel = (handle)function;
    return CUDA_OK;
}

// ---- registrations: the capabilities that each kernel was compiled for ----

// nvcc's "fat binary": the same kernels compiled for several capabilities. Fields that are not read are named `unused`.
typedef struct {
    uint32_t magic, version;
    const unsigned char *binaries;
    const void *unused;
} fat_binary_wrapper;

typedef struct {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
} fat_binary_header;

typedef struct {
    uint16_t kind, unused_1;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t unused_2[3];
    uint32_t capability;  // 86 for 8.6
} fat_binary_entry;

enum { WRAPPER_MAGIC = 0x466243b1, HEADER_MAGIC = 0xba55ed50, KIND_PTX = 1, KIND_MACHINE_CODE = 2 };

typedef struct {
    const fat_binary_wrapper *wrapper;
} module;

typedef struct {
    const void *function;
    const module *owner;
} registration;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static registration *registrations;  // tens of thousands when torch is imported, so sorted only at the first look-up
static size_t registered, capacity, sorted;

SERVED void **__cudaRegisterFatBinary(const fat_binary_wrapper *wrapper) {
    module *m = malloc(sizeof *m);
    m->wrapper = wrapper;
    return (void **)m;
}

SERVED void __cudaRegisterFunction(const module *m, const void *function) {
    pthread_mutex_lock(&lock);
    if (registered == capacity) {
        size_t larger = capacity ? 2 * capacity : 1 << 14;
        registration *moved = realloc(registrations, larger * sizeof *moved);
        if (moved) {
            registrations = moved;
            capacity = larger;
        }
    }
    if (registered < capacity)
        registrations[registered++] = (registration){function, m};
    pthread_mutex_unlock(&lock);
}

SERVED_NO_OP(__cudaRegisterFatBinaryEnd)
SERVED_NO_OP(__cudaRegisterVar)
SERVED_NO_OP(__cudaRegisterManagedVar)
SERVED_NO_OP(__cudaUnregisterFatBinary)
SERVED_NO_OP(__cudaInitModule)

static int by_function(const void *a, const void *b) {
    uintptr_t first = (uintptr_t)((const registration *)a)->function, second = (uintptr_t)((const registration *)b)->function;
    return (first > second) - (first < second);
}

static const module *module_of(const void *function) {
    pthread_mutex_lock(&lock);
    if (sorted != registered) {
        qsort(registrations, registered, sizeof *registrations, by_function);
        sorted = registered;
    }
    registration wanted = {function, NULL};
    const registration *found = bsearch(&wanted, registrations, registered, sizeof wanted, by_function);
    const module *m = found ? found->owner : NULL;
    pthread_mutex_unlock(&lock);
    return m;
}

// Machine code serves cards of the same major capability and of a minor one that is not lower; PTX serves all later cards.
static bool serves_card(int kind, int capability) {
    const card *c = null_card();
    int own = 10 * c->major + c->minor;
    return kind == KIND_PTX ? capability <= own : capability / 10 == c->major && capability <= own;
}

// The compiled capability that the driver would choose for this card. Machine code is preferred to PTX. Where a card is too
// old for the build (PyTorch warns of it), the oldest capability is used: the memory is still known.
static int compiled_capability(const void *function) {
    int own = 10 * null_card()->major + null_card()->minor;
    const module *m = module_of(function);
    if (!m || m->wrapper->magic != WRAPPER_MAGIC)
        return own;
    const fat_binary_header *header = (const void *)m->wrapper->binaries;
    if (header->magic != HEADER_MAGIC)
        return own;
    const unsigned char *position = m->wrapper->binaries + header->header_bytes, *end = position + header->bytes;
    int best = 0, best_kind = 0, oldest = 0;
    while (position + sizeof(fat_binary_entry) <= end) {
        const fat_binary_entry *entry = (const void *)position;
        int capability = (int)entry->capability;
        if (!oldest || capability < oldest)
            oldest = capability;
        bool better = entry->kind > best_kind || (entry->kind == best_kind && capability > best);
        if (serves_card(entry->kind, capability) && better) {
            best = capability;
            best_kind = entry->kind;
        }
        position += entry->header_bytes + entry->bytes;
    }
    return best ? best : oldest ? oldest : own;
}

// ---- attributes ----

// The first fields of cudaFuncAttributes. CUB chooses its tuning by the versions, among the compiled ones.
typedef struct {
    size_t shared_bytes, constant_bytes, local_bytes;
    int max_threads_per_block;
    int registers;
    int ptx_version;
    int binary_version;
    int cache_mode_ca;
    int max_dynamic_shared_bytes;
} function_attributes;

SERVED int cudaFuncGetAttributes(function_attributes *attributes, const void *function) {
    int capability = compiled_capability(function);
    *attributes = (function_attributes){
        .max_threads_per_block = null_attribute(1),
        .registers = 32,
        .ptx_version = capability,
        .binary_version = capability,
        .max_dynamic_shared_bytes = null_attribute(8),
    };
    return CUDA_OK;
}

SERVED_NO_OP(cudaFuncSetAttribute)
SERVED_NO_OP(cudaFuncSetCacheConfig)
SERVED_NO_OP(cudaKernelSetAttributeForDevice)

SERVED int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                  size_t shared, unsigned flags) {
    *blocks = null_blocks_per_sm(threads, shared);
    return CUDA_OK;
}

SERVED int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}
