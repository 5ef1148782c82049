// Properties and attributes of the card. Those that decide memory in PyTorch are the chosen card's: the capability (which
// attention kernels run, how large the cuBLAS workspace is), the number of multiprocessors and threads (how reductions and
// optimizers split, and their temporary buffers), shared memory, the total. All others are the same for all cards.

#include "null_gpu.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_THREADS_PER_BLOCK = 1024,
    MAX_BLOCK_Z = 64,
    MAX_GRID_X = 2147483647,
    MAX_GRID_YZ = 65535,
    SHARED_MEMORY_PER_BLOCK = 49152,
    REGISTERS = 65536,
    CONSTANT_MEMORY = 65536,
    WARP = 32,
    BUS_WIDTH_BITS = 384,
    MEMORY_CLOCK_KHZ = 9751000,
    CLOCK_KHZ = 1695000,
};

// CUDA keeps 1 KiB of shared memory a block for itself since compute capability 8.0.
static int reserved_shared_memory(void) { return null_card()->major >= 8 ? 1024 : 0; }

static int shared_memory_per_sm(void) { return null_card()->shared_memory_per_block_optin + reserved_shared_memory(); }

// CUDA C++ Programming Guide, table of technical specifications per compute capability.
static int max_blocks_per_sm(void) {
    switch (10 * null_card()->major + null_card()->minor) {
        case 75: case 86: case 87: return 16;
        case 89: case 120: case 121: return 24;
        default: return 32;
    }
}

bool null_launch_fits(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz) {
    bool grid = gx && gy && gz && gx <= MAX_GRID_X && gy <= MAX_GRID_YZ && gz <= MAX_GRID_YZ;
    bool block = bx && by && bz && bz <= MAX_BLOCK_Z && (uint64_t)bx * by * bz <= MAX_THREADS_PER_BLOCK;
    return grid && block;
}

// Registers are not known, so this is an upper bound of the real call's answer.
int null_blocks_per_sm(int threads_per_block, size_t shared_bytes) {
    int by_threads = null_card()->threads_per_sm / (threads_per_block > 0 ? threads_per_block : 1);
    int by_shared = shared_memory_per_sm() / (int)(shared_bytes + reserved_shared_memory() + 1);
    int blocks = by_threads < by_shared ? by_threads : by_shared;
    return blocks < max_blocks_per_sm() ? blocks : max_blocks_per_sm();
}

// cudaDeviceAttr and CUdevice_attribute share their numbers. Attributes that are not listed are features that the null GPU
// does not have, or texture limits.
int null_attribute(int attribute) {
    const card *c = null_card();
    switch (attribute) {
        case 1: return MAX_THREADS_PER_BLOCK;
        case 2: case 3: return MAX_THREADS_PER_BLOCK;  // block dimensions x and y
        case 4: return MAX_BLOCK_Z;
        case 5: return MAX_GRID_X;
        case 6: case 7: return MAX_GRID_YZ;
        case 8: return SHARED_MEMORY_PER_BLOCK;
        case 9: return CONSTANT_MEMORY;
        case 10: return WARP;
        case 11: return MAX_GRID_X;  // pitch of a copy
        case 12: return REGISTERS;
        case 13: return CLOCK_KHZ;
        case 14: return 512;  // texture alignment
        case 15: return 1;  // copies overlap with kernels
        case 16: return c->sm_count;
        case 19: return 1;  // maps host memory
        case 31: return 1;  // concurrent kernels
        case 36: return MEMORY_CLOCK_KHZ;
        case 37: return BUS_WIDTH_BITS;
        case 38: return c->l2_bytes;
        case 39: return c->threads_per_sm;
        case 40: return 2;  // copy engines
        case 41: return 1;  // unified addressing
        case 51: return 32;  // texture pitch alignment
        case 75: return c->major;
        case 76: return c->minor;
        case 78: return 1;  // stream priorities
        case 79: case 80: return 1;  // L1 caches globals and locals
        case 81: return shared_memory_per_sm();
        case 82: return REGISTERS;
        case 87: return 32;  // single to double precision throughput
        case 90: return 1;  // compute preemption
        case 91: return 1;  // host pointers of registered memory
        case 95: return c->major >= 6;  // cooperative launch
        case 97: return c->shared_memory_per_block_optin;
        case 99: return 1;  // registers host memory
        case 102: return 1;  // virtual memory management
        case 103: return 1;  // shareable handles by file descriptor
        case 106: return max_blocks_per_sm();
        case 111: return reserved_shared_memory();
        case 120: return c->major >= 9;  // cluster launch
        default: return 0;
    }
}

// cudaDeviceProp. Fields that are not filled stay zero. CUDA 13 removed clock rates and some flags, so the same names have
// other offsets.
typedef struct {
    char name[256];
    unsigned char uuid[16];
    char luid[8];
    unsigned luid_device_node_mask;
    size_t total_global_mem;
    size_t shared_mem_per_block;
    int regs_per_block;
    int warp_size;
    size_t mem_pitch;
    int max_threads_per_block;
    int max_threads_dim[3];
    int max_grid_size[3];
#if NULL_CUDA_MAJOR < 13
    int clock_rate;
#endif
    size_t total_const_mem;
    int major;
    int minor;
    size_t texture_alignment;
    size_t texture_pitch_alignment;
#if NULL_CUDA_MAJOR < 13
    int device_overlap;
    int multi_processor_count;
    int kernel_exec_timeout_enabled;
    int integrated;
    int can_map_host_memory;
    int compute_mode;
    int texture_and_surface_limits[40];
#else
    int multi_processor_count;
    int integrated;
    int can_map_host_memory;
    int texture_and_surface_limits[39];
#endif
    size_t surface_alignment;
    int concurrent_kernels;
    int ecc_enabled;
    int pci_bus_id;
    int pci_device_id;
    int pci_domain_id;
    int tcc_driver;
    int async_engine_count;
    int unified_addressing;
#if NULL_CUDA_MAJOR < 13
    int memory_clock_rate;
#endif
    int memory_bus_width;
    int l2_cache_size;
    int persisting_l2_cache_max_size;
    int max_threads_per_multi_processor;
    int stream_priorities_supported;
    int global_l1_cache_supported;
    int local_l1_cache_supported;
    size_t shared_mem_per_multiprocessor;
    int regs_per_multiprocessor;
    int managed_memory;
    int is_multi_gpu_board;
    int multi_gpu_board_group_id;
    int host_native_atomic_supported;
#if NULL_CUDA_MAJOR < 13
    int single_to_double_precision_perf_ratio;
#endif
    int pageable_memory_access;
    int concurrent_managed_access;
    int compute_preemption_supported;
    int can_use_host_pointer_for_registered_mem;
    int cooperative_launch;
#if NULL_CUDA_MAJOR < 13
    int cooperative_multi_device_launch;
#endif
    size_t shared_mem_per_block_optin;
    int pageable_memory_access_uses_host_page_tables;
    int direct_managed_mem_access_from_host;
    int max_blocks_per_multi_processor;
    int access_policy_max_window_size;
    size_t reserved_shared_mem_per_block;
    int host_register_supported;
    int sparse_cuda_array_supported;
    int host_register_read_only_supported;
    int timeline_semaphore_interop_supported;
    int memory_pools_supported;
    int gpu_direct_rdma_supported;
    unsigned gpu_direct_rdma_flush_writes_options;
    int gpu_direct_rdma_writes_ordering;
    unsigned memory_pool_supported_handle_types;
    int deferred_mapping_cuda_array_supported;
    int ipc_event_supported;
    int cluster_launch;
    int unified_function_pointers;
#if NULL_CUDA_MAJOR < 13
    int reserved[63];
#else
    int numa_and_identifiers[7];
    int reserved[56];
#endif
} device_properties;

static int fill_properties(device_properties *p, int device) {
    const card *c = null_card();
    if (!null_has_device(device))
        return CUDA_INVALID_DEVICE;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", c->name);
    p->total_global_mem = null_total_bytes();
    p->shared_mem_per_block = SHARED_MEMORY_PER_BLOCK;
    p->regs_per_block = REGISTERS;
    p->warp_size = WARP;
    p->mem_pitch = MAX_GRID_X;
    p->max_threads_per_block = MAX_THREADS_PER_BLOCK;
    for (int i = 0; i < 3; i++) {
        p->max_threads_dim[i] = null_attribute(2 + i);
        p->max_grid_size[i] = null_attribute(5 + i);
    }
    p->total_const_mem = CONSTANT_MEMORY;
    p->major = c->major;
    p->minor = c->minor;
    p->texture_alignment = 512;
    p->texture_pitch_alignment = 32;
    p->multi_processor_count = c->sm_count;
    p->can_map_host_memory = 1;
    p->surface_alignment = 512;
    p->concurrent_kernels = 1;
    p->uuid[15] = (unsigned char)device;
    p->pci_bus_id = FIRST_PCI_BUS + device;
    p->async_engine_count = 2;
    p->unified_addressing = 1;
    p->memory_bus_width = BUS_WIDTH_BITS;
    p->l2_cache_size = c->l2_bytes;
    p->max_threads_per_multi_processor = c->threads_per_sm;
    p->stream_priorities_supported = 1;
    p->global_l1_cache_supported = 1;
    p->local_l1_cache_supported = 1;
    p->shared_mem_per_multiprocessor = (size_t)shared_memory_per_sm();
    p->regs_per_multiprocessor = REGISTERS;
    p->compute_preemption_supported = 1;
    p->can_use_host_pointer_for_registered_mem = 1;
    p->cooperative_launch = 1;
    p->shared_mem_per_block_optin = (size_t)c->shared_memory_per_block_optin;
    p->max_blocks_per_multi_processor = max_blocks_per_sm();
    p->reserved_shared_mem_per_block = (size_t)reserved_shared_memory();
    p->host_register_supported = 1;
    p->cluster_launch = c->major >= 9;
#if NULL_CUDA_MAJOR < 13
    p->clock_rate = CLOCK_KHZ;
    p->device_overlap = 1;
    p->memory_clock_rate = MEMORY_CLOCK_KHZ;
    p->single_to_double_precision_perf_ratio = 32;
#endif
    return CUDA_OK;
}

// CUDA 12 kept the old name for an older struct and gave the present one to `_v2`.
#if NULL_CUDA_MAJOR < 13
SERVED int cudaGetDeviceProperties_v2(device_properties *p, int device) { return fill_properties(p, device); }
#else
SERVED int cudaGetDeviceProperties(device_properties *p, int device) { return fill_properties(p, device); }
#endif

SERVED int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    enum { PCI_BUS = 33 };
    *value = attribute == PCI_BUS ? FIRST_PCI_BUS + device : null_attribute(attribute);
    return CUDA_OK;
}

SERVED int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return cudaDeviceGetAttribute(value, attribute, device);
}

SERVED int cudaDeviceGetPCIBusId(char *text, int capacity, int device) {
    snprintf(text, (size_t)capacity, "0000:%02x:00.0", FIRST_PCI_BUS + device);
    return CUDA_OK;
}
