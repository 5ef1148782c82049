// The null GPU: a CUDA device that has memory and no processor.
//
// One shared library answers every CUDA library that PyTorch calls. What decides memory is answered as the chosen card
// would; kernels are accepted and never run; reads from the device give zeros. The sources:
//
//   card.c             the card, from OOMDOCTOR_NULL_* in the environment, and the devices of the process
//   device.c           properties and attributes
//   memory.c           device memory and addresses, pinned memory, copies
//   virtual_memory.c   cuMemCreate, cuMemMap and related calls (expandable segments)
//   runtime.c          libcudart: devices, memory, streams, events
//   kernels.c          libcudart: kernels, registered and launched
//   driver.c           libcuda: the same for callers of the driver
//   modules.c          kernels compiled at run time: libcuda's modules, and NVRTC
//   graphs.c           CUDA graphs: captures of streams
//   cublas.c           cuBLAS and cuBLASLt
//   cufft.c            cuFFT
//   cusolver.c         cuSOLVER
//   cudnn.c            cuDNN: convolution, normalisation, pooling, CTC
//   cudnn_graph.c      cuDNN: graphs of operations, as PyTorch describes convolutions
//   cudnn_answers.c    cuDNN: what the real library answers about such a graph
//   cudnn_rnn.c        cuDNN: sizes of a recurrent network's weights, workspace and reserve space
//   nccl.c             NCCL: communicators of a single participant
//   nvml.c             the few calls of NVML that PyTorch makes
//   errors.c           names of errors, the last error, and calls that are not served
//   interposed.c       functions of other libraries that are replaced: a setting of PyTorch, and `open`
//
// A function marked SERVED replaces a library's. For every other function of those libraries the build generates a weak
// stub that reports itself; a definition here replaces the stub at link time.
//
// No CUDA header is used: the build must work where only a compiler is installed. The few structs whose layout matters
// are written out here, and a test compares them with the real headers.

#ifndef OOMDOCTOR_NULL_GPU_H
#define OOMDOCTOR_NULL_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SERVED __attribute__((visibility("default")))

// Functions that have nothing to do, whatever their arguments.
#define SERVED_NO_OP(name) SERVED int name(void) { return 0; }

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
    CUDA_CAPTURE_UNSUPPORTED = 900,
    CUDA_CAPTURE_INVALIDATED = 901,
    CUDA_CAPTURE_UNMATCHED = 903,
};

typedef void *handle;

// ---- card.c ----

typedef struct {
    char name[256];
    size_t total_bytes;
    size_t context_bytes;
    size_t reserve_bytes;  // held by others, as the user says
    int major, minor;
    int sm_count;
    int threads_per_sm;
    int shared_memory_per_block_optin;
    int l2_bytes;
} card;

const card *null_card(void);
size_t null_total_bytes(void);

enum { MAX_DEVICES = 16, FIRST_PCI_BUS = 1 };

int null_device_count(void);
bool null_has_device(int device);
int null_device(void);  // the thread's current device
int null_use_device(int device);

// ---- memory.c ----

#define PAGE_BYTES ((size_t)2 << 20)  // the driver maps device memory in pages of 2 MiB

typedef enum { RANGE_ALLOCATION, RANGE_RESERVATION } range_kind;

size_t null_round_to_pages(size_t bytes);
bool null_charge(int device, size_t bytes);  // false: out of memory
void null_refund(int device, size_t bytes);
size_t null_free_bytes(int device);
size_t null_used_bytes(int device);
uintptr_t null_reserve_range(size_t bytes, range_kind kind);  // 0: no address left
size_t null_release_range(uintptr_t address, range_kind kind, int *device);  // its bytes; 0: no such range
bool null_find_range(uintptr_t address, uintptr_t *base, size_t *bytes, int *device);
int null_device_of(const void *pointer);
bool null_is_device_address(const void *pointer);
uintptr_t null_symbol_address(void);  // the address of every __device__ variable
int null_allocate(size_t bytes, uintptr_t *address);
int null_release(uintptr_t address);

int null_host_allocate(void **pointer, size_t bytes);
int null_host_release(void *pointer);
int null_host_register(void *pointer, size_t bytes);
int null_host_unregister(void *pointer);
bool null_is_pinned(const void *pointer);

void null_copy(void *destination, const void *source, size_t bytes);
void null_expect_zeros(const void *device, size_t bytes);  // the next read of them is of what a GPU would have, too

// ---- device.c ----

int null_attribute(int attribute);
bool null_launch_fits(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz);
int null_blocks_per_sm(int threads_per_block, size_t shared_bytes);

// ---- runtime.c ----

#define NULL_ELAPSED_MILLISECONDS 100.0F  // between any two events

// ---- driver.c ----

handle null_handle(void);  // of something that has no content: a stream, a module, a descriptor
void *null_driver_function(const char *name);

// ---- graphs.c: what a wait and an event mean for a capture ----

int null_wait(handle stream);
int null_wait_for_device(void);
void null_record(handle event, handle stream);
void null_wait_for_event(handle stream, handle event);

// ---- cudnn.c ----

enum { MAX_DIMENSIONS = 8 };

typedef struct {
    int data_type, count;
    int sizes[MAX_DIMENSIONS], strides[MAX_DIMENSIONS];
} tensor_descriptor;

size_t null_element_bytes(int data_type);

// ---- cudnn_graph.c ----

void null_cudnn_is_described(void);  // the older interface is in use: what is allocated now is needed
void null_cudnn_gives_back(void);    // memory of the device, by this thread
void null_cudnn_error_is_read(void);  // the last error of this thread
void null_cudnn_takes(void);

// ---- cudnn_answers.c ----

typedef struct {
    int engine;                                // the engine's index
    uint32_t numerical_notes, behavior_notes;  // a bit a note
    int64_t workspace_bytes;
    int status;  // of building a plan
} cudnn_configuration;

// Sets `results` to the configurations for a graph in the library's order, to be freed, and returns their count; below 0
// where the library has none.
int null_cudnn_answer(const char *graph, cudnn_configuration **results);

// ---- errors.c ----

const char *null_error_name(int error);
const char *null_error_text(int error);
int null_fail(int error);  // sets the thread's last libcudart error, and returns it
void null_report_unknown(const char *name);

// Memory that is counted by a rule, or not at all: bits of what `oomdoctor_null_assumptions` returns.
typedef enum { ASSUMED_GRAPHS = 1, ASSUMED_CUFFT = 2, ASSUMED_CUSOLVER = 4 } assumption;
void null_assume(assumption a);

#endif
