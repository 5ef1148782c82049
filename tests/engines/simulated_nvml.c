/* A stand-in for the NVIDIA driver's libnvidia-ml.so.1: two GPUs that do not exist.
 *
 * GPU 0 answers everything. Its first process is the one that STAND_IN_PID names. GPU 1 is of the kind that does not
 * support most questions; with -DLOST it has fallen off the bus. -DOLD leaves out what drivers before 510 lack,
 * -DV2_FAILS has the second version of the memory call fail as it does under WSL, -DNO_DRIVER has no driver loaded,
 * -DEMPTY no GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB 1048576ull
enum { SUCCESS, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, UNKNOWN = 999 };

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;

static int indices[2] = {0, 1};
static int index_of(const int *device) { return *device; }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
#ifdef NO_DRIVER
    return DRIVER_NOT_LOADED;
#else
    return SUCCESS;
#endif
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "stand-in error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
#ifdef EMPTY
    *count = 0;
#else
    *count = 2;
#endif
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, int **device) {
#ifdef LOST
    if (index == 1) return GPU_IS_LOST;
#endif
    *device = &indices[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(const int *device, char *text, unsigned length) {
    snprintf(text, length, "GPU-%08d-1111-2222-3333-444444444444", index_of(device));
    return SUCCESS;
}

int nvmlDeviceGetName(const int *device, char *text, unsigned length) {
    snprintf(text, length, index_of(device) ? "NVIDIA GB10" : "NVIDIA GeForce RTX 4090");
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(const int *device, memory_v1 *memory) {
    if (index_of(device)) return NOT_SUPPORTED;
    *memory = (memory_v1){24564 * MIB, 22628 * MIB, 1936 * MIB};
    return SUCCESS;
}

#ifndef OLD
int nvmlDeviceGetMemoryInfo_v2(const int *device, memory_v2 *memory) {
#ifdef V2_FAILS
    return UNKNOWN;
#endif
    if (index_of(device)) return NOT_SUPPORTED;
    if (memory->version != (sizeof *memory | 2 << 24)) return 25;
    *memory = (memory_v2){memory->version, 24564 * MIB, 400 * MIB, 22628 * MIB, 1536 * MIB};
    return SUCCESS;
}
#endif

int nvmlDeviceGetUtilizationRates(const int *device, utilization *rates) {
    if (index_of(device)) return NOT_SUPPORTED;
    *rates = (utilization){0, 5};
    return SUCCESS;
}

static int list(const int *device, unsigned *count, process *found, const process *all, unsigned n) {
    if (index_of(device)) return NOT_SUPPORTED;
    if (*count < n) { *count = n; return INSUFFICIENT_SIZE; }
    *count = n;
    memcpy(found, all, n * sizeof *all);
    return SUCCESS;
}

static int compute(const int *device, unsigned *count, process *found) {
    const char *pid = getenv("STAND_IN_PID");
    process all[] = {{99999991, 256 * MIB, 0, 0}, {pid ? atoi(pid) : 99999990, 1024 * MIB, 0, 0}};
    return list(device, count, found, all, 2);
}

static int graphics(const int *device, unsigned *count, process *found) {
    process all[] = {{99999991, 256 * MIB, 0, 0}};
    return list(device, count, found, all, 1);
}

#ifdef OLD
int nvmlDeviceGetComputeRunningProcesses_v2(const int *d, unsigned *n, process *p) { return compute(d, n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(const int *d, unsigned *n, process *p) { return graphics(d, n, p); }
#else
int nvmlDeviceGetComputeRunningProcesses_v3(const int *d, unsigned *n, process *p) { return compute(d, n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(const int *d, unsigned *n, process *p) { return graphics(d, n, p); }
#endif

int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned length) {
    if (pid == 99999991) snprintf(text, length, "/usr/bin/\033[31mXorg");
    else snprintf(text, length, "\xff is not UTF-8");
    return SUCCESS;
}
