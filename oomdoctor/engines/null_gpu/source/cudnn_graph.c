// cuDNN's graph interface: PyTorch describes a convolution, asks for engines, and builds a plan of the first that will do.
//
// Nothing is understood here. Descriptors are written down as text while they are made; when heuristics are finalized, the
// text of the whole graph is the question that cudnn_answers.c has answered by the real library, or has kept the answer of.
// Filters, the order, and what happens where a workspace does not fit stay PyTorch's own.
//
// The text of a descriptor: its attributes in the order in which they were set, each `NAME:TYPE=VALUES;`. Values are the
// bytes in hexadecimal, separated by commas, or descriptors as `KIND(...)`. Handles are left out: a card that is described
// takes their place.

#include "null_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OK = 0,
    BAD_PARAM = 2000,
    NOT_SUPPORTED = 3000,
};

enum {  // cudnnBackendDescriptorType_t
    ENGINE = 2,
    ENGINE_CONFIGURATION = 3,
    HEURISTICS = 4,
    EXECUTION_PLAN = 5,
    VARIANT_PACK = 18,
};

enum {  // cudnnBackendAttributeName_t
    HEURISTICS_RESULTS = 202,
    CONFIGURATION_ENGINE = 300,
    CONFIGURATION_KNOB_CHOICES = 302,
    CONFIGURATION_WORKSPACE_BYTES = 303,
    PLAN_CONFIGURATION = 401,
    PLAN_WORKSPACE_BYTES = 402,
    ENGINE_GLOBAL_INDEX = 1301,
    ENGINE_NUMERICAL_NOTE = 1303,
    ENGINE_BEHAVIOR_NOTE = 1305,
};

enum {  // cudnnBackendAttributeType_t
    TYPE_HANDLE = 0,
    TYPE_BOOLEAN = 2,
    TYPE_INT64 = 3,
    TYPE_DOUBLE = 5,
    TYPE_VOID_POINTER = 6,
    TYPE_DESCRIPTOR = 15,
    TYPE_CHAR = 24,
};

typedef struct {
    int kind;
    size_t length, room;
    char *text;
    cudnn_configuration configuration;  // of an engine, a configuration or a plan
    cudnn_configuration *results;       // of heuristics
    int result_count;
} descriptor;

static bool reserve(descriptor *d, size_t more) {
    if (d->length + more < d->room)
        return true;
    size_t room = 2 * (d->length + more) + 256;
    char *moved = realloc(d->text, room);
    if (!moved)
        return false;
    d->text = moved;
    d->room = room;
    return true;
}

static void append(descriptor *d, const char *text, size_t length) {
    if (!reserve(d, length + 1))
        return;
    memcpy(d->text + d->length, text, length);
    d->length += length;
    d->text[d->length] = '\0';
}

static void append_number(descriptor *d, const char *format, int number) {
    char text[32];
    append(d, text, (size_t)snprintf(text, sizeof text, format, number));
}

static void append_bytes(descriptor *d, const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        append_number(d, "%02x", bytes[i]);
}

static size_t bytes_of_type(int type) {
    switch (type) {
        case TYPE_BOOLEAN: case TYPE_CHAR: return 1;
        case TYPE_INT64: case TYPE_DOUBLE: case TYPE_VOID_POINTER: return 8;
        default: return 4;  // an enumeration, a float or an int32
    }
}

static void append_values(descriptor *d, int type, int64_t count, const void *values) {
    for (int64_t i = 0; i < count; i++) {
        if (i)
            append(d, ",", 1);
        if (type != TYPE_DESCRIPTOR) {
            append_bytes(d, (const unsigned char *)values + (size_t)i * bytes_of_type(type), bytes_of_type(type));
            continue;
        }
        const descriptor *child = ((descriptor *const *)values)[i];
        append_number(d, "%d(", child->kind);
        append(d, child->text ? child->text : "", child->length);
        append(d, ")", 1);
    }
}

SERVED int cudnnBackendCreateDescriptor(int kind, descriptor **made) {
    *made = calloc(1, sizeof **made);
    if (!*made)
        return BAD_PARAM;
    (*made)->kind = kind;
    return OK;
}

SERVED int cudnnBackendDestroyDescriptor(descriptor *d) {
    if (d) {
        free(d->text);
        free(d->results);
        free(d);
    }
    return OK;
}

SERVED_NO_OP(cudnnBackendInitialize)

SERVED int cudnnBackendSetAttribute(descriptor *d, int name, int type, int64_t count, const void *values) {
    if (d->kind == VARIANT_PACK || type == TYPE_HANDLE)
        return OK;
    if (d->kind == EXECUTION_PLAN) {
        if (name == PLAN_CONFIGURATION)
            d->configuration = (*(descriptor *const *)values)->configuration;
        return OK;
    }
    append_number(d, "%d:", name);
    append_number(d, "%d=", type);
    append_values(d, type, count, values);
    append(d, ";", 1);
    return OK;
}

SERVED int cudnnBackendFinalize(descriptor *d) {
    if (d->kind == HEURISTICS) {
        d->result_count = null_cudnn_answer(d->text ? d->text : "", &d->results);
        return d->result_count < 0 ? NOT_SUPPORTED : OK;
    }
    return d->kind == EXECUTION_PLAN ? d->configuration.status : OK;
}

// ---- what is read back ----

static int give_results(const descriptor *d, int64_t room, int64_t *count, descriptor **made) {
    int64_t given = room < d->result_count ? room : d->result_count;
    for (int64_t i = 0; i < given && made; i++)
        made[i]->configuration = d->results[i];
    if (count)
        *count = made ? given : d->result_count;
    return OK;
}

// Notes are kept as bits, the lowest for note 0.
static int give_notes(uint32_t bits, int64_t room, int64_t *count, int *notes) {
    int64_t given = 0;
    for (int note = 0; note < 32; note++)
        if (bits >> note & 1) {
            if (notes && given < room)
                notes[given] = note;
            given++;
        }
    if (count)
        *count = given;
    return OK;
}

static int give_number(int64_t number, int64_t *count, int64_t *value) {
    if (count)
        *count = 1;
    if (value)
        *value = number;
    return OK;
}

SERVED int cudnnBackendGetAttribute(const descriptor *d, int name, int type, int64_t room, int64_t *count, void *values) {
    const cudnn_configuration *configuration = &d->configuration;
    switch (name) {
        case HEURISTICS_RESULTS: return give_results(d, room, count, values);
        case CONFIGURATION_ENGINE:
            (*(descriptor **)values)->configuration = *configuration;
            return give_number(0, count, NULL);
        case CONFIGURATION_KNOB_CHOICES: return give_notes(0, room, count, NULL);
        case CONFIGURATION_WORKSPACE_BYTES: case PLAN_WORKSPACE_BYTES:
            return give_number(configuration->workspace_bytes, count, values);
        case ENGINE_GLOBAL_INDEX: return give_number(configuration->engine, count, values);
        case ENGINE_NUMERICAL_NOTE: return give_notes(configuration->numerical_notes, room, count, values);
        case ENGINE_BEHAVIOR_NOTE: return give_notes(configuration->behavior_notes, room, count, values);
        default: {
            char text[64];
            snprintf(text, sizeof text, "cudnnBackendGetAttribute(%d)", name);
            null_report_unknown(text);
            return NOT_SUPPORTED;
        }
    }
}

SERVED_NO_OP(cudnnBackendExecute)
