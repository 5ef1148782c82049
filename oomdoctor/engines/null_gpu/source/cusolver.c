// cuSOLVER. How large a work area a decomposition needs, the library tells on a GPU alone, and nobody has published a rule:
// the answers are 0, and results say so. The matrices that PyTorch makes around it are its own.

#include "null_gpu.h"

#include <stdlib.h>

static int answer_size(int *elements) {
    *elements = 0;
    null_assume(ASSUMED_CUSOLVER);
    return 0;
}

static int answer_sizes(size_t *device_bytes, size_t *host_bytes) {
    *device_bytes = *host_bytes = 0;
    null_assume(ASSUMED_CUSOLVER);
    return 0;
}

SERVED int cusolverDnCreate(handle *h) {
    *h = null_handle();
    return 0;
}

SERVED int cusolverDnDestroy(handle h) {
    free(h);
    return 0;
}

SERVED int cusolverDnCreateParams(handle *h) { return cusolverDnCreate(h); }
SERVED int cusolverDnDestroyParams(handle h) { return cusolverDnDestroy(h); }
SERVED int cusolverDnCreateGesvdjInfo(handle *h) { return cusolverDnCreate(h); }
SERVED int cusolverDnDestroyGesvdjInfo(handle h) { return cusolverDnDestroy(h); }
SERVED int cusolverDnCreateSyevjInfo(handle *h) { return cusolverDnCreate(h); }
SERVED int cusolverDnDestroySyevjInfo(handle h) { return cusolverDnDestroy(h); }
SERVED_NO_OP(cusolverDnSetStream)

// MAGMA, which PyTorch has for what cuSOLVER lacks, makes a handle of cuSPARSE, too, and never uses it.
SERVED int cusparseCreate(handle *h) { return cusolverDnCreate(h); }
SERVED int cusparseDestroy(handle h) { return cusolverDnDestroy(h); }
SERVED_NO_OP(cusparseSetStream)
SERVED_NO_OP(cusparseSetPointerMode)
SERVED_NO_OP(cusolverDnXgesvdjSetMaxSweeps)
SERVED_NO_OP(cusolverDnXgesvdjSetSortEig)
SERVED_NO_OP(cusolverDnXgesvdjSetTolerance)
SERVED_NO_OP(cusolverDnXsyevjSetSortEig)

// ---- functions of one type of elements: S, D, C and Z; eigenvalues and orthogonal matrices have other names for complex ones

#define SERVED_FOR(type, sy, or)                                                                                          \
    SERVED int cusolverDn##type##geqrf_bufferSize(handle h, int m, int n, handle a, int lda, int *size) {                 \
        return answer_size(size);                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##getrf_bufferSize(handle h, int m, int n, handle a, int lda, int *size) {                 \
        return answer_size(size);                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##gesvd_bufferSize(handle h, int m, int n, int *size) { return answer_size(size); }        \
    SERVED int cusolverDn##type##gesvdj_bufferSize(handle h, int job, int economy, int m, int n, handle a, int lda,       \
                                                   handle s, handle u, int ldu, handle v, int ldv, int *size, handle p) { \
        return answer_size(size);                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##gesvdjBatched_bufferSize(handle h, int job, int m, int n, handle a, int lda, handle s,   \
                                                          handle u, int ldu, handle v, int ldv, int *size, handle p,      \
                                                          int batch) {                                                    \
        return answer_size(size);                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##gesvdaStridedBatched_bufferSize(                                                         \
        handle h, int job, int rank, int m, int n, handle a, int lda, int64_t next_a, handle s, int64_t next_s, handle u, \
        int ldu, int64_t next_u, handle v, int ldv, int64_t next_v, int *size, int batch) {                               \
        return answer_size(size);                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##potrf_bufferSize(handle h, int part, int n, handle a, int lda, int *size) {              \
        return answer_size(size);                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##sytrf_bufferSize(handle h, int n, handle a, int lda, int *size) {                        \
        return answer_size(size);                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##sy##evd_bufferSize(handle h, int job, int part, int n, handle a, int lda, handle w,      \
                                                    int *size) {                                                          \
        return answer_size(size);                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##sy##evj_bufferSize(handle h, int job, int part, int n, handle a, int lda, handle w,      \
                                                    int *size, handle p) {                                                \
        return answer_size(size);                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##sy##evjBatched_bufferSize(handle h, int job, int part, int n, handle a, int lda,         \
                                                           handle w, int *size, handle p, int batch) {                    \
        return answer_size(size);                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##or##gqr_bufferSize(handle h, int m, int n, int k, handle a, int lda, handle tau,         \
                                                    int *size) {                                                          \
        return answer_size(size);                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##or##mqr_bufferSize(handle h, int side, int transposed, int m, int n, int k, handle a,    \
                                                    int lda, handle tau, handle c, int ldc, int *size) {                  \
        return answer_size(size);                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##gesvdj(handle h, int job, int economy, int m, int n, handle a, int lda, handle s,        \
                                        handle u, int ldu, handle v, int ldv, handle work, int size, int *state,          \
                                        handle p) {                                                                       \
        null_expect_zeros(state, sizeof *state);  /* PyTorch reads whether it has converged */                            \
        return 0;                                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##gesvdjBatched(handle h, int job, int m, int n, handle a, int lda, handle s, handle u,    \
                                               int ldu, handle v, int ldv, handle work, int size, int *states, handle p,  \
                                               int batch) {                                                               \
        null_expect_zeros(states, (size_t)batch * sizeof *states);                                                        \
        return 0;                                                                                                         \
    }                                                                                                                     \
    SERVED int cusolverDn##type##gesvdaStridedBatched(                                                                    \
        handle h, int job, int rank, int m, int n, handle a, int lda, int64_t next_a, handle s, int64_t next_s, handle u, \
        int ldu, int64_t next_u, handle v, int ldv, int64_t next_v, handle work, int size, int *states, double *norms,    \
        int batch) {                                                                                                      \
        null_expect_zeros(states, (size_t)batch * sizeof *states);                                                        \
        return 0;                                                                                                         \
    }                                                                                                                     \
    SERVED_NO_OP(cusolverDn##type##geqrf)                                                                                 \
    SERVED_NO_OP(cusolverDn##type##gesvd)                                                                                 \
    SERVED_NO_OP(cusolverDn##type##getrf)                                                                                 \
    SERVED_NO_OP(cusolverDn##type##getrs)                                                                                 \
    SERVED_NO_OP(cusolverDn##type##or##gqr)                                                                               \
    SERVED_NO_OP(cusolverDn##type##or##mqr)                                                                               \
    SERVED_NO_OP(cusolverDn##type##potrf)                                                                                 \
    SERVED_NO_OP(cusolverDn##type##potrfBatched)                                                                          \
    SERVED_NO_OP(cusolverDn##type##potrs)                                                                                 \
    SERVED_NO_OP(cusolverDn##type##potrsBatched)                                                                          \
    SERVED_NO_OP(cusolverDn##type##sy##evd)                                                                               \
    SERVED_NO_OP(cusolverDn##type##sy##evj)                                                                               \
    SERVED_NO_OP(cusolverDn##type##sy##evjBatched)                                                                        \
    SERVED_NO_OP(cusolverDn##type##sytrf)

SERVED_FOR(S, sy, or)
SERVED_FOR(D, sy, or)
SERVED_FOR(C, he, un)
SERVED_FOR(Z, he, un)

// ---- functions of any type ----

SERVED int cusolverDnXgeqrf_bufferSize(handle h, handle p, int64_t m, int64_t n, int type, handle a, int64_t lda,
                                       int tau_type, handle tau, int compute_type, size_t *bytes, size_t *host_bytes) {
    return answer_sizes(bytes, host_bytes);
}

SERVED int cusolverDnXpotrf_bufferSize(handle h, handle p, int part, int64_t n, int type, handle a, int64_t lda,
                                       int compute_type, size_t *bytes, size_t *host_bytes) {
    return answer_sizes(bytes, host_bytes);
}

SERVED int cusolverDnXsyevd_bufferSize(handle h, handle p, int job, int part, int64_t n, int type, handle a, int64_t lda,
                                       int w_type, handle w, int compute_type, size_t *bytes, size_t *host_bytes) {
    return answer_sizes(bytes, host_bytes);
}

SERVED int cusolverDnXsyevBatched_bufferSize(handle h, handle p, int job, int part, int64_t n, int type, handle a,
                                             int64_t lda, int w_type, handle w, int compute_type, size_t *bytes,
                                             size_t *host_bytes, int64_t batch) {
    return answer_sizes(bytes, host_bytes);
}

SERVED int cusolverDnXsytrs_bufferSize(handle h, int part, int64_t n, int64_t columns, int type, handle a, int64_t lda,
                                       const int64_t *pivots, int b_type, handle b, int64_t ldb, size_t *bytes,
                                       size_t *host_bytes) {
    return answer_sizes(bytes, host_bytes);
}

SERVED int cusolverDnXgeev_bufferSize(handle h, handle p, int left, int right, int64_t n, int type, handle a, int64_t lda,
                                      int w_type, handle w, int l_type, handle l, int64_t ldl, int r_type, handle r,
                                      int64_t ldr, int compute_type, size_t *bytes, size_t *host_bytes) {
    return answer_sizes(bytes, host_bytes);
}

SERVED_NO_OP(cusolverDnXgeev)
SERVED_NO_OP(cusolverDnXgeqrf)
SERVED_NO_OP(cusolverDnXpotrf)
SERVED_NO_OP(cusolverDnXpotrs)
SERVED_NO_OP(cusolverDnXsyevBatched)
SERVED_NO_OP(cusolverDnXsyevd)
SERVED_NO_OP(cusolverDnXsytrs)
