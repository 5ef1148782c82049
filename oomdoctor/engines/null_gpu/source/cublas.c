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

SERVED_NOTHING(cublasSetStream_v2)
SERVED_NOTHING(cublasSetWorkspace_v2)
SERVED_NOTHING(cublasSetPointerMode_v2)
SERVED_NOTHING(cublasSetMathMode)
SERVED_NOTHING(cublasSetAtomicsMode)
SERVED_NOTHING(cublasSetSmCountTarget)

// Results go to device memory (PyTorch sets the pointer mode so), to which nothing is written.
SERVED_NOTHING(cublasSgemm_v2)
SERVED_NOTHING(cublasDgemm_v2)
SERVED_NOTHING(cublasCgemm_v2)
SERVED_NOTHING(cublasZgemm_v2)
SERVED_NOTHING(cublasSgemmEx)
SERVED_NOTHING(cublasGemmEx)
SERVED_NOTHING(cublasSgemmStridedBatched)
SERVED_NOTHING(cublasDgemmStridedBatched)
SERVED_NOTHING(cublasCgemmStridedBatched)
SERVED_NOTHING(cublasZgemmStridedBatched)
SERVED_NOTHING(cublasGemmStridedBatchedEx)
SERVED_NOTHING(cublasSgemmBatched)
SERVED_NOTHING(cublasDgemmBatched)
SERVED_NOTHING(cublasCgemmBatched)
SERVED_NOTHING(cublasZgemmBatched)
SERVED_NOTHING(cublasSgemv_v2)
SERVED_NOTHING(cublasDgemv_v2)
SERVED_NOTHING(cublasCgemv_v2)
SERVED_NOTHING(cublasZgemv_v2)
SERVED_NOTHING(cublasSdot_v2)
SERVED_NOTHING(cublasDdot_v2)
SERVED_NOTHING(cublasDotEx)
SERVED_NOTHING(cublasCdotu_v2)
SERVED_NOTHING(cublasCdotc_v2)
SERVED_NOTHING(cublasZdotu_v2)
SERVED_NOTHING(cublasZdotc_v2)
SERVED_NOTHING(cublasStrsm_v2)
SERVED_NOTHING(cublasDtrsm_v2)
SERVED_NOTHING(cublasCtrsm_v2)
SERVED_NOTHING(cublasZtrsm_v2)
SERVED_NOTHING(cublasStrsmBatched)
SERVED_NOTHING(cublasDtrsmBatched)
SERVED_NOTHING(cublasCtrsmBatched)
SERVED_NOTHING(cublasZtrsmBatched)

// ---- cuBLASLt ----

SERVED int cublasLtCreate(handle *h) { return cublasCreate_v2(h); }
SERVED int cublasLtDestroy(handle h) { return cublasDestroy_v2(h); }
SERVED size_t cublasLtGetVersion(void) { return NULL_CUBLAS_VERSION; }
SERVED int cublasLtMatmulDescCreate(handle *h, int compute_type, int scale_type) { return cublasCreate_v2(h); }
SERVED int cublasLtMatmulDescDestroy(handle h) { return cublasDestroy_v2(h); }
SERVED_NOTHING(cublasLtMatmulDescSetAttribute)
SERVED int cublasLtMatmulPreferenceCreate(handle *h) { return cublasCreate_v2(h); }
SERVED int cublasLtMatmulPreferenceDestroy(handle h) { return cublasDestroy_v2(h); }
SERVED_NOTHING(cublasLtMatmulPreferenceSetAttribute)

SERVED int cublasLtMatrixLayoutCreate(handle *h, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    return cublasCreate_v2(h);
}

SERVED int cublasLtMatrixLayoutDestroy(handle h) { return cublasDestroy_v2(h); }
SERVED_NOTHING(cublasLtMatrixLayoutSetAttribute)
SERVED_NOTHING(cublasLtMatmul)

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
