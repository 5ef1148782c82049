// Asks the real cuDNN for the workspace of convolutions on a card that is described to it, without PyTorch and without the
// null GPU: a second way to the same numbers. A line on stdin is `KIND TYPE LAST X W STRIDE PAD`: f, d or w; a number of
// cudnnDataType_t; 1 for channels last; sizes joined by "x". Answered is the first configuration that PyTorch would take, in
// bytes, or -1. Usage: workspaces CARD_JSON LIBCUDNN LIBRARY_BEFORE...

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *descriptor;
enum { MOST = 256, DIMENSIONS = 8 };
enum { CONVOLUTION = 1, ENGINE = 2, CONFIGURATION = 3, HEURISTICS = 4, PLAN = 5, GRAPH = 15, TENSOR = 17, CARD = 38 };
enum { DATA_TYPE = 1, INT64 = 3, FLOAT = 4, DOUBLE = 5, MODE = 7, HEURISTICS_MODE = 8, NUMERICAL = 11, DESCRIPTOR = 15,
       BEHAVIOR = 19, CHAR = 24 };
enum { DOWN_CONVERT_INPUTS = 1, RUNTIME_COMPILATION = 0, INSTANT = 0, FALLBACK = 2 };

static int (*create)(int, descriptor *), (*finalize)(descriptor), (*destroy)(descriptor);
static int (*set)(descriptor, int, int, int64_t, const void *), (*get)(descriptor, int, int, int64_t, int64_t *, void *);
static int failures;

static descriptor make(int kind) {
    descriptor made = NULL;
    failures += create(kind, &made) != 0;
    return made;
}

static void set_one(descriptor d, int name, int type, const void *value) { failures += set(d, name, type, 1, value) != 0; }
static void set_int(descriptor d, int name, int type, int value) { set_one(d, name, type, &value); }
static void set_part(descriptor d, int name, descriptor part) { set_one(d, name, DESCRIPTOR, &part); }
static void set_sizes(descriptor d, int name, int n, const int64_t *v) { failures += set(d, name, INT64, n, v) != 0; }
static void finish(descriptor d) { failures += finalize(d) != 0; }

static int read_sizes(const char *text, int64_t *sizes) {
    int count = 0;
    for (char *end; *text && count < DIMENSIONS; text = *end ? end + 1 : end)
        sizes[count++] = strtoll(text, &end, 10);
    return count;
}

static descriptor tensor(int64_t id, int type, int count, const int64_t *sizes, int last) {
    int64_t strides[DIMENSIONS], step = last ? sizes[1] : 1, alignment = 16;
    for (int i = count - 1; i >= (last ? 2 : 1); i--) {
        strides[i] = step;
        step *= sizes[i];
    }
    if (last)
        strides[1] = 1;
    strides[0] = step;
    descriptor t = make(TENSOR);
    set_int(t, 901, DATA_TYPE, type);
    set_sizes(t, 902, count, sizes);
    set_sizes(t, 903, count, strides);
    set_one(t, 906, INT64, &id);
    set_one(t, 900, INT64, &alignment);
    finish(t);
    return t;
}

static descriptor convolution(int type, int64_t dimensions, int64_t stride, int64_t pad) {
    enum { HALF = 2, BFLOAT16 = 9, CROSS_CORRELATION = 1 };
    int64_t strides[DIMENSIONS], pads[DIMENSIONS], ones[DIMENSIONS];
    for (int i = 0; i < dimensions; i++) {
        strides[i] = stride;
        pads[i] = pad;
        ones[i] = 1;
    }
    descriptor c = make(CONVOLUTION);
    set_int(c, 100, DATA_TYPE, type == HALF || type == BFLOAT16 ? 0 : type);  // half precision is computed in single
    set_int(c, 101, MODE, CROSS_CORRELATION);
    set_sizes(c, 102, (int)dimensions, ones);
    set_sizes(c, 103, (int)dimensions, strides);
    set_sizes(c, 104, (int)dimensions, pads);
    set_sizes(c, 105, (int)dimensions, pads);
    set_one(c, 106, INT64, &dimensions);
    finish(c);
    return c;
}

// Attributes of an operation follow each other: alpha, beta, convolution, w, x, y.
static descriptor graph(char kind, descriptor c, descriptor x, descriptor w, descriptor y) {
    int operation = kind == 'f' ? 10 : kind == 'w' ? 11 : 12, first = kind == 'f' ? 700 : kind == 'd' ? 706 : 712;
    float one = 1, zero = 0;
    descriptor o = make(operation), g = make(GRAPH);
    set_one(o, first, FLOAT, &one);
    set_one(o, first + 1, FLOAT, &zero);
    set_part(o, first + 2, c);
    set_part(o, first + 3, w);
    set_part(o, first + 4, x);
    set_part(o, first + 5, y);
    finish(o);
    set_part(g, 801, o);
    finish(g);
    return g;
}

static int has_note(descriptor engine, int name, int type, int wanted) {
    int notes[MOST];
    int64_t count = 0;
    failures += get(engine, name, type, MOST, &count, notes) != 0;
    for (int64_t i = 0; i < count && i < MOST; i++)
        if (notes[i] == wanted)
            return 1;
    return 0;
}

// Returns the workspace of a configuration that PyTorch would take; -1 for another.
static int64_t workspace(descriptor configuration, descriptor card) {
    int64_t count, bytes = -1;
    descriptor engine = make(ENGINE), plan = make(PLAN);
    failures += get(configuration, 300, DESCRIPTOR, 1, &count, &engine) != 0;
    failures += get(configuration, 303, INT64, 1, &count, &bytes) != 0;
    int refused = has_note(engine, 1303, NUMERICAL, DOWN_CONVERT_INPUTS);
    if (!refused && !has_note(engine, 1305, BEHAVIOR, RUNTIME_COMPILATION)) {
        set_part(plan, 401, configuration);
        set_part(plan, 407, card);
        refused = finalize(plan) != 0;
    }
    destroy(plan);
    destroy(engine);
    return refused ? -1 : bytes;
}

static int64_t first_workspace(descriptor g, int mode, descriptor card) {
    descriptor heuristics = make(HEURISTICS), found[MOST];
    int64_t count = 0, bytes = -1;
    set_part(heuristics, 201, g);
    set_int(heuristics, 200, HEURISTICS_MODE, mode);
    set_part(heuristics, 204, card);
    if (finalize(heuristics) || get(heuristics, 202, DESCRIPTOR, 0, &count, NULL))
        return -1;
    count = count < MOST ? count : MOST;
    for (int64_t i = 0; i < count; i++)
        found[i] = make(CONFIGURATION);
    if (count)
        failures += get(heuristics, 202, DESCRIPTOR, count, &count, found) != 0;
    for (int64_t i = 0; i < count && bytes < 0; i++)
        bytes = workspace(found[i], card);
    return bytes;
}

int main(int count, char **words) {
    for (int i = 3; i < count; i++)
        dlopen(words[i], RTLD_NOW | RTLD_GLOBAL);
    void *library = count > 2 ? dlopen(words[2], RTLD_NOW) : NULL;
    if (!library)
        return 2;
    create = dlsym(library, "cudnnBackendCreateDescriptor");
    destroy = dlsym(library, "cudnnBackendDestroyDescriptor");
    finalize = dlsym(library, "cudnnBackendFinalize");
    set = dlsym(library, "cudnnBackendSetAttribute");
    get = dlsym(library, "cudnnBackendGetAttribute");
    descriptor card = make(CARD);
    failures += set(card, 2702, CHAR, (int64_t)strlen(words[1]), words[1]) != 0;
    finish(card);
    char kind, x_text[128], w_text[128];
    int type, last, stride, pad;
    while (scanf(" %c %d %d %127s %127s %d %d", &kind, &type, &last, x_text, w_text, &stride, &pad) == 7) {
        int64_t x[DIMENSIONS], w[DIMENSIONS], y[DIMENSIONS];
        int n = read_sizes(x_text, x);
        read_sizes(w_text, w);
        y[0] = x[0];
        y[1] = w[0];
        for (int i = 2; i < n; i++)
            y[i] = (x[i] + 2 * pad - w[i]) / stride + 1;
        descriptor g = graph(kind, convolution(type, n - 2, stride, pad), tensor('x', type, n, x, last),
                             tensor('w', type, n, w, last), tensor('y', type, n, y, last));
        int64_t bytes = first_workspace(g, INSTANT, card);
        if (bytes < 0)
            bytes = first_workspace(g, FALLBACK, card);
        printf("%lld\n", (long long)bytes);
        fflush(stdout);
    }
    _exit(failures ? 1 : 0);  // the library's own destructors look for a driver
}
