// A CUDA driver that has no device and takes any kernel, for the process that asks the real cuDNN about a described card.
//
// Without a driver cuDNN leaves out of its heuristics the engines that compile their kernels while they run, which are often
// the first for grouped and depthwise convolutions. It looks functions up by name; nothing that it gets here is ever
// launched, since no plan of such an engine is built.

#define SERVED __attribute__((visibility("default")))
#define SUCCEEDS(name) SERVED int name(void) { return 0; }
#define HAS_NO_DEVICE(name) SERVED int name(void) { return 100; }  // CUDA_ERROR_NO_DEVICE

enum { DRIVER_VERSION = 13020 };

static char kernel[64];

static int give_kernel(void **given) {
    *given = kernel;
    return 0;
}

SERVED int cuLibraryLoadData(void **library) { return give_kernel(library); }
SERVED int cuLibraryGetKernel(void **given) { return give_kernel(given); }
SERVED int cuKernelGetFunction(void **function) { return give_kernel(function); }

SERVED int cuKernelGetAttribute(int *value) {
    *value = 0;
    return 0;
}

SERVED int cuDriverGetVersion(int *version) {
    *version = DRIVER_VERSION;
    return 0;
}

SERVED int cuGetErrorString(int error, const char **text) {
    *text = "no CUDA-capable device is detected";
    return 0;
}

SERVED int cuGetErrorName(int error, const char **name) {
    *name = "CUDA_ERROR_NO_DEVICE";
    return 0;
}

SUCCEEDS(cuKernelSetAttribute)
SUCCEEDS(cuLibraryUnload)

HAS_NO_DEVICE(cuCtxGetCurrent)
HAS_NO_DEVICE(cuCtxGetLimit)
HAS_NO_DEVICE(cuCtxPopCurrent)
HAS_NO_DEVICE(cuCtxPushCurrent)
HAS_NO_DEVICE(cuDeviceGet)
HAS_NO_DEVICE(cuDeviceGetCount)
HAS_NO_DEVICE(cuInit)
HAS_NO_DEVICE(cuLaunchCooperativeKernel)
HAS_NO_DEVICE(cuLaunchKernel)
HAS_NO_DEVICE(cuLaunchKernelEx)
HAS_NO_DEVICE(cuLibraryLoadFromFile)
HAS_NO_DEVICE(cuLinkAddData)
HAS_NO_DEVICE(cuLinkComplete)
HAS_NO_DEVICE(cuLinkCreate)
HAS_NO_DEVICE(cuLinkDestroy)
HAS_NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
HAS_NO_DEVICE(cuStreamGetCtx)
