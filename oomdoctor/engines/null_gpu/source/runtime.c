// libcudart: devices, memory, streams and events. Work on a stream is done at once.

#include "null_gpu.h"

#include <stdlib.h>
#include <string.h>

// ---- device ----

SERVED int cudaGetDeviceCount(int *count) {
    *count = null_device_count();
    return CUDA_OK;
}

SERVED int cudaGetDevice(int *device) {
    *device = null_device();
    return CUDA_OK;
}

SERVED int cudaSetDevice(int device) { return null_fail(null_use_device(device)); }

SERVED int cudaDriverGetVersion(int *version) {
    *version = NULL_CUDA_VERSION;
    return CUDA_OK;
}

SERVED int cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }

SERVED int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return CUDA_OK;
}

SERVED int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = 0;
    return CUDA_OK;
}

SERVED int cudaDeviceSynchronize(void) { return null_wait_for_device(); }
SERVED_NO_OP(cudaProfilerStart)
SERVED_NO_OP(cudaProfilerStop)
SERVED_NO_OP(cudaDeviceSetLimit)

SERVED int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, uint64_t flags,
                                            int *found) {
    enum { FOUND = 0, NOT_FOUND = 1 };
    *function = null_driver_function(name);
    if (found)
        *found = *function ? FOUND : NOT_FOUND;
    return CUDA_OK;
}

SERVED int cudaGetDriverEntryPoint(const char *name, void **function, uint64_t flags, int *found) {
    return cudaGetDriverEntryPointByVersion(name, function, NULL_CUDA_VERSION, flags, found);
}

// ---- memory ----

SERVED int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = null_free_bytes(null_device());
    *total_bytes = null_total_bytes();
    return CUDA_OK;
}

SERVED int cudaMalloc(void **pointer, size_t bytes) {
    uintptr_t address;
    int error = null_allocate(bytes, &address);
    *pointer = (void *)address;
    return null_fail(error);
}

SERVED int cudaFree(void *pointer) { return null_fail(null_release((uintptr_t)pointer)); }
SERVED int cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) { return null_fail(null_host_allocate(pointer, bytes)); }
SERVED int cudaMallocHost(void **pointer, size_t bytes) { return null_fail(null_host_allocate(pointer, bytes)); }
SERVED int cudaFreeHost(void *pointer) { return null_fail(null_host_release(pointer)); }

SERVED int cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    return null_fail(null_host_register(pointer, bytes));
}

SERVED int cudaHostUnregister(void *pointer) { return null_fail(null_host_unregister(pointer)); }

SERVED int cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    *device = host;
    return CUDA_OK;
}

// cudaPointerAttributes; the eight reserved words that CUDA 13 appends are left as they are.
typedef struct {
    int type;
    int device;
    void *device_pointer;
    void *host_pointer;
} pointer_attributes;

SERVED int cudaPointerGetAttributes(pointer_attributes *attributes, const void *pointer) {
    enum { UNREGISTERED = 0, HOST = 1, DEVICE = 2 };
    void *p = (void *)pointer;
    if (null_is_device_address(pointer))
        *attributes = (pointer_attributes){DEVICE, null_device_of(pointer), p, NULL};
    else if (null_is_pinned(pointer))
        *attributes = (pointer_attributes){HOST, null_device(), p, p};
    else
        *attributes = (pointer_attributes){UNREGISTERED, -2, NULL, p};
    return CUDA_OK;
}

SERVED int cudaMemcpy(void *destination, const void *source, size_t bytes, int kind) {
    null_copy(destination, source, bytes);
    return CUDA_OK;
}

SERVED int cudaMemcpyAsync(void *destination, const void *source, size_t bytes, int kind, handle stream) {
    return cudaMemcpy(destination, source, bytes, kind);
}

SERVED int cudaMemcpy2DAsync(char *destination, size_t destination_pitch, const char *source, size_t source_pitch,
                             size_t width, size_t height, int kind, handle stream) {
    for (size_t row = 0; row < height; row++)
        null_copy(destination + row * destination_pitch, source + row * source_pitch, width);
    return CUDA_OK;
}

SERVED_NO_OP(cudaMemcpyPeerAsync)
SERVED_NO_OP(cudaMemcpyToSymbol)
SERVED_NO_OP(cudaMemcpyToSymbolAsync)

SERVED int cudaMemset(void *pointer, int value, size_t bytes) {
    if (!null_is_device_address(pointer))
        memset(pointer, value, bytes);
    return CUDA_OK;
}

SERVED int cudaMemsetAsync(void *pointer, int value, size_t bytes, handle stream) {
    return cudaMemset(pointer, value, bytes);
}

SERVED int cudaGetSymbolAddress(void **pointer, const void *symbol) {
    *pointer = (void *)null_symbol_address();
    return CUDA_OK;
}

// ---- streams: work is done when it is queued ----

SERVED int cudaStreamCreate(handle *stream) {
    *stream = null_handle();
    return CUDA_OK;
}

SERVED int cudaStreamCreateWithFlags(handle *stream, unsigned flags) { return cudaStreamCreate(stream); }
SERVED int cudaStreamCreateWithPriority(handle *stream, unsigned flags, int priority) { return cudaStreamCreate(stream); }

SERVED int cudaStreamDestroy(handle stream) {
    free(stream);
    return CUDA_OK;
}

SERVED int cudaStreamGetPriority(handle stream, int *priority) {
    *priority = 0;
    return CUDA_OK;
}

SERVED_NO_OP(cudaStreamQuery)
SERVED int cudaStreamSynchronize(handle stream) { return null_wait(stream); }

SERVED int cudaStreamWaitEvent(handle stream, handle event, unsigned flags) {
    null_wait_for_event(stream, event);
    return CUDA_OK;
}

SERVED int cudaStreamAddCallback(handle stream, void (*callback)(handle, int, void *), void *data, unsigned flags) {
    callback(stream, CUDA_OK, data);
    return CUDA_OK;
}

SERVED int cudaLaunchHostFunc(handle stream, void (*function)(void *), void *data) {
    function(data);
    return CUDA_OK;
}

// ---- events ----

SERVED int cudaEventCreate(handle *event) {
    *event = null_handle();
    return CUDA_OK;
}

SERVED int cudaEventCreateWithFlags(handle *event, unsigned flags) { return cudaEventCreate(event); }

SERVED int cudaEventDestroy(handle event) {
    free(event);
    return CUDA_OK;
}

SERVED int cudaEventRecord(handle event, handle stream) {
    null_record(event, stream);
    return CUDA_OK;
}

SERVED int cudaEventRecordWithFlags(handle event, handle stream, unsigned flags) { return cudaEventRecord(event, stream); }

// Nothing runs, so no time is true. A long one suits the callers, which are benchmarks that repeat a kernel until it has run
// long enough: Inductor's autotuning then tries each candidate a few times instead of thousands of times.
SERVED int cudaEventElapsedTime(float *milliseconds, handle start, handle end) {
    *milliseconds = NULL_ELAPSED_MILLISECONDS;
    return CUDA_OK;
}

SERVED int cudaEventElapsedTime_v2(float *milliseconds, handle start, handle end) {
    return cudaEventElapsedTime(milliseconds, start, end);
}

SERVED_NO_OP(cudaEventQuery)
SERVED_NO_OP(cudaEventSynchronize)
