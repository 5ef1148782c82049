// NVML, the calls that PyTorch makes: the number of devices, and the memory of each process, which its out-of-memory message
// prints. On a machine with real GPUs this also keeps PyTorch from counting those instead.

#include "null_gpu.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NVML_OK = 0, NVML_INVALID_ARGUMENT = 2, NVML_NOT_FOUND = 6, NVML_INSUFFICIENT_SIZE = 7 };

static char devices[MAX_DEVICES][64];

static int ordinal(handle h) { return (int)(((char *)h - devices[0]) / (ptrdiff_t)sizeof devices[0]); }

SERVED_NO_OP(nvmlInit)
SERVED_NO_OP(nvmlInit_v2)
SERVED_NO_OP(nvmlInitWithFlags)
SERVED_NO_OP(nvmlShutdown)
SERVED const char *nvmlErrorString(int error) { return error ? "not served by the null GPU" : "success"; }

SERVED int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = NULL_CUDA_VERSION;
    return NVML_OK;
}

SERVED int nvmlSystemGetDriverVersion(char *text, unsigned capacity) {
    snprintf(text, capacity, "null");
    return NVML_OK;
}

SERVED int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)null_device_count();
    return NVML_OK;
}

SERVED int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *h) {
    if (!null_has_device((int)index))
        return NVML_INVALID_ARGUMENT;
    *h = devices[index];
    return NVML_OK;
}

SERVED int nvmlDeviceGetHandleByPciBusId_v2(const char *id, handle *h) {
    unsigned domain, bus;
    if (sscanf(id, "%x:%x", &domain, &bus) != 2)
        return NVML_INVALID_ARGUMENT;
    return nvmlDeviceGetHandleByIndex_v2(bus - FIRST_PCI_BUS, h);
}

SERVED int nvmlDeviceGetName(handle h, char *text, unsigned capacity) {
    snprintf(text, capacity, "%s", null_card()->name);
    return NVML_OK;
}

SERVED int nvmlDeviceGetUUID(handle h, char *text, unsigned capacity) {
    snprintf(text, capacity, "GPU-00000000-0000-0000-0000-%012x", ordinal(h));
    return NVML_OK;
}

SERVED int nvmlDeviceGetIndex(handle h, unsigned *index) {
    *index = (unsigned)ordinal(h);
    return NVML_OK;
}

// nvmlGpuFabricInfoV_t: the card is on no NVLink fabric. An error would make PyTorch warn.
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
} fabric_info;

SERVED int nvmlDeviceGetGpuFabricInfoV(handle h, fabric_info *info) {
    info->status = NVML_OK;
    info->state = 0;
    return NVML_OK;
}

typedef struct {
    uint64_t total, free, used;
} memory_info;

SERVED int nvmlDeviceGetMemoryInfo(handle h, memory_info *info) {
    size_t total = null_total_bytes(), free = null_free_bytes(ordinal(h));
    *info = (memory_info){total, free, total - free};
    return NVML_OK;
}

// This process is the only one that holds memory: its allocations and the context.
static uint64_t process_bytes(handle h) { return null_used_bytes(ordinal(h)) + null_card()->context_bytes; }

typedef struct {
    unsigned pid;
    uint64_t used_bytes;
} process_info_v1;

typedef struct {
    unsigned pid;
    uint64_t used_bytes;
    unsigned gpu_instance, compute_instance;
} process_info_v3;

static bool fits_one(unsigned *count) {
    bool fits = *count >= 1;
    *count = 1;
    return fits;
}

SERVED int nvmlDeviceGetComputeRunningProcesses(handle h, unsigned *count, process_info_v1 *processes) {
    if (!fits_one(count) || !processes)
        return NVML_INSUFFICIENT_SIZE;
    *processes = (process_info_v1){(unsigned)getpid(), process_bytes(h)};
    return NVML_OK;
}

SERVED int nvmlDeviceGetComputeRunningProcesses_v3(handle h, unsigned *count, process_info_v3 *processes) {
    if (!fits_one(count) || !processes)
        return NVML_INSUFFICIENT_SIZE;
    *processes = (process_info_v3){(unsigned)getpid(), process_bytes(h), ~0U, ~0U};
    return NVML_OK;
}
