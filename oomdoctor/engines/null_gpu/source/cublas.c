// cuBLAS and cuBLASLt. They allocate no memory of their own: PyTorch allocates a workspace for each handle and stream, whose
// size depends on the card's compute capability (and on CUBLAS_WORKSPACE_CONFIG), and passes it.

#include "null_gpu.h"

#include <stdlib.h>
#include <string.h>

SERVED int cublasCreate_v2(handle *h) {
    *h = null_handle();
    return 0;
}

SERVED int cublasDestroy_v2(handle h) {
    free(h);
    return 0;
}

SERVED int cublasGetVersion_v2(handle h, int *version) {
    *version = NULL_CUBLAS_VERSION;
    return 0;
}

SERVED int cublasGetStream_v2(handle h, handle *stream) {
    *stream = NULL;
    return 0;
}

SERVED int cublasGetPointerMode_v2(handle h, int *mode) {
    *mode = 0;
    return 0;
}

SERVED int cublasGetMathMode(handle h, int *mode) {
    *mode = 0;
    return 0;
}

SERVED_NO_OP(cublasSetStream_v2)
SERVED_NO_OP(cublasSetWorkspace_v2)
SERVED_NO_OP(cublasSetPointerMode_v2)
SERVED_NO_OP(cublasSetMathMode)
SERVED_NO_OP(cublasSetAtomicsMode)
SERVED_NO_OP(cublasSetSmCountTarget)

// Results go to device memory (PyTorch sets the pointer mode so), to which nothing is written.
SERVED_NO_OP(cublasSgemm_v2)
SERVED_NO_OP(cublasDgemm_v2)
SERVED_NO_OP(cublasCgemm_v2)
SERVED_NO_OP(cublasZgemm_v2)
SERVED_NO_OP(cublasSgemmEx)
SERVED_NO_OP(cublasGemmEx)
SERVED_NO_OP(cublasSgemmStridedBatched)
SERVED_NO_OP(cublasDgemmStridedBatched)
SERVED_NO_OP(cublasCgemmStridedBatched)
SERVED_NO_OP(cublasZgemmStridedBatched)
SERVED_NO_OP(cublasGemmStridedBatchedEx)
SERVED_NO_OP(cublasSgemmBatched)
SERVED_NO_OP(cublasDgemmBatched)
SERVED_NO_OP(cublasCgemmBatched)
SERVED_NO_OP(cublasZgemmBatched)
SERVED_NO_OP(cublasSgemv_v2)
SERVED_NO_OP(cublasDgemv_v2)
SERVED_NO_OP(cublasCgemv_v2)
SERVED_NO_OP(cublasZgemv_v2)
SERVED_NO_OP(cublasSdot_v2)
SERVED_NO_OP(cublasDdot_v2)
SERVED_NO_OP(cublasDotEx)
SERVED_NO_OP(cublasCdotu_v2)
SERVED_NO_OP(cublasCdotc_v2)
SERVED_NO_OP(cublasZdotu_v2)
SERVED_NO_OP(cublasZdotc_v2)
SERVED_NO_OP(cublasStrsm_v2)
SERVED_NO_OP(cublasDtrsm_v2)
SERVED_NO_OP(cublasCtrsm_v2)
SERVED_NO_OP(cublasZtrsm_v2)
SERVED_NO_OP(cublasStrsmBatched)
SERVED_NO_OP(cublasDtrsmBatched)
SERVED_NO_OP(cublasCtrsmBatched)
SERVED_NO_OP(cublasZtrsmBatched)

SERVED_NO_OP(cublasStrmm_v2)
SERVED_NO_OP(cublasDtrmm_v2)
SERVED_NO_OP(cublasCtrmm_v2)
SERVED_NO_OP(cublasZtrmm_v2)

// Decompositions of batches. `state` is on the host: 0 for success. It tells of the arguments alone.
#define SERVED_BATCHED(type)                                                                                                  \
    SERVED_NO_OP(cublas##type##getrfBatched)                                                                                  \
    SERVED int cublas##type##getrsBatched(handle h, int transposed, int n, int columns, handle a, int lda, handle pivots,     \
                                          handle b, int ldb, int *state, int batch) {                                         \
        return *state = 0;                                                                                                    \
    }                                                                                                                         \
    SERVED int cublas##type##geqrfBatched(handle h, int m, int n, handle a, int lda, handle tau, int *state, int batch) {     \
        return *state = 0;                                                                                                    \
    }                                                                                                                         \
    SERVED int cublas##type##gelsBatched(handle h, int transposed, int m, int n, int columns, handle a, int lda, handle c,    \
                                         int ldc, int *state, handle states, int batch) {                                     \
        return *state = 0;                                                                                                    \
    }

SERVED_BATCHED(S)
SERVED_BATCHED(D)
SERVED_BATCHED(C)
SERVED_BATCHED(Z)

// ---- cuBLASLt ----

SERVED int cublasLtCreate(handle *h) { return cublasCreate_v2(h); }
SERVED int cublasLtDestroy(handle h) { return cublasDestroy_v2(h); }
SERVED size_t cublasLtGetVersion(void) { return NULL_CUBLAS_VERSION; }
SERVED int cublasLtMatmulDescCreate(handle *h, int compute_type, int scale_type) { return cublasCreate_v2(h); }
SERVED int cublasLtMatmulDescDestroy(handle h) { return cublasDestroy_v2(h); }
SERVED_NO_OP(cublasLtMatmulDescSetAttribute)
SERVED int cublasLtMatmulPreferenceCreate(handle *h) { return cublasCreate_v2(h); }
SERVED int cublasLtMatmulPreferenceDestroy(handle h) { return cublasDestroy_v2(h); }
SERVED_NO_OP(cublasLtMatmulPreferenceSetAttribute)

SERVED int cublasLtMatrixLayoutCreate(handle *h, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    return cublasCreate_v2(h);
}

SERVED int cublasLtMatrixLayoutDestroy(handle h) { return cublasDestroy_v2(h); }
SERVED_NO_OP(cublasLtMatrixLayoutSetAttribute)
SERVED_NO_OP(cublasLtMatmul)

typedef struct {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
} heuristic_result;

// One algorithm without a workspace. PyTorch allocates the workspace that it offers whether or not it is used, so the
// answer does not change the memory.
SERVED int cublasLtMatmulAlgoGetHeuristic(handle h, handle operation, handle a, handle b, handle c, handle d,
                                          handle preference, int requested, heuristic_result *results, int *found) {
    memset(results, 0, sizeof *results);
    results->waves = 1.0F;
    *found = 1;
    return 0;
}
