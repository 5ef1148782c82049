// cuDNN's graph interface: PyTorch describes a convolution or attention, asks for engines, and builds a plan of the first that
// will do.
//
// Nothing is understood here. Descriptors are written down as text while they are made; when heuristics are finalized, the
// text of the whole graph is the question that cudnn_answers.c has answered by the real library, or has kept the answer of.
// Filters, the order, and what happens where a workspace does not fit stay PyTorch's own.
//
// The text of a descriptor: its attributes in the order in which they were set, each `NAME:TYPE=VALUES;`. Values are the
// bytes in hexadecimal, separated by commas, or descriptors as `KIND(...)`. Handles are left out: a card that is described
// takes their place.

#include "null_gpu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OK = 0,
    BAD_PARAM = 2000,
    NOT_SUPPORTED = 3000,
};

enum {  // cudnnBackendDescriptorType_t
    HEURISTICS = 4,
    EXECUTION_PLAN = 5,
    VARIANT_PACK = 16,
};

enum {  // cudnnBackendAttributeName_t
    HEURISTICS_RESULTS = 202,
    CONFIGURATION_ENGINE = 300,
    CONFIGURATION_KNOB_CHOICES = 302,
    CONFIGURATION_WORKSPACE_BYTES = 303,
    CONFIGURATION_SHARED_MEMORY_BYTES = 304,
    PLAN_CONFIGURATION = 401,
    PLAN_WORKSPACE_BYTES = 402,
    PLAN_JSON = 405,
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
    unsigned trial;   // in which a plan was built
    bool is_makeshift; // a plan that would not have been built, had there been room for the workspace of another
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

// ---- workspaces that were given up ----

// PyTorch allocates the workspace of a plan as soon as it is built, and of a plan that it has kept as soon as it has set the
// handle's stream. Where there is no room it goes on with the next plan, and nothing of that reaches the program: such an
// OOM is none of the program's. After each PyTorch reads the thread's last error; where it benchmarks it builds all plans one
// after the other, allocates for none of them, and reads none.

static atomic_uint_fast64_t given_up;
static _Thread_local bool has_given_up;               // since the question
static _Thread_local bool has_built, has_set_stream;  // since the thread's last execution
static _Thread_local bool has_read_error;             // since it has built
static _Thread_local uint64_t asked_first;            // the graph in question, with the mode that PyTorch tries first

// PyTorch keeps plans for each thread by itself: a checkpointed forward that runs again in the backward asks anew.
static _Thread_local uint64_t *executed;  // graphs of plans that PyTorch keeps
static _Thread_local size_t executed_count, executed_room;

SERVED uint64_t oomdoctor_null_workspaces_given_up(void) { return atomic_load(&given_up); }

static void give_up(bool did) {
    atomic_fetch_add(&given_up, did);
    has_given_up |= did;
}

// PyTorch keeps plans as long as a thread lives. One that had to do in an earlier trial may not be what a process of its own
// would choose in this one.

enum { LOADING = 1 };  // before the first trial: a process of its own has these plans, too

static atomic_uint trial = LOADING;
static atomic_bool has_makeshift;
static atomic_uint_fast64_t largest_workspace;  // bytes, of the plans that were executed since the trial began

SERVED uint64_t oomdoctor_null_workspace_bytes(void) { return atomic_load(&largest_workspace); }

static void note_workspace(uint64_t bytes) {
    uint_fast64_t known = atomic_load(&largest_workspace);
    while (known < bytes && !atomic_compare_exchange_weak(&largest_workspace, &known, bytes))
        continue;
}

SERVED void oomdoctor_null_begin_trial(void) {
    atomic_fetch_add(&trial, 1);
    atomic_store(&largest_workspace, 0);
    atomic_store(&has_makeshift, false);
}

SERVED uint64_t oomdoctor_null_has_makeshift_plans(void) { return atomic_load(&has_makeshift); }

static void note_plan(const descriptor *plan) {
    if (plan->is_makeshift && plan->trial != LOADING && plan->trial != atomic_load(&trial))
        atomic_store(&has_makeshift, true);
}

// Whether this thread allocates a workspace without which PyTorch can do.
SERVED bool oomdoctor_null_is_in_workspace(void) { return has_built || has_set_stream; }

// An OOM always follows another try of the allocator, before which it gives back its cache. Another try that succeeds
// shows in memory that is given back and then taken; with these settings parts of the cache are given back without one.

static atomic_uint_fast64_t retried;           // with success
static _Thread_local unsigned given_back_in;   // trial in which it was since the workspace was asked for, or 0

SERVED uint64_t oomdoctor_null_workspace_retries(void) { return atomic_load(&retried) + atomic_load(&given_up); }

static bool is_set(const char *variable) {
    const char *text = getenv(variable);
    return text && (strstr(text, "garbage_collection_threshold") || strstr(text, "max_split_size_mb"));
}

void null_cudnn_gives_back(void) { given_back_in = oomdoctor_null_is_in_workspace() ? atomic_load(&trial) : 0; }

void null_cudnn_takes(void) {
    bool was_given_back = given_back_in == atomic_load(&trial);  // not between the trials, where all is given back
    given_back_in = 0;
    if (!was_given_back)
        return;
    bool is_known = oomdoctor_null_is_in_workspace() && !is_set("PYTORCH_ALLOC_CONF") && !is_set("PYTORCH_CUDA_ALLOC_CONF");
    atomic_fetch_add(&retried, is_known);
}

static void set_state(bool built, bool stream) {
    has_built = built;
    has_set_stream = stream;
    has_read_error = false;
    given_back_in = 0;
}

void null_cudnn_error_is_read(void) { has_read_error = true; }

SERVED int cudnnSetStream(handle h, handle stream) {
    set_state(false, true);
    return OK;
}

void null_cudnn_is_described(void) { set_state(has_built, false); }

static bool was_executed(uint64_t graph) {
    for (size_t i = 0; i < executed_count; i++)
        if (executed[i] == graph)
            return true;
    return false;
}

static void note_execution(uint64_t graph) {
    if (executed_count == executed_room) {
        size_t room = 2 * executed_room + 64;
        uint64_t *moved = realloc(executed, room * sizeof *moved);
        if (moved) {
            executed = moved;
            executed_room = room;
        }
    }
    if (executed_count < executed_room && !was_executed(graph))
        executed[executed_count++] = graph;
}

static uint64_t hash(const char *text) {
    uint64_t value = 0xcbf29ce484222325;  // FNV-1a
    for (; *text; text++)
        value = (value ^ (unsigned char)*text) * 0x100000001b3;
    return value;
}

static bool is_instant(const char *text) { return strstr(text, "200:8=00000000;") != NULL; }

static void note_question(const char *text) {
    bool gave_up = has_built && has_read_error;
    set_state(false, false);
    if (is_instant(text)) {
        asked_first = hash(text);
        gave_up |= was_executed(asked_first);  // there is no room for the plan that is kept
        has_given_up = false;  // but for a graph whose first plans had no room, and that is asked about once more
    }
    give_up(gave_up);
}

static int build_plan(descriptor *plan) {
    give_up(has_built && has_read_error);
    plan->trial = atomic_load(&trial);
    plan->is_makeshift = has_given_up;
    set_state(!plan->configuration.status, false);
    return plan->configuration.status;
}

SERVED int cudnnBackendExecute(handle h, const descriptor *plan, handle pack) {
    note_plan(plan);
    note_workspace((uint64_t)plan->configuration.workspace_bytes);
    if (has_built)
        note_execution(asked_first);
    set_state(false, false);
    return OK;
}

SERVED int cudnnBackendFinalize(descriptor *d) {
    if (d->kind == EXECUTION_PLAN)
        return build_plan(d);
    if (d->kind != HEURISTICS)
        return OK;
    const char *text = d->text ? d->text : "";
    note_question(text);
    d->result_count = null_cudnn_answer(text, &d->results);
    return d->result_count < 0 ? NOT_SUPPORTED : OK;
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

static int give_text(const char *text, int64_t room, int64_t *count, char *given) {
    int64_t length = (int64_t)strlen(text) + 1;
    if (given && room >= length)
        memcpy(given, text, (size_t)length);
    if (count)
        *count = length;
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
        case CONFIGURATION_SHARED_MEMORY_BYTES: return give_number(0, count, values);  // below any limit that a caller sets
        case PLAN_JSON: return give_text("{}", room, count, values);
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
