// Calls that are not served. Each is named once on stderr, when it first happens, and kept in a list that the process can
// read; the caller gets its library's "not supported". A wrong answer would be worse than none.

#include "null_gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char names[1 << 16];  // one name a line
static size_t length;

static bool is_listed(const char *name, size_t bytes) {
    for (const char *line = names; *line; line = strchr(line, '\n') + 1)
        if (!strncmp(line, name, bytes) && line[bytes] == '\n')
            return true;
    return false;
}

void null_report_unknown(const char *name) {
    size_t bytes = strlen(name);
    pthread_mutex_lock(&lock);
    bool first = !is_listed(name, bytes) && length + bytes + 2 <= sizeof names;
    if (first) {
        memcpy(names + length, name, bytes);
        length += bytes;
        names[length++] = '\n';
    }
    pthread_mutex_unlock(&lock);
    if (first)
        fprintf(stderr, "oomdoctor null GPU: `%s` is not served\n", name);
}

// Copies the names called so far, one a line, and returns how many bytes there are in all.
SERVED size_t oomdoctor_null_unknown_calls(char *buffer, size_t room) {
    pthread_mutex_lock(&lock);
    size_t bytes = length;
    if (room) {
        size_t copied = bytes < room - 1 ? bytes : room - 1;
        memcpy(buffer, names, copied);
        buffer[copied] = '\0';
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}
