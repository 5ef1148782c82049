// NCCL: the calls of DistributedDataParallel, FSDP and torch.distributed. Each rank is a process with a null GPU of its own,
// and ranks do not communicate: no data moves, received data is zeros like all of a null GPU's data, and no call waits. The
// device memory of a real communicator's buffers is not known, and is not counted.

#include "null_gpu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NCCL_OK = 0, NCCL_UNHANDLED_CUDA_ERROR = 1, NCCL_INVALID_ARGUMENT = 4, NCCL_NO_COLOR = -1 };

typedef struct {
    char bytes[128];
} unique_id;

typedef struct {
    int ranks, rank, device;
} communicator;

static bool out_of_memory;  // for ncclGetLastError

SERVED int ncclGetVersion(int *version) {
    *version = NULL_NCCL_VERSION;
    return NCCL_OK;
}

SERVED const char *ncclGetErrorString(int error) {
    switch (error) {
        case NCCL_OK: return "no error";
        case NCCL_UNHANDLED_CUDA_ERROR: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
        case NCCL_INVALID_ARGUMENT: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
        default: return "not served by the null GPU";
    }
}

SERVED const char *ncclGetLastError(const communicator *c) {
    return out_of_memory ? "Cuda failure 2 'out of memory'" : "";
}

// ---- communicators ----

SERVED int ncclGetUniqueId(unique_id *id) {
    static atomic_uint count;
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "null %d %u", (int)getpid(), ++count);
    return NCCL_OK;
}

SERVED int ncclCommGetUniqueId(const communicator *c, unique_id *id) { return ncclGetUniqueId(id); }

// Communicators that were made since the process began, and the ranks of each, so that who reads it can look up what a real
// one would take.
enum { MAX_COUNTED = 4096 };
static int counted_ranks[MAX_COUNTED];
static atomic_uint counted;

SERVED unsigned oomdoctor_null_communicators(int *ranks, unsigned capacity) {
    unsigned made = atomic_load(&counted) < MAX_COUNTED ? atomic_load(&counted) : MAX_COUNTED;
    for (unsigned i = 0; i < made && i < capacity; i++)
        ranks[i] = counted_ranks[i];
    return made;
}

static int create(communicator **created, int ranks, int rank, int device) {
    *created = NULL;
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return NCCL_INVALID_ARGUMENT;
    *created = malloc(sizeof **created);
    if (*created) {
        **created = (communicator){ranks, rank, device};
        unsigned index = atomic_fetch_add(&counted, 1);
        if (index < MAX_COUNTED)
            counted_ranks[index] = ranks;
    }
    return *created ? NCCL_OK : NCCL_UNHANDLED_CUDA_ERROR;
}

SERVED int ncclCommInitRank(communicator **created, int ranks, unique_id id, int rank) {
    return create(created, ranks, rank, null_device());
}

SERVED int ncclCommInitRankConfig(communicator **created, int ranks, unique_id id, int rank, const void *config) {
    return create(created, ranks, rank, null_device());
}

SERVED int ncclCommInitRankScalable(communicator **created, int ranks, int rank, int ids, const unique_id *id,
                                    const void *config) {
    return create(created, ranks, rank, null_device());
}

SERVED int ncclCommInitAll(communicator **created, int count, const int *devices) {
    int error = NCCL_OK;
    for (int i = 0; i < count && !error; i++)
        error = create(&created[i], count, i, devices ? devices[i] : i);
    return error;
}

// The number of ranks with the same color is known to the ranks together only. PyTorch knows it, and from 2.9 on asks the new
// communicator and compares. So the agent tells it here before: for a color, or with color -1 for the splits that follow, until
// it is told 0. A process has few groups; the oldest color is forgotten where there are many.
enum { MAX_COLORS = 512 };

static struct {
    int color, ranks;
} color_sizes[MAX_COLORS];
static unsigned color_count;
static int next_ranks;

SERVED void oomdoctor_null_split_size(int color, int ranks) {
    if (color == NCCL_NO_COLOR) {
        next_ranks = ranks;
        return;
    }
    unsigned slot = color_count++ % MAX_COLORS;
    color_sizes[slot].color = color;
    color_sizes[slot].ranks = ranks;
}

static int ranks_of(int color, int otherwise) {
    if (next_ranks)
        return next_ranks;
    unsigned known = color_count < MAX_COLORS ? color_count : MAX_COLORS;
    for (unsigned i = 0; i < known; i++)
        if (color_sizes[i].color == color)
            return color_sizes[i].ranks;
    return otherwise;
}

// PyTorch passes the new rank as the key.
SERVED int ncclCommSplit(const communicator *c, int color, int key, communicator **created, const void *config) {
    *created = NULL;
    int ranks = ranks_of(color, c->ranks);
    bool is_rank = key >= 0 && key < ranks;
    return color == NCCL_NO_COLOR ? NCCL_OK : create(created, ranks, is_rank ? key : c->rank % ranks, c->device);
}

SERVED int ncclCommShrink(const communicator *c, const int *excluded, int count, communicator **created, const void *config,
                          int flags) {
    int below = 0;
    for (int i = 0; i < count; i++)
        below += excluded[i] < c->rank;
    return create(created, c->ranks - count, c->rank - below, c->device);
}

static int destroy(communicator *c) {
    free(c);
    return NCCL_OK;
}

SERVED int ncclCommDestroy(communicator *c) { return destroy(c); }
SERVED int ncclCommAbort(communicator *c) { return destroy(c); }
SERVED_NO_OP(ncclCommFinalize)
SERVED_NO_OP(ncclCommRevoke)
SERVED_NO_OP(ncclCommSuspend)
SERVED_NO_OP(ncclCommResume)

SERVED int ncclCommCount(const communicator *c, int *count) {
    *count = c->ranks;
    return NCCL_OK;
}

SERVED int ncclCommUserRank(const communicator *c, int *rank) {
    *rank = c->rank;
    return NCCL_OK;
}

SERVED int ncclCommCuDevice(const communicator *c, int *device) {
    *device = c->device;
    return NCCL_OK;
}

SERVED int ncclCommGetAsyncError(const communicator *c, int *error) {
    *error = NCCL_OK;
    return NCCL_OK;
}

SERVED int ncclCommMemStats(const communicator *c, int figure, uint64_t *value) {
    *value = 0;
    return NCCL_OK;
}

// ---- memory ----

SERVED int ncclMemAlloc(void **pointer, size_t bytes) {
    uintptr_t address;
    out_of_memory = null_allocate(bytes, &address) != CUDA_OK;
    *pointer = (void *)address;
    return out_of_memory ? NCCL_UNHANDLED_CUDA_ERROR : NCCL_OK;
}

SERVED int ncclMemFree(void *pointer) {
    return null_release((uintptr_t)pointer) == CUDA_OK ? NCCL_OK : NCCL_UNHANDLED_CUDA_ERROR;
}

// A registration is the buffer itself: registering takes no device memory, as far as is known.
SERVED int ncclCommRegister(const communicator *c, void *buffer, size_t bytes, void **registration) {
    *registration = buffer;
    return NCCL_OK;
}

SERVED int ncclCommWindowRegister(const communicator *c, void *buffer, size_t bytes, void **window, int flags) {
    *window = buffer;
    return NCCL_OK;
}

SERVED int ncclWinGetUserPtr(const communicator *c, void *window, void **buffer) {
    *buffer = window;
    return NCCL_OK;
}

SERVED_NO_OP(ncclCommDeregister)
SERVED_NO_OP(ncclCommWindowDeregister)

// ---- collectives ----

SERVED int ncclRedOpCreatePreMulSum(int *operation, const void *scalar, int type, int residence, const communicator *c) {
    enum { FIRST_OF_THE_USERS = 5 };
    *operation = FIRST_OF_THE_USERS;
    return NCCL_OK;
}

SERVED_NO_OP(ncclRedOpDestroy)
SERVED_NO_OP(ncclGroupStart)
SERVED_NO_OP(ncclGroupEnd)
SERVED_NO_OP(ncclAllGather)
SERVED_NO_OP(ncclAllReduce)
SERVED_NO_OP(ncclAlltoAll)
SERVED_NO_OP(ncclBcast)
SERVED_NO_OP(ncclBroadcast)
SERVED_NO_OP(ncclGather)
SERVED_NO_OP(ncclRecv)
SERVED_NO_OP(ncclReduce)
SERVED_NO_OP(ncclReduceScatter)
SERVED_NO_OP(ncclScatter)
SERVED_NO_OP(ncclSend)
