// Which devices there are, and which of them a thread uses.
//
// There is one, except in a process that a launcher started beside others on the same machine: each of them uses the device
// of its own LOCAL_RANK, so there are as many as the launcher says. All are the same card, each with an account of its own.
// The accounts are the process's: what another rank takes on "the same" device is not seen here.

#include "null_gpu.h"

#include <stdlib.h>

static _Thread_local int current;

// Asked each time: a process that was forked before CUDA was initialised may have been given another environment since.
int null_device_count(void) {
    const char *text = getenv("LOCAL_WORLD_SIZE");
    long count = text ? strtol(text, NULL, 10) : 1;
    return count < 1 ? 1 : count > MAX_DEVICES ? MAX_DEVICES : (int)count;
}

bool null_has_device(int device) { return device >= 0 && device < null_device_count(); }

int null_device(void) { return current; }

int null_use_device(int device) {
    if (!null_has_device(device))
        return CUDA_INVALID_DEVICE;
    current = device;
    return CUDA_OK;
}
