// libcuda: what PyTorch's lazily loaded driver functions, Triton and Inductor ask of the driver. It allocates from the same
// memory as libcudart.

#define _GNU_SOURCE
#include "null_gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

handle null_handle(void) { return calloc(1, 64); }

// Finds a function by its name in the API, without a version: the newest version here. A name without a function is one that
// this "driver" is too old for, which callers must expect.
void *null_driver_function(const char *name) {
    static const char *const versions[] = {"_v2", ""};
    static void *self;
    if (!self) {
        Dl_info info;
        dladdr((void *)null_driver_function, &info);
        self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    void *function = NULL;
    for (size_t i = 0; i < sizeof versions / sizeof *versions && !function; i++) {
        char full[128];
        snprintf(full, sizeof full, "%s%s", name, versions[i]);
        function = dlsym(self, full);
    }
    return function;
}

SERVED int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    enum { FOUND = 0, NOT_FOUND = 1 };
    *function = null_driver_function(name);
    if (status)
        *status = *function ? FOUND : NOT_FOUND;
    return *function ? CUDA_OK : CUDA_NOT_FOUND;
}

SERVED int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

SERVED_NO_OP(cuInit)
SERVED_NO_OP(cuLogsRegisterCallback)
SERVED_NO_OP(cuLogsUnregisterCallback)

SERVED int cuDriverGetVersion(int *version) {
    *version = NULL_CUDA_VERSION;
    return CUDA_OK;
}

// ---- device and context ----

SERVED int cuDeviceGetCount(int *count) {
    *count = null_device_count();
    return CUDA_OK;
}

SERVED int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return null_has_device(ordinal) ? CUDA_OK : CUDA_INVALID_DEVICE;
}

SERVED int cuDeviceGetName(char *name, int capacity, int device) {
    snprintf(name, (size_t)capacity, "%s", null_card()->name);
    return CUDA_OK;
}

SERVED int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = null_total_bytes();
    return CUDA_OK;
}

SERVED int cuDeviceGetUuid_v2(char *uuid, int device) {
    memset(uuid, 0, 16);
    uuid[15] = (char)device;
    return CUDA_OK;
}

SERVED int cuDeviceGetUuid(char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

SERVED int cuDeviceComputeCapability(int *major, int *minor, int device) {
    *major = null_card()->major;
    *minor = null_card()->minor;
    return CUDA_OK;
}

static char contexts[MAX_DEVICES][64];

SERVED int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    return CUDA_OK;
}

SERVED int cuDevicePrimaryCtxRetain(handle *c, int device) {
    *c = contexts[device];
    return CUDA_OK;
}

SERVED int cuCtxGetCurrent(handle *c) {
    *c = contexts[null_device()];
    return CUDA_OK;
}

SERVED int cuCtxPopCurrent_v2(handle *c) {
    if (c)
        *c = contexts[null_device()];
    return CUDA_OK;
}

SERVED int cuCtxGetDevice(int *device) {
    *device = null_device();
    return CUDA_OK;
}

// A context is its device, for libcudart too. There is no stack of contexts: the one pushed last stays current.
SERVED int cuCtxSetCurrent(handle c) {
    return c ? null_use_device((int)(((char *)c - contexts[0]) / (ptrdiff_t)sizeof contexts[0])) : CUDA_OK;
}

SERVED int cuCtxPushCurrent_v2(handle c) { return cuCtxSetCurrent(c); }
SERVED_NO_OP(cuDevicePrimaryCtxRelease_v2)
SERVED_NO_OP(cuDevicePrimaryCtxSetFlags_v2)
SERVED int cuCtxSynchronize(void) { return null_wait_for_device(); }
SERVED_NO_OP(cuCtxSetLimit)

// ---- memory ----

SERVED int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = null_free_bytes(null_device());
    *total_bytes = null_total_bytes();
    return CUDA_OK;
}

SERVED int cuMemAlloc_v2(uintptr_t *address, size_t bytes) {
    return bytes ? null_allocate(bytes, address) : CUDA_INVALID_VALUE;
}

SERVED int cuMemFree_v2(uintptr_t address) { return null_release(address); }
SERVED int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) { return null_host_allocate(pointer, bytes); }
SERVED int cuMemAllocHost_v2(void **pointer, size_t bytes) { return null_host_allocate(pointer, bytes); }
SERVED int cuMemFreeHost(void *pointer) { return null_host_release(pointer); }

SERVED int cuMemGetAddressRange_v2(uintptr_t *base, size_t *bytes, uintptr_t address) {
    uintptr_t found_base;
    size_t found_bytes;
    int device;
    if (!null_find_range(address, &found_base, &found_bytes, &device))
        return CUDA_INVALID_VALUE;
    if (base)
        *base = found_base;
    if (bytes)
        *bytes = found_bytes;
    return CUDA_OK;
}

SERVED int cuMemcpyHtoD_v2(uintptr_t destination, const void *source, size_t bytes) { return CUDA_OK; }
SERVED int cuMemcpyHtoDAsync_v2(uintptr_t destination, const void *source, size_t bytes, handle stream) { return CUDA_OK; }

SERVED int cuMemcpyDtoH_v2(void *destination, uintptr_t source, size_t bytes) {
    null_copy(destination, (const void *)source, bytes);
    return CUDA_OK;
}

SERVED int cuMemcpyDtoHAsync_v2(void *destination, uintptr_t source, size_t bytes, handle stream) {
    return cuMemcpyDtoH_v2(destination, source, bytes);
}

SERVED_NO_OP(cuMemcpyDtoD_v2)
SERVED_NO_OP(cuMemcpyDtoDAsync_v2)
SERVED_NO_OP(cuMemsetD8_v2)
SERVED_NO_OP(cuMemsetD8Async)
SERVED_NO_OP(cuMemsetD32_v2)
SERVED_NO_OP(cuMemsetD32Async)
SERVED_NO_OP(cuStreamWriteValue32_v2)

// Numbers of CUpointer_attribute.
SERVED int cuPointerGetAttribute(void *value, int attribute, uintptr_t address) {
    enum { CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, ORDINAL = 9, DEVICE_MEMORY = 2 };
    if (!null_is_device_address((const void *)address))
        return CUDA_INVALID_VALUE;
    switch (attribute) {
        case CONTEXT: *(void **)value = contexts[null_device_of((void *)address)]; return CUDA_OK;
        case MEMORY_TYPE: *(int *)value = DEVICE_MEMORY; return CUDA_OK;
        case DEVICE_POINTER: *(uintptr_t *)value = address; return CUDA_OK;
        case ORDINAL: *(int *)value = null_device_of((void *)address); return CUDA_OK;
        default: null_report_unknown("cuPointerGetAttribute (of an attribute)"); return CUDA_NOT_SUPPORTED;
    }
}

// ---- streams and events ----

SERVED int cuStreamCreate(handle *stream, unsigned flags) {
    *stream = null_handle();
    return CUDA_OK;
}

SERVED int cuStreamCreateWithPriority(handle *stream, unsigned flags, int priority) { return cuStreamCreate(stream, flags); }

SERVED int cuStreamDestroy_v2(handle stream) {
    free(stream);
    return CUDA_OK;
}

SERVED int cuStreamSynchronize(handle stream) { return null_wait(stream); }
SERVED_NO_OP(cuStreamQuery)

SERVED int cuStreamWaitEvent(handle stream, handle event, unsigned flags) {
    null_wait_for_event(stream, event);
    return CUDA_OK;
}

SERVED int cuEventCreate(handle *event, unsigned flags) {
    *event = null_handle();
    return CUDA_OK;
}

SERVED int cuEventRecord(handle event, handle stream) {
    null_record(event, stream);
    return CUDA_OK;
}

SERVED int cuEventElapsedTime(float *milliseconds, handle start, handle end) {
    *milliseconds = NULL_ELAPSED_MILLISECONDS;
    return CUDA_OK;
}

SERVED int cuEventDestroy_v2(handle event) {
    free(event);
    return CUDA_OK;
}

SERVED_NO_OP(cuEventQuery)
SERVED_NO_OP(cuEventSynchronize)
