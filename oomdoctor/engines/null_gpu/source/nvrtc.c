// NVRTC: PyTorch compiles some elementwise kernels when they are first used. Nothing would run them, so nothing is compiled.

#include "null_gpu.h"

#include <stdlib.h>
#include <string.h>

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

SERVED_NOTHING(nvrtcCompileProgram)
SERVED_NOTHING(nvrtcAddNameExpression)

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
