// One question that PyTorch asks of its environment and that needs two answers.
//
// The environment sets TORCH_CUDNN_V8_API_DISABLED=1, so that convolutions run through cuDNN's older interface, which the
// null GPU serves. But PyTorch asks twice: libtorch_cuda, when it runs a convolution, and libtorch_cpu, when it chooses
// who runs it. There "disabled" means that cuDNN cannot do bfloat16, and PyTorch takes its slow fallback with a buffer of
// gigabytes that no real GPU would hold. So libtorch_cpu is told that the newer interface is there.

#define _GNU_SOURCE  // dladdr
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "null_gpu.h"

// std::optional<bool> as C++ returns it, in a register: the value in the low byte, whether there is one in the high byte.
typedef uint16_t optional_bool;
enum { NO_ANSWER = 0, ANSWER = 0x100 };

static bool asked_by(const char *library, void *caller) {
    Dl_info found;
    return dladdr(caller, &found) && found.dli_fname && strstr(found.dli_fname, library);
}

// c10::utils::check_env(const char *): "1" is true, "0" is false, anything else is no answer.
SERVED optional_bool _ZN3c105utils9check_envEPKc(const char *name) {
    if (!strcmp(name, "TORCH_CUDNN_V8_API_DISABLED") && asked_by("libtorch_cpu", __builtin_return_address(0)))
        return NO_ANSWER;
    const char *value = getenv(name);
    if (!value || (strcmp(value, "0") && strcmp(value, "1")))
        return NO_ANSWER;
    return ANSWER | (*value == '1');
}
