// The null GPU: a CUDA device that has memory and no processor.
//
// One shared library answers every CUDA library that PyTorch calls. What decides memory is answered as the chosen card
// would; kernels are accepted and never run; what is read back from the device is zeros. The sources, one idea each:
//
//   card.c             what the card looks like, from OOMDOCTOR_NULL_* in the environment
//   ordinals.c         how many devices there are, and which one a thread uses
//   memory.c           the one account of device memory and the one map of device addresses
//   kept.c             data that a program reads back as it wrote it, where the hook asks for that
//   virtual_memory.c   cuMemCreate, cuMemMap and kin (expandable segments)
//   device.c           properties and attributes
//   runtime.c          libcudart: memory, streams, events
//   kernels.c          libcudart: kernels, announced and launched
//   driver.c           libcuda: the same, for those who call the driver
//   modules.c          libcuda: modules and their kernels
//   cublas.c           cuBLAS and cuBLASLt
//   cudnn.c            cuDNN: convolution, normalisation, pooling, CTC
//   cudnn_rnn.c        cuDNN: sizes of a recurrent network's weights, workspace and reserve space
//   nccl.c             NCCL: communicators that nobody else takes part in
//   nvml.c, nvrtc.c    the little that is asked of NVML and NVRTC
//   files.c            files that are opened, for answers that are kept
//   torch_settings.c   one setting of PyTorch that needs two answers
//   unknown.c          the calls that are not served: named once on stderr, answered with "not supported"
//
// A function marked SERVED is an answer on purpose. For every other function of those libraries the build generates a
// weak stub that reports itself; a strong definition here replaces it at link time.
//
// No CUDA header is used: the build must work where only a compiler is installed. The few structs whose layout matters
// are written out here and held to the real headers by a test.

#ifndef OOMDOCTOR_NULL_GPU_H
#define OOMDOCTOR_NULL_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SERVED __attribute__((visibility("default")))

// Functions that may be called with anything because they have nothing to do: kernels in all but name.
#define SERVED_NOTHING(name) SERVED int name(void) { return 0; }

// The build passes NULL_CUDA_VERSION (13020 for CUDA 13.2), NULL_CUDNN_VERSION, NULL_CUBLAS_VERSION, NULL_NCCL_VERSION.
#define NULL_CUDA_MAJOR (NULL_CUDA_VERSION / 1000)

// The same numbers mean the same in libcudart (cudaError_t) and libcuda (CUresult).
enum {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_INVALID_CONFIGURATION = 9,  // libcudart alone
    CUDA_INVALID_DEVICE = 101,
    CUDA_NOT_FOUND = 500,
    CUDA_NOT_SUPPORTED = 801,
};

typedef void *handle;

// ---- card.c ----

typedef struct {
    char name[256];
    size_t total_bytes;
    size_t context_bytes;
    int major, minor;
    int sm_count;
    int threads_per_sm;
    int shared_memory_per_block_optin;
    int l2_bytes;
} card;

const card *null_card(void);
size_t null_total_bytes(void);

// ---- ordinals.c ----

enum { MAX_DEVICES = 16, FIRST_PCI_BUS = 1 };

int null_device_count(void);
bool null_has_device(int device);
int null_device(void);  // the one that this thread uses
int null_use_device(int device);

// ---- memory.c ----

#define PAGE_BYTES ((size_t)2 << 20)  // the driver maps device memory in pages of 2 MiB

typedef enum { RANGE_ALLOCATION, RANGE_RESERVATION } range_kind;

size_t null_round_to_pages(size_t bytes);
bool null_charge(int device, size_t bytes);  // false: out of memory
void null_refund(int device, size_t bytes);
size_t null_free_bytes(int device);
size_t null_used_bytes(int device);
uintptr_t null_take_range(size_t bytes, range_kind kind);  // 0: no address left
size_t null_give_range_back(uintptr_t address, range_kind kind, int *device);  // its bytes; 0: no such range
bool null_find_range(uintptr_t address, uintptr_t *base, size_t *bytes, int *device);
int null_device_of(const void *pointer);
bool null_is_device_address(const void *pointer);
uintptr_t null_symbol_address(void);  // where __device__ variables pretend to be
int null_allocate(size_t bytes, uintptr_t *address);
int null_release(uintptr_t address);

int null_host_allocate(void **pointer, size_t bytes);
int null_host_release(void *pointer);
int null_host_register(void *pointer, size_t bytes);
int null_host_unregister(void *pointer);
bool null_is_pinned(const void *pointer);

void null_copy(void *destination, const void *source, size_t bytes);

// ---- kept.c ----

void null_keep_copy(void *device, const void *source, size_t bytes);
bool null_recall_copy(void *destination, const void *device, size_t bytes);

// ---- device.c ----

int null_attribute(int attribute);
bool null_launch_fits(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz);
int null_blocks_per_sm(int threads_per_block, size_t shared_bytes);

// ---- runtime.c ----

#define NULL_ELAPSED_MILLISECONDS 100.0F  // between any two events

int null_fail(int error);  // keeps a libcudart error for cudaGetLastError, and answers with it

// ---- driver.c ----

handle null_handle(void);  // of something that has no content: a stream, a module, a descriptor
const char *null_error_name(int error);
const char *null_error_text(int error);
void *null_driver_function(const char *name);

// ---- unknown.c ----

void null_report_unknown(const char *name);

#endif
