// Errors: their names and texts, the last error of each thread, and the calls that are not served.

#include "null_gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int error;
    const char *name, *text;
} errors[] = {
    {CUDA_OK, "cudaSuccess", "no error"},
    {CUDA_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {CUDA_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {CUDA_INVALID_CONFIGURATION, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {CUDA_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {CUDA_NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
    {CUDA_CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {CUDA_CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {CUDA_CAPTURE_UNMATCHED, "cudaErrorStreamCaptureUnmatched",
     "capture was not initiated in this stream, or is not active"},
    {CUDA_NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported"},
};

static size_t find_error(int error) {
    size_t count = sizeof errors / sizeof *errors, index = 0;
    while (index < count && errors[index].error != error)
        index++;
    return index < count ? index : count - 1;
}

const char *null_error_name(int error) { return errors[find_error(error)].name; }
const char *null_error_text(int error) { return errors[find_error(error)].text; }

SERVED int cuGetErrorString(int error, const char **text) {
    *text = null_error_text(error);
    return CUDA_OK;
}

SERVED int cuGetErrorName(int error, const char **name) {
    *name = null_error_name(error);
    return CUDA_OK;
}

// ---- libcudart's last error: set by cudaMalloc and by a bad launch, reset by the thread's next cudaGetLastError ----

static _Thread_local int last_error;

int null_fail(int error) {
    if (error)
        last_error = error;
    return error;
}

SERVED int cudaGetLastError(void) {
    int error = last_error;
    last_error = CUDA_OK;
    null_cudnn_error_is_read();
    return error;
}

SERVED int cudaPeekAtLastError(void) { return last_error; }
SERVED const char *cudaGetErrorName(int error) { return null_error_name(error); }
SERVED const char *cudaGetErrorString(int error) { return null_error_text(error); }

// ---- calls that are not served ----

// Each is named once on stderr, when it first happens, and listed for the process to read; the caller gets its library's
// "not supported". A wrong answer would be worse than none.

static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static char names[1 << 16];  // one name a line
static size_t names_length;

static bool is_listed(const char *name, size_t bytes) {
    for (const char *line = names; *line; line = strchr(line, '\n') + 1)
        if (!strncmp(line, name, bytes) && line[bytes] == '\n')
            return true;
    return false;
}

void null_report_unknown(const char *name) {
    size_t bytes = strlen(name);
    pthread_mutex_lock(&names_lock);
    bool first = !is_listed(name, bytes) && names_length + bytes + 2 <= sizeof names;
    if (first) {
        memcpy(names + names_length, name, bytes);
        names_length += bytes;
        names[names_length++] = '\n';
    }
    pthread_mutex_unlock(&names_lock);
    if (first)
        fprintf(stderr, "oomdoctor null GPU: `%s` is not served\n", name);
}

// Copies the names called so far, one a line, and returns the bytes of all of them.
SERVED size_t oomdoctor_null_unknown_calls(char *buffer, size_t capacity) {
    pthread_mutex_lock(&names_lock);
    size_t bytes = names_length;
    if (capacity) {
        size_t copied = bytes < capacity - 1 ? bytes : capacity - 1;
        memcpy(buffer, names, copied);
        buffer[copied] = '\0';
    }
    pthread_mutex_unlock(&names_lock);
    return bytes;
}

// ---- what is assumed ----

static _Atomic uint64_t assumptions;

void null_assume(assumption a) { assumptions |= a; }

SERVED uint64_t oomdoctor_null_assumptions(void) { return assumptions; }
