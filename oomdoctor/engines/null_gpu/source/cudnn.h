// Descriptors that are read back, and the data types that they are made of.

#ifndef OOMDOCTOR_CUDNN_H
#define OOMDOCTOR_CUDNN_H

#include "null_gpu.h"

enum { MAX_DIMENSIONS = 8 };

typedef struct {
    int data_type, count;
    int sizes[MAX_DIMENSIONS], strides[MAX_DIMENSIONS];
} tensor_descriptor;

size_t null_element_bytes(int data_type);

#endif
