// CUDA graphs: a capture is only followed, since a graph would launch nothing. PyTorch itself allocates what is captured from
// a private pool, for which it asks which capture a stream belongs to. What the driver takes for a graph beside it is unknown.

#include "null_gpu.h"

#include <pthread.h>
#include <stdlib.h>

// ---- captures: streams and events hold the number of one, which counts as long as it is listed ----

enum { NOT_CAPTURING = 0, ACTIVE = 1, INVALIDATED = 2, MAX_CAPTURES = 64, LAST_SPECIAL_STREAM = 2 };

typedef struct {
    uint64_t capture;  // 0: none
} stream_or_event;

typedef struct {
    uint64_t id;  // 0: free
    int status;
    handle graph, origin;
} capture;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static capture captures[MAX_CAPTURES];
static uint64_t last_id;
static _Atomic int active;  // captures that are listed

static stream_or_event *content_of(handle h) { return (uintptr_t)h > LAST_SPECIAL_STREAM ? h : NULL; }

// Returns the capture of a stream or an event; NULL where it has none. To be called with the lock held.
static capture *capture_of(handle h) {
    const stream_or_event *content = active ? content_of(h) : NULL;
    for (int i = 0; content && content->capture && i < MAX_CAPTURES; i++)
        if (captures[i].id == content->capture)
            return &captures[i];
    return NULL;
}

static capture seen(handle stream) {
    pthread_mutex_lock(&lock);
    const capture *found = capture_of(stream);
    capture copy = found ? *found : (capture){0};
    pthread_mutex_unlock(&lock);
    return copy;
}

bool null_is_capturing(handle stream) { return active && seen(stream).id; }

// A wait for what is being captured invalidates the capture, as on a real GPU.
int null_wait(handle stream) {
    if (!active)
        return CUDA_OK;
    pthread_mutex_lock(&lock);
    capture *found = capture_of(stream);
    if (found)
        found->status = INVALIDATED;
    pthread_mutex_unlock(&lock);
    return found ? null_fail(CUDA_CAPTURE_UNSUPPORTED) : CUDA_OK;
}

// A wait for the device fails while anything is captured.
int null_wait_for_device(void) {
    if (!active)
        return CUDA_OK;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_CAPTURES; i++)
        if (captures[i].id)
            captures[i].status = INVALIDATED;
    pthread_mutex_unlock(&lock);
    return null_fail(CUDA_CAPTURE_UNSUPPORTED);
}

// An event that is recorded in a capture, and a stream that waits for it, belong to the capture.
void null_record(handle event, handle stream) {
    if (content_of(event))
        content_of(event)->capture = seen(stream).id;
}

void null_wait_for_event(handle stream, handle event) {
    uint64_t id = seen(event).id;
    if (id && content_of(stream))
        content_of(stream)->capture = id;
}

static handle new_graph(void);

static int begin(handle stream, handle graph) {
    stream_or_event *content = content_of(stream);
    pthread_mutex_lock(&lock);
    capture *slot = NULL;
    for (int i = 0; content && !capture_of(stream) && i < MAX_CAPTURES && !slot; i++)
        slot = captures[i].id ? NULL : &captures[i];
    if (slot) {
        *slot = (capture){++last_id, ACTIVE, graph ? graph : new_graph(), stream};
        content->capture = last_id;
        active++;
    }
    pthread_mutex_unlock(&lock);
    null_assume(ASSUMED_GRAPHS);
    return slot ? CUDA_OK : null_fail(CUDA_CAPTURE_UNSUPPORTED);
}

SERVED int cudaStreamBeginCapture(handle stream, int mode) { return begin(stream, NULL); }

SERVED int cudaStreamBeginCaptureToGraph(handle stream, handle graph, const void *dependencies, const void *edges,
                                         size_t count, int mode) {
    return begin(stream, graph);
}

SERVED int cudaStreamEndCapture(handle stream, handle *graph) {
    pthread_mutex_lock(&lock);
    capture *found = capture_of(stream);
    int error = !found || found->origin != stream ? CUDA_CAPTURE_UNMATCHED : CUDA_OK;
    if (!error) {
        error = found->status == ACTIVE ? CUDA_OK : CUDA_CAPTURE_INVALIDATED;
        *graph = error ? NULL : found->graph;
        found->id = 0;
        active--;
    }
    pthread_mutex_unlock(&lock);
    return null_fail(error);
}

SERVED int cudaStreamIsCapturing(handle stream, int *status) {
    *status = active ? seen(stream).status : NOT_CAPTURING;
    return CUDA_OK;
}

static int tell(handle stream, int *status, uint64_t *id, handle *graph, const void **dependencies, size_t *count) {
    capture found = active ? seen(stream) : (capture){0};
    *status = found.status;
    if (id)
        *id = found.id;
    if (graph)
        *graph = found.graph;
    if (dependencies)
        *dependencies = NULL;
    if (count)
        *count = 0;
    return CUDA_OK;
}

// CUDA 13 gave the name without a version to what CUDA 12 calls `_v3`.
SERVED int cudaStreamGetCaptureInfo_v3(handle stream, int *status, uint64_t *id, handle *graph, const void **dependencies,
                                       const void **edges, size_t *count) {
    if (edges)
        *edges = NULL;
    return tell(stream, status, id, graph, dependencies, count);
}

SERVED int cudaStreamGetCaptureInfo_v2(handle stream, int *status, uint64_t *id, handle *graph, const void **dependencies,
                                       size_t *count) {
    return tell(stream, status, id, graph, dependencies, count);
}

#if NULL_CUDA_MAJOR < 13
SERVED int cudaStreamGetCaptureInfo(handle stream, int *status, uint64_t *id) {
    return tell(stream, status, id, NULL, NULL, NULL);
}
#else
SERVED int cudaStreamGetCaptureInfo(handle stream, int *status, uint64_t *id, handle *graph, const void **dependencies,
                                    const void **edges, size_t *count) {
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count);
}
#endif

SERVED int cuStreamIsCapturing(handle stream, int *status) { return cudaStreamIsCapturing(stream, status); }

SERVED int cuStreamGetCaptureInfo_v2(handle stream, int *status, uint64_t *id, handle *graph, const void **dependencies,
                                     size_t *count) {
    return tell(stream, status, id, graph, dependencies, count);
}

SERVED int cuStreamGetCaptureInfo_v3(handle stream, int *status, uint64_t *id, handle *graph, const void **dependencies,
                                     const void **edges, size_t *count) {
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count);
}

SERVED_NO_OP(cudaStreamUpdateCaptureDependencies)
SERVED_NO_OP(cudaThreadExchangeStreamCaptureMode)
SERVED_NO_OP(cuThreadExchangeStreamCaptureMode)

// ---- user objects: a graph, and what is instantiated of it, keep them until they are destroyed ----

typedef struct {
    void *pointer;
    void (*destroy)(void *);
    _Atomic int references;
} user_object;

typedef struct retained {
    struct retained *next;
    user_object *object;
    int count;
} retained;

typedef struct {
    retained *objects;
} graph_content;

static handle new_graph(void) { return null_handle(); }

SERVED int cudaUserObjectCreate(user_object **object, void *pointer, void (*destroy)(void *), unsigned references,
                                unsigned flags) {
    *object = calloc(1, sizeof **object);
    (*object)->pointer = pointer;
    (*object)->destroy = destroy;
    (*object)->references = (int)references;
    return CUDA_OK;
}

SERVED int cudaUserObjectRetain(user_object *object, unsigned count) {
    object->references += (int)count;
    return CUDA_OK;
}

SERVED int cudaUserObjectRelease(user_object *object, unsigned count) {
    if ((object->references -= (int)count) > 0)
        return CUDA_OK;
    object->destroy(object->pointer);
    free(object);
    return CUDA_OK;
}

static void keep(graph_content *graph, user_object *object, int count) {
    retained *entry = malloc(sizeof *entry);
    *entry = (retained){graph->objects, object, count};
    graph->objects = entry;
}

SERVED int cudaGraphRetainUserObject(graph_content *graph, user_object *object, unsigned count, unsigned flags) {
    enum { MOVE = 1 };  // the graph takes the caller's references
    if (!(flags & MOVE))
        cudaUserObjectRetain(object, count);
    keep(graph, object, (int)count);
    return CUDA_OK;
}

// ---- graphs ----

SERVED int cudaGraphCreate(handle *graph, unsigned flags) {
    *graph = new_graph();
    return CUDA_OK;
}

SERVED int cudaGraphDestroy(graph_content *graph) {
    for (retained *entry = graph->objects, *next; entry; entry = next) {
        next = entry->next;
        cudaUserObjectRelease(entry->object, (unsigned)entry->count);
        free(entry);
    }
    free(graph);
    return CUDA_OK;
}

SERVED int cudaGraphExecDestroy(graph_content *executable) { return cudaGraphDestroy(executable); }

SERVED int cudaGraphInstantiate(graph_content **executable, const graph_content *graph, uint64_t flags) {
    *executable = new_graph();
    for (const retained *entry = graph->objects; entry; entry = entry->next) {
        cudaUserObjectRetain(entry->object, (unsigned)entry->count);
        keep(*executable, entry->object, entry->count);
    }
    return CUDA_OK;
}

SERVED int cudaGraphInstantiateWithFlags(graph_content **executable, const graph_content *graph, uint64_t flags) {
    return cudaGraphInstantiate(executable, graph, flags);
}

// One node stands for all: PyTorch warns of a graph without any, and asks nothing else.
SERVED int cudaGraphGetNodes(handle graph, handle *nodes, size_t *count) {
    if (nodes && *count)
        nodes[0] = graph;
    *count = 1;
    return CUDA_OK;
}

SERVED int cudaGraphNodeGetDependencies(handle node, handle *dependencies, void *edges, size_t *count) {
    *count = 0;
    return CUDA_OK;
}

SERVED_NO_OP(cudaGraphLaunch)
SERVED_NO_OP(cudaGraphUpload)
SERVED_NO_OP(cudaDeviceSetGraphMemAttribute)

SERVED int cudaDeviceGetGraphMemAttribute(int device, int attribute, uint64_t *bytes) {
    *bytes = 0;  // of allocations that are nodes, which PyTorch does not make
    return CUDA_OK;
}

// ---- conditional nodes: their bodies are captured, too ----

typedef struct {
    int kind;
    int reserved[3];
    uint64_t condition;
    int condition_kind;
    unsigned graph_count;
    handle *graphs;  // set here
} conditional_node;  // the first fields of cudaGraphNodeParams, of a conditional node

SERVED int cudaGraphConditionalHandleCreate(uint64_t *condition, handle graph, unsigned initial, unsigned flags) {
    *condition = 1;
    return CUDA_OK;
}

SERVED int cudaGraphAddNode(handle *node, handle graph, const void *dependencies, const void *edges, size_t count,
                            conditional_node *parameters) {
    enum { CONDITIONAL = 13 };  // cudaGraphNodeTypeConditional
    if (parameters->kind == CONDITIONAL) {
        parameters->graphs = calloc(parameters->graph_count, sizeof *parameters->graphs);
        for (unsigned i = 0; i < parameters->graph_count; i++)
            parameters->graphs[i] = new_graph();
    }
    *node = null_handle();
    return CUDA_OK;
}
