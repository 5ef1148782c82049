// A cuBLASLt that finds an algorithm for every product, for the process that asks the real cuDNN about a described card.
//
// The real one makes no handle without a device, and then cuDNN leaves out of its heuristics the engine that runs a 1x1
// convolution as a product, which is often the first. Whether an algorithm exists is the only thing that cuDNN asks here. It
// is told that one does, and needs no workspace: so it was on an H200, in each of the 347 of 1149 graphs whose heuristics
// named the engine (cuDNN 9.19). Nothing is ever multiplied.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SERVED __attribute__((visibility("default")))
#define SUCCEEDS(name) SERVED int name(void) { return 0; }

typedef struct {  // cublasLtMatmulHeuristicResult_t
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
} found_algorithm;

extern const int cublas_version;  // of the library that this takes the place of

static char thing[64];

static int give_thing(void **given) {
    *given = thing;
    return 0;
}

SERVED size_t cublasLtGetVersion(void) { return (size_t)cublas_version; }

SERVED int cublasLtGetProperty(int which, int *value) {
    const int parts[] = {cublas_version / 10000, cublas_version / 100 % 100, cublas_version % 100};
    *value = which >= 0 && which < 3 ? parts[which] : 0;
    return 0;
}

SERVED int cublasLtCreate(void **handle) { return give_thing(handle); }
SERVED int cublasLtMatmulDescCreate(void **made, int compute_type, int scale_type) { return give_thing(made); }
SERVED int cublasLtMatmulPreferenceCreate(void **made) { return give_thing(made); }
SERVED int cublasLtMatrixTransformDescCreate(void **made, int scale_type) { return give_thing(made); }

SERVED int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    return give_thing(made);
}

static int clear(void *made, size_t bytes) {
    memset(made, 0, bytes);
    return 0;
}

SERVED int cublasLtMatmulDescInit_internal(void *made, size_t bytes, int compute_type, int scale_type) {
    return clear(made, bytes);
}
SERVED int cublasLtMatmulPreferenceInit_internal(void *made, size_t bytes) { return clear(made, bytes); }
SERVED int cublasLtMatrixTransformDescInit_internal(void *made, size_t bytes, int scale_type) { return clear(made, bytes); }
SERVED int cublasLtMatrixLayoutInit_internal(void *made, size_t bytes, int type, uint64_t rows, uint64_t columns,
                                             int64_t leading) {
    return clear(made, bytes);
}

static int answer_zero(void *value, size_t room, size_t *written) {
    if (value)
        memset(value, 0, room);
    if (written)
        *written = room;
    return 0;
}

SERVED int cublasLtMatmulDescGetAttribute(void *of, int name, void *value, size_t room, size_t *written) {
    return answer_zero(value, room, written);
}
SERVED int cublasLtMatrixLayoutGetAttribute(void *of, int name, void *value, size_t room, size_t *written) {
    return answer_zero(value, room, written);
}
SERVED int cublasLtMatrixTransformDescGetAttribute(void *of, int name, void *value, size_t room, size_t *written) {
    return answer_zero(value, room, written);
}

SERVED int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                          int requested, found_algorithm *results, int *found) {
    *found = requested > 0;
    if (*found)
        *results = (found_algorithm){.waves = 1.0F};
    return 0;
}

SUCCEEDS(cublasLtDestroy)
SUCCEEDS(cublasLtMatmulDescDestroy)
SUCCEEDS(cublasLtMatmulDescSetAttribute)
SUCCEEDS(cublasLtMatmulPreferenceDestroy)
SUCCEEDS(cublasLtMatmulPreferenceSetAttribute)
SUCCEEDS(cublasLtMatrixLayoutDestroy)
SUCCEEDS(cublasLtMatrixLayoutSetAttribute)
SUCCEEDS(cublasLtMatrixTransformDescDestroy)
SUCCEEDS(cublasLtMatrixTransformDescSetAttribute)
