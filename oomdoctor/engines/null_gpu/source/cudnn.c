// cuDNN's older interface: everything but convolutions, and these where cudnn_graph.c cannot ask the real library, so that
// the environment sets TORCH_CUDNN_V8_API_DISABLED=1. The tensors that PyTorch makes around either interface are the same;
// only the workspaces differ, and those of this interface are defined in one place, below.

#include "null_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SERVED size_t cudnnGetVersion(void) { return NULL_CUDNN_VERSION; }
SERVED size_t cudnnGetCudartVersion(void) { return NULL_CUDA_VERSION; }
SERVED const char *cudnnGetErrorString(int status) { return status ? "not served by the null GPU" : "CUDNN_STATUS_SUCCESS"; }

SERVED void cudnnGetLastErrorString(char *text, size_t capacity) {
    if (capacity)
        *text = '\0';
}

SERVED int cudnnGetProperty(int which, int *value) {
    const int parts[] = {NULL_CUDNN_VERSION / 10000, NULL_CUDNN_VERSION / 100 % 100, NULL_CUDNN_VERSION % 100};
    *value = which >= 0 && which < 3 ? parts[which] : 0;
    return 0;
}

SERVED int cudnnCreate(handle *h) {
    *h = null_handle();
    null_cudnn_is_described();
    return 0;
}

SERVED int cudnnDestroy(handle h) {
    free(h);
    return 0;
}

SERVED int cudnnGetStream(handle h, handle *stream) {
    *stream = NULL;
    return 0;
}

// ---- workspaces ----

// The real cuDNN's workspaces depend on the algorithm that its heuristics choose for the card, and are known only there.
// PyTorch allocates these bytes for the duration of one call, so they count towards the peak of a convolutional network.
// What is asked of this interface needs a handle, and so a device: the answers are 0, and results say so.
typedef enum {
    CONVOLUTION_FORWARD,
    CONVOLUTION_BACKWARD_DATA,
    CONVOLUTION_BACKWARD_FILTER,
    CTC_LOSS,
    WORKSPACE_KINDS,
} workspace_kind;

static const size_t workspace_bytes[WORKSPACE_KINDS];

static int answer_workspace(workspace_kind kind, size_t *bytes) {
    *bytes = workspace_bytes[kind];
    return 0;
}

SERVED int cudnnGetConvolutionForwardWorkspaceSize(handle h, handle x, handle w, handle c, handle y, int algorithm,
                                                   size_t *bytes) {
    return answer_workspace(CONVOLUTION_FORWARD, bytes);
}

SERVED int cudnnGetConvolutionBackwardDataWorkspaceSize(handle h, handle w, handle dy, handle c, handle dx, int algorithm,
                                                        size_t *bytes) {
    return answer_workspace(CONVOLUTION_BACKWARD_DATA, bytes);
}

SERVED int cudnnGetConvolutionBackwardFilterWorkspaceSize(handle h, handle x, handle dy, handle c, handle dw,
                                                          int algorithm, size_t *bytes) {
    return answer_workspace(CONVOLUTION_BACKWARD_FILTER, bytes);
}

// A normalization of a batch with channels last sums up tiles of rows, 64 channels at a time. NVIDIA publishes no formula:
// this is equal for all of 55 layers of 4 to 2048 channels on an H200, fp32 and fp16 (cuDNN 9.19). Three channels take less.
enum { GROUP_CHANNELS = 64, BACKWARD_TILE_ROWS = 96, PERSISTENT = 2 };

static int normalization_bytes(int mode, const tensor_descriptor *x, int tile_rows, int tile_bytes, int fixed_bytes,
                               size_t *bytes) {
    int64_t rows = 1;
    for (int i = 0; i < x->count; i++)
        rows *= i == 1 ? 1 : x->sizes[i];
    int64_t groups = (x->sizes[1] + GROUP_CHANNELS - 1) / GROUP_CHANNELS, tiles = (rows + tile_rows - 1) / tile_rows;
    bool last = mode == PERSISTENT && x->strides[1] == 1;
    *bytes = last ? (size_t)(groups * (tiles * tile_bytes + 4) + fixed_bytes) : 0;
    return 0;
}

SERVED int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(handle h, int mode, int operations,
                                                                    const tensor_descriptor *x, handle z, handle y,
                                                                    handle scale, handle activation, size_t *bytes) {
    return normalization_bytes(mode, x, null_element_bytes(x->data_type) == 2 ? 160 : 64, 516, 1072, bytes);
}

SERVED int cudnnGetBatchNormalizationBackwardExWorkspaceSize(handle h, int mode, int operations, const tensor_descriptor *x,
                                                             handle y, handle dy, handle dz, handle dx, handle scale,
                                                             handle activation, size_t *bytes) {
    return normalization_bytes(mode, x, BACKWARD_TILE_ROWS, 512, 1056, bytes);
}

SERVED int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle h, int mode, int operations, handle activation,
                                                                handle x, size_t *bytes) {
    *bytes = 0;  // so it is on an H200, where no activation is fused
    return 0;
}

SERVED int cudnnGetCTCLossWorkspaceSize(handle h, handle probabilities, handle gradients, const int *labels,
                                        const int *label_lengths, const int *input_lengths, int algorithm, handle loss,
                                        size_t *bytes) {
    return answer_workspace(CTC_LOSS, bytes);
}

SERVED int cudnnGetCTCLossWorkspaceSize_v8(handle h, int algorithm, handle loss, handle probabilities, handle gradients,
                                           size_t *bytes) {
    return answer_workspace(CTC_LOSS, bytes);
}

// ---- the choice of an algorithm: there is one, for all convolutions ----

typedef struct {
    int algorithm, status;
    float milliseconds;
    size_t workspace_bytes;
    int determinism, math_type;
    int reserved[3];
} algorithm_result;

static int answer_algorithm(workspace_kind kind, int *found, algorithm_result *results) {
    enum { IMPLICIT_PRECOMPUTED_GEMM = 1, DETERMINISTIC = 1 };
    *results = (algorithm_result){.algorithm = IMPLICIT_PRECOMPUTED_GEMM, .determinism = DETERMINISTIC};
    results->milliseconds = 1.0F;
    results->workspace_bytes = workspace_bytes[kind];
    *found = 1;
    return 0;
}

SERVED int cudnnGetConvolutionForwardAlgorithm_v7(handle h, handle x, handle w, handle c, handle y, int requested,
                                                  int *found, algorithm_result *results) {
    return answer_algorithm(CONVOLUTION_FORWARD, found, results);
}

SERVED int cudnnGetConvolutionBackwardDataAlgorithm_v7(handle h, handle w, handle dy, handle c, handle dx, int requested,
                                                       int *found, algorithm_result *results) {
    return answer_algorithm(CONVOLUTION_BACKWARD_DATA, found, results);
}

SERVED int cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle h, handle x, handle dy, handle c, handle dw, int requested,
                                                         int *found, algorithm_result *results) {
    return answer_algorithm(CONVOLUTION_BACKWARD_FILTER, found, results);
}

// torch.backends.cudnn.benchmark: the real library tries every algorithm in a workspace as large as PyTorch can give it.
SERVED int cudnnFindConvolutionForwardAlgorithmEx(handle h, handle xd, handle x, handle wd, handle w, handle c, handle yd,
                                                  handle y, int requested, int *found, algorithm_result *results,
                                                  handle workspace, size_t bytes) {
    return answer_algorithm(CONVOLUTION_FORWARD, found, results);
}

SERVED int cudnnFindConvolutionBackwardDataAlgorithmEx(handle h, handle wd, handle w, handle dyd, handle dy, handle c,
                                                       handle dxd, handle dx, int requested, int *found,
                                                       algorithm_result *results, handle workspace, size_t bytes) {
    return answer_algorithm(CONVOLUTION_BACKWARD_DATA, found, results);
}

SERVED int cudnnFindConvolutionBackwardFilterAlgorithmEx(handle h, handle xd, handle x, handle dyd, handle dy, handle c,
                                                         handle dwd, handle dw, int requested, int *found,
                                                         algorithm_result *results, handle workspace, size_t bytes) {
    return answer_algorithm(CONVOLUTION_BACKWARD_FILTER, found, results);
}

// ---- descriptors: those of tensors and filters have content that is read back, the others have none ----

size_t null_element_bytes(int data_type) {
    enum { FLOAT = 0, DOUBLE = 1, HALF = 2, BFLOAT16 = 9 };
    switch (data_type) {
        case DOUBLE: return 8;
        case HALF: case BFLOAT16: return 2;
        default: return 4;
    }
}

SERVED int cudnnCreateTensorDescriptor(handle *d) {
    null_cudnn_is_described();
    *d = calloc(1, sizeof(tensor_descriptor));
    return 0;
}

// Batch normalization asks for the size of its reserve with a handle and a descriptor of that question alone.
SERVED int cudnnDestroyTensorDescriptor(handle d) {
    null_cudnn_is_described();
    free(d);
    return 0;
}

SERVED int cudnnSetTensorNdDescriptor(tensor_descriptor *d, int data_type, int count, const int *sizes,
                                      const int *strides) {
    d->data_type = data_type;
    d->count = count < MAX_DIMENSIONS ? count : MAX_DIMENSIONS;
    memcpy(d->sizes, sizes, (size_t)d->count * sizeof *sizes);
    memcpy(d->strides, strides, (size_t)d->count * sizeof *strides);
    return 0;
}

static int requested_dimensions(const tensor_descriptor *d, int requested) {
    return d->count < requested ? d->count : requested;
}

SERVED int cudnnGetTensorNdDescriptor(const tensor_descriptor *d, int requested, int *data_type, int *count, int *sizes,
                                      int *strides) {
    size_t bytes = (size_t)requested_dimensions(d, requested) * sizeof *sizes;
    *data_type = d->data_type;
    *count = d->count;
    memcpy(sizes, d->sizes, bytes);
    memcpy(strides, d->strides, bytes);
    return 0;
}

SERVED int cudnnCreateFilterDescriptor(handle *d) { return cudnnCreateTensorDescriptor(d); }
SERVED int cudnnDestroyFilterDescriptor(handle d) { return cudnnDestroyTensorDescriptor(d); }

SERVED int cudnnSetFilterNdDescriptor(tensor_descriptor *d, int data_type, int format, int count, const int *sizes) {
    return cudnnSetTensorNdDescriptor(d, data_type, count, sizes, sizes);
}

SERVED int cudnnGetFilterNdDescriptor(const tensor_descriptor *d, int requested, int *data_type, int *format, int *count,
                                      int *sizes) {
    *data_type = d->data_type;
    *format = 0;
    *count = d->count;
    memcpy(sizes, d->sizes, (size_t)requested_dimensions(d, requested) * sizeof *sizes);
    return 0;
}

#define SERVED_DESCRIPTOR(kind) \
    SERVED int cudnnCreate##kind##Descriptor(handle *d) { return cudnnCreate(d); } \
    SERVED int cudnnDestroy##kind##Descriptor(handle d) { return cudnnDestroy(d); }

SERVED_DESCRIPTOR(Activation)
SERVED_DESCRIPTOR(CTCLoss)
SERVED_DESCRIPTOR(Convolution)
SERVED_DESCRIPTOR(Pooling)
SERVED_DESCRIPTOR(SpatialTransformer)

SERVED_NO_OP(cudnnSetActivationDescriptor)
SERVED_NO_OP(cudnnSetCTCLossDescriptorEx)
SERVED_NO_OP(cudnnSetCTCLossDescriptor_v9)
SERVED_NO_OP(cudnnSetConvolutionGroupCount)
SERVED_NO_OP(cudnnSetConvolutionMathType)
SERVED_NO_OP(cudnnSetConvolutionNdDescriptor)
SERVED_NO_OP(cudnnSetPooling2dDescriptor)
SERVED_NO_OP(cudnnSetSpatialTransformerNdDescriptor)

// ---- kernels ----

SERVED_NO_OP(cudnnConvolutionForward)
SERVED_NO_OP(cudnnConvolutionBackwardData)
SERVED_NO_OP(cudnnConvolutionBackwardFilter)
SERVED_NO_OP(cudnnConvolutionBiasActivationForward)
SERVED_NO_OP(cudnnBatchNormalizationForwardTrainingEx)
SERVED_NO_OP(cudnnBatchNormalizationForwardInference)
SERVED_NO_OP(cudnnBatchNormalizationBackwardEx)
SERVED_NO_OP(cudnnPoolingForward)
SERVED_NO_OP(cudnnCTCLoss)
SERVED_NO_OP(cudnnCTCLoss_v8)
SERVED_NO_OP(cudnnSpatialTfGridGeneratorForward)
SERVED_NO_OP(cudnnSpatialTfGridGeneratorBackward)
SERVED_NO_OP(cudnnSpatialTfSamplerForward)
SERVED_NO_OP(cudnnSpatialTfSamplerBackward)
