// Kernels compiled at run time: modules of libcuda, and NVRTC. Triton and Inductor compile for the card's capability, load
// the result as a module and launch it. PyTorch compiles some elementwise kernels through NVRTC when they are first used:
// nothing would run them, so nothing is compiled.

#include "null_gpu.h"

#include <stdlib.h>

SERVED int cuModuleLoadData(handle *module, const void *image) {
    *module = null_handle();
    return CUDA_OK;
}

SERVED int cuModuleLoadDataEx(handle *module, const void *image, unsigned options, int *names, void **values) {
    return cuModuleLoadData(module, image);
}

SERVED int cuModuleLoad(handle *module, const char *path) { return cuModuleLoadData(module, path); }

SERVED int cuModuleUnload(handle module) {
    free(module);
    return CUDA_OK;
}

static char kernel[64];

SERVED int cuModuleGetFunction(handle *function, handle module, const char *name) {
    *function = kernel;
    return CUDA_OK;
}

SERVED int cuModuleGetGlobal_v2(uintptr_t *address, size_t *bytes, handle module, const char *name) {
    if (address)
        *address = null_symbol_address();
    if (bytes)
        *bytes = 4096;
    return CUDA_OK;
}

static int function_attribute(int attribute) {
    enum { MAX_THREADS_PER_BLOCK = 0, REGISTERS = 4, PTX_VERSION = 5, BINARY_VERSION = 6 };
    switch (attribute) {
        case MAX_THREADS_PER_BLOCK: return null_attribute(1);
        case REGISTERS: return 32;
        case PTX_VERSION: case BINARY_VERSION: return 10 * null_card()->major + null_card()->minor;
        default: return 0;
    }
}

SERVED int cuFuncGetAttribute(int *value, int attribute, handle function) {
    *value = function_attribute(attribute);
    return CUDA_OK;
}

SERVED_NO_OP(cuFuncSetAttribute)
SERVED_NO_OP(cuFuncSetCacheConfig)
SERVED_NO_OP(cuTensorMapEncodeTiled)
SERVED_NO_OP(cuTensorMapEncodeIm2col)

SERVED int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, handle function, int threads, size_t shared) {
    *blocks = null_blocks_per_sm(threads, shared);
    return CUDA_OK;
}

SERVED int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, handle function, int threads, size_t shared,
                                                                unsigned flags) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}

SERVED int cuOccupancyMaxActiveClusters(int *clusters, handle function, const void *configuration) {
    *clusters = null_card()->sm_count;
    return CUDA_OK;
}

// The driver calls a grid that is too large an invalid value.
SERVED int cuLaunchKernel(handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, handle stream, void **arguments, void **extra) {
    return null_launch_fits(gx, gy, gz, bx, by, bz) ? CUDA_OK : CUDA_INVALID_VALUE;
}

SERVED int cuLaunchCooperativeKernel(handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                     unsigned bz, unsigned shared, handle stream, void **arguments) {
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, NULL);
}

SERVED int cuLaunchKernelEx(const unsigned *c, handle function, void **arguments, void **extra) {
    return cuLaunchKernel(function, c[0], c[1], c[2], c[3], c[4], c[5], 0, NULL, arguments, extra);
}

// ---- NVRTC ----

SERVED int nvrtcVersion(int *major, int *minor) {
    *major = NULL_CUDA_VERSION / 1000;
    *minor = NULL_CUDA_VERSION / 10 % 100;
    return 0;
}

SERVED const char *nvrtcGetErrorString(int error) { return error ? "not served by the null GPU" : "NVRTC_SUCCESS"; }

SERVED int nvrtcCreateProgram(handle *program, const char *source, const char *name, int headers, const char *const *texts,
                              const char *const *names) {
    *program = null_handle();
    return 0;
}

SERVED int nvrtcDestroyProgram(handle *program) {
    free(*program);
    *program = NULL;
    return 0;
}

SERVED_NO_OP(nvrtcCompileProgram)
SERVED_NO_OP(nvrtcAddNameExpression)

SERVED int nvrtcGetLoweredName(handle program, const char *expression, const char **name) {
    *name = "null_kernel";
    return 0;
}

// The log, PTX and CUBIN are empty strings.
static int answer_size(size_t *bytes) {
    *bytes = 1;
    return 0;
}

static int answer_text(char *text) {
    *text = '\0';
    return 0;
}

SERVED int nvrtcGetProgramLogSize(handle program, size_t *bytes) { return answer_size(bytes); }
SERVED int nvrtcGetProgramLog(handle program, char *text) { return answer_text(text); }
SERVED int nvrtcGetPTXSize(handle program, size_t *bytes) { return answer_size(bytes); }
SERVED int nvrtcGetPTX(handle program, char *text) { return answer_text(text); }
SERVED int nvrtcGetCUBINSize(handle program, size_t *bytes) { return answer_size(bytes); }
SERVED int nvrtcGetCUBIN(handle program, char *text) { return answer_text(text); }
