// cuFFT. A plan knows how large a work area its transform needs, PyTorch allocates it for the time of the transform. The real
// library tells the size on a GPU alone. Since CUDA 13 short transforms need none: so it was for all of 135 on an H200, of up
// to 512 numbers along the last dimension, primes among them, and up to 128 along the one before. For others the documented
// least is taken, which is what was measured for lengths of small prime factors: as many complex numbers as the complex side
// of the transform has. Sources: cuFFT's API reference, "as low
// as 1*batch*n[0]*..*n[rank-1]" complex elements, and eight times as many in the worst case; arrayfire/arrayfire#1443 (80 kB
// for 100 x 100 complex numbers); JuliaGPU/CUDA.jl#894 (2 MiB for 512 x 512, 64 MiB for 32 of them).

#include "null_gpu.h"

enum { REAL_FLOAT = 0, REAL_DOUBLE = 1, REAL_HALF = 2, COMPLEX_FLOAT = 4, COMPLEX_DOUBLE = 5 };  // cudaDataType

static bool is_real(int type) { return type == REAL_FLOAT || type == REAL_DOUBLE || type == REAL_HALF; }

enum { WITHOUT_AREA = 13000, SHORT = 512, SHORT_OUTER = 128 };

static bool is_short(int rank, const int64_t *n) {
    for (int i = 0; i < rank; i++)
        if (n[i] > (i == rank - 1 ? SHORT : SHORT_OUTER))
            return false;
    return NULL_CUDA_VERSION >= WITHOUT_AREA;
}

static size_t complex_bytes(int type) {
    switch (type) {
        case COMPLEX_FLOAT: return 8;
        case COMPLEX_DOUBLE: return 16;
        default: return 4;  // half precision
    }
}

SERVED int cufftCreate(int *plan) {
    static _Atomic int last;
    *plan = ++last;
    return 0;
}

SERVED int cufftXtMakePlanMany(int plan, int rank, const int64_t *n, const int64_t *input_shape, int64_t input_stride,
                               int64_t input_distance, int input_type, const int64_t *output_shape, int64_t output_stride,
                               int64_t output_distance, int output_type, int64_t batch, size_t *bytes,
                               int execution_type) {
    bool is_half = is_real(input_type) || is_real(output_type);  // the complex side is symmetric, and half of it is kept
    *bytes = (size_t)batch * complex_bytes(execution_type);
    for (int i = 0; i < rank; i++)
        *bytes *= (size_t)(is_half && i == rank - 1 ? n[i] / 2 + 1 : n[i]);
    if (is_short(rank, n))
        *bytes = 0;
    else
        null_assume(ASSUMED_CUFFT);
    return 0;
}

SERVED_NO_OP(cufftDestroy)
SERVED_NO_OP(cufftSetAutoAllocation)
SERVED_NO_OP(cufftSetStream)
SERVED_NO_OP(cufftSetWorkArea)
SERVED_NO_OP(cufftXtExec)
