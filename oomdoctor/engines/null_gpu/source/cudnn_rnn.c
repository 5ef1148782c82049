// cuDNN's recurrent networks. Three sizes matter: the buffer in which PyTorch keeps all weights (exact), the workspace of a
// call, and the reserve space, which is kept from forward to backward and so counts like any other activation.

#include "null_gpu.h"

#include <stdlib.h>
#include <string.h>

int cudnnSetTensorNdDescriptor(tensor_descriptor *d, int data_type, int count, const int *sizes, const int *strides);

typedef struct {
    int cell;  // cudnnRNNMode_t
    int biases;  // cudnnRNNBiasMode_t
    int directions;
    int data_type;
    int input_size, hidden_size, projection_size, layers;
} rnn_descriptor;

typedef struct {
    int data_type;
    int longest, batch, vector_size;
    int64_t steps_in_batch;  // steps over all sequences, padding left out
} data_descriptor;

enum { RNN_RELU = 0, RNN_TANH = 1, LSTM = 2, GRU = 3 };
enum { NO_BIAS = 0, SINGLE_INPUT_BIAS = 1, DOUBLE_BIAS = 2, SINGLE_RECURRENT_BIAS = 3 };

SERVED int cudnnCreateRNNDescriptor(handle *d) {
    null_cudnn_is_described();
    *d = calloc(1, sizeof(rnn_descriptor));
    return 0;
}

SERVED int cudnnDestroyRNNDescriptor(handle d) {
    free(d);
    return 0;
}

SERVED int cudnnSetRNNDescriptor_v8(rnn_descriptor *d, int algorithm, int cell, int biases, int direction, int input_mode,
                                    int data_type, int math_precision, int math_type, int input_size, int hidden_size,
                                    int projection_size, int layers, handle dropout, unsigned flags) {
    // cuDNN expresses "no projection" by one as large as the hidden state.
    *d = (rnn_descriptor){cell,       biases,      direction + 1,   data_type,
                          input_size, hidden_size, projection_size, layers};
    return 0;
}

SERVED int cudnnCreateRNNDataDescriptor(handle *d) {
    *d = calloc(1, sizeof(data_descriptor));
    return 0;
}

SERVED int cudnnDestroyRNNDataDescriptor(handle d) {
    free(d);
    return 0;
}

SERVED int cudnnSetRNNDataDescriptor(data_descriptor *d, int data_type, int layout, int longest, int batch, int vector_size,
                                     const int *lengths, void *padding) {
    *d = (data_descriptor){data_type, longest, batch, vector_size, 0};
    for (int i = 0; i < batch; i++)
        d->steps_in_batch += lengths[i];
    return 0;
}

// ---- weights ----

static int gates(const rnn_descriptor *d) { return d->cell == LSTM ? 4 : d->cell == GRU ? 3 : 1; }
static bool has_projection(const rnn_descriptor *d) { return d->projection_size && d->projection_size != d->hidden_size; }
static int state_size(const rnn_descriptor *d) { return has_projection(d) ? d->projection_size : d->hidden_size; }
static int bias_count(const rnn_descriptor *d) { return d->biases == NO_BIAS ? 0 : d->biases == DOUBLE_BIAS ? 2 : 1; }

static int layer_input_size(const rnn_descriptor *d, int pseudo_layer) {
    return pseudo_layer < d->directions ? d->input_size : d->directions * state_size(d);
}

static int64_t layer_matrix_elements(const rnn_descriptor *d, int pseudo_layer) {
    int64_t hidden = d->hidden_size;
    int64_t columns = layer_input_size(d, pseudo_layer) + state_size(d);
    int64_t projection = has_projection(d) ? hidden * d->projection_size : 0;
    return gates(d) * hidden * columns + projection;
}

static int64_t layer_bias_elements(const rnn_descriptor *d) {
    return (int64_t)bias_count(d) * gates(d) * d->hidden_size;
}

// All matrices come first, layer by layer, and after them all biases.
static int64_t matrices_before(const rnn_descriptor *d, int pseudo_layer) {
    int64_t elements = 0;
    for (int layer = 0; layer < pseudo_layer; layer++)
        elements += layer_matrix_elements(d, layer);
    return elements;
}

SERVED int cudnnGetRNNWeightSpaceSize(handle h, const rnn_descriptor *d, size_t *bytes) {
    int pseudo_layers = d->layers * d->directions;
    int64_t elements = matrices_before(d, pseudo_layers) + pseudo_layers * layer_bias_elements(d);
    *bytes = (size_t)elements * null_element_bytes(d->data_type);
    return 0;
}

static void describe(tensor_descriptor *t, const rnn_descriptor *d, int rows, int columns) {
    const int sizes[] = {1, rows, columns}, strides[] = {rows * columns, columns, 1};
    cudnnSetTensorNdDescriptor(t, d->data_type, 3, sizes, strides);
}

// `linear` numbers the gates' input matrices, then their recurrent matrices, then the projection.
static void find_matrix(const rnn_descriptor *d, int pseudo_layer, int linear, int64_t *offset, int *rows, int *columns) {
    int64_t hidden = d->hidden_size;
    int input = layer_input_size(d, pseudo_layer);
    *offset = matrices_before(d, pseudo_layer);
    *rows = d->hidden_size;
    *columns = input;
    if (linear < gates(d)) {
        *offset += linear * hidden * input;
        return;
    }
    *offset += gates(d) * hidden * input;
    *columns = state_size(d);
    if (linear < 2 * gates(d)) {
        *offset += (linear - gates(d)) * hidden * *columns;
        return;
    }
    *offset += gates(d) * hidden * *columns;
    *rows = d->projection_size;
    *columns = d->hidden_size;
}

SERVED int cudnnGetRNNWeightParams(handle h, const rnn_descriptor *d, int pseudo_layer, size_t bytes, const char *space,
                                   int linear, tensor_descriptor *matrix, const void **matrix_address,
                                   tensor_descriptor *bias, const void **bias_address) {
    size_t element = null_element_bytes(d->data_type);
    if (matrix) {
        int64_t offset;
        int rows, columns;
        find_matrix(d, pseudo_layer, linear, &offset, &rows, &columns);
        describe(matrix, d, rows, columns);
        *matrix_address = space + (size_t)offset * element;
    }
    if (bias) {
        int64_t offset = matrices_before(d, d->layers * d->directions) + pseudo_layer * layer_bias_elements(d) +
                         (int64_t)linear * d->hidden_size;
        describe(bias, d, d->hidden_size, 1);
        *bias_address = space + (size_t)offset * element;
    }
    return 0;
}

// ---- memory of a call ----

// NVIDIA publishes no formula. These fit, to the byte, the four sizes that PyTorch's issue #2895 prints for 4 layers of 320
// units on 123 inputs, batch 100, 250 steps, fp32 (cuDNN on a Tesla P100, 2017): reserve 736,000,000 bytes for an LSTM and
// 864,000,000 for a GRU, workspace 17,730,560 and 13,169,920. Later versions and other cards may differ; the figure for a
// plain RNN is its output alone, a lower bound.
static int saved_per_layer(const rnn_descriptor *d) { return d->cell == LSTM ? 5 : d->cell == GRU ? 6 : 1; }

// Each layer's saved values of every step, and the output of every layer but the last, which is PyTorch's own tensor.
static int64_t reserve_elements(const rnn_descriptor *d, const data_descriptor *x) {
    int64_t saved = (int64_t)d->layers * saved_per_layer(d) * d->hidden_size;
    int64_t between_layers = (int64_t)(d->layers - 1) * state_size(d);
    return x->steps_in_batch * d->directions * (saved + between_layers);
}

// A copy of the matrices, and some states of one step.
static int64_t workspace_elements(const rnn_descriptor *d, const data_descriptor *x) {
    int pseudo_layers = d->layers * d->directions;
    int64_t step = (int64_t)pseudo_layers * x->batch * d->hidden_size;
    return matrices_before(d, pseudo_layers) + (3 * gates(d) - 1) * step;
}

SERVED int cudnnGetRNNTempSpaceSizes(handle h, const rnn_descriptor *d, int mode, const data_descriptor *x,
                                     size_t *workspace, size_t *reserve) {
    enum { INFERENCE = 0, TRAINING = 1 };
    size_t element = null_element_bytes(d->data_type);
    *workspace = (size_t)workspace_elements(d, x) * element;
    if (reserve)
        *reserve = mode == TRAINING ? (size_t)reserve_elements(d, x) * element : 0;
    return 0;
}

// The states of a random number generator: 16 bytes for each thread that the card can hold. An estimate; PyTorch allocates
// them once for a process and device, some MiB.
SERVED int cudnnDropoutGetStatesSize(handle h, size_t *bytes) {
    *bytes = (size_t)null_card()->sm_count * (size_t)null_card()->threads_per_sm * 16;
    return 0;
}

SERVED_NO_OP(cudnnRNNForward)
SERVED_NO_OP(cudnnRNNBackwardData_v8)
SERVED_NO_OP(cudnnRNNBackwardWeights_v8)
