// Which files the process opens to read, whoever in it does so.
//
// Python tells of the files that it opens; native readers, such as those of safetensors and Arrow, tell nobody. An answer
// that is kept until something changes that it depended on has to know of theirs too.

#define _GNU_SOURCE  // O_TMPFILE, RTLD_NEXT
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "null_gpu.h"

// Where absolute paths are appended, each with its zero byte; nowhere while negative.
static int account = -1;

SERVED void oomdoctor_null_note_files(int descriptor) { account = descriptor; }

static bool folder_of(int folder, char *path) {
    if (folder == AT_FDCWD)
        return getcwd(path, PATH_MAX) != NULL;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return false;
    path[length] = 0;
    return true;
}

static void note(int folder, const char *path) {
    char line[2 * PATH_MAX + 2] = "";
    int before = errno;
    if (path && strlen(path) < PATH_MAX && (path[0] == '/' || folder_of(folder, line))) {
        if (path[0] != '/')
            strcat(line, "/");
        strcat(line, path);
        (void)!write(account, line, strlen(line) + 1);
    }
    errno = before;
}

static bool reads(int flags) { return (flags & O_ACCMODE) != O_WRONLY && !(flags & (O_TRUNC | O_EXCL | O_DIRECTORY)); }

static int open_at(int folder, const char *path, int flags, mode_t mode) {
    if (account >= 0 && reads(flags))
        note(folder, path);
    return (int)syscall(SYS_openat, folder, path, flags, mode);
}

#define MODE(last, flags)                                    \
    mode_t mode = 0;                                         \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list rest;                                        \
        va_start(rest, last);                                \
        mode = va_arg(rest, mode_t);                         \
        va_end(rest);                                        \
    }

SERVED int open(const char *path, int flags, ...) {
    MODE(flags, flags)
    return open_at(AT_FDCWD, path, flags, mode);
}

SERVED int open64(const char *path, int flags, ...) {
    MODE(flags, flags)
    return open_at(AT_FDCWD, path, flags, mode);
}

SERVED int openat(int folder, const char *path, int flags, ...) {
    MODE(flags, flags)
    return open_at(folder, path, flags, mode);
}

SERVED int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags, flags)
    return open_at(folder, path, flags, mode);
}

// What a compiler that fortifies calls instead.
SERVED int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
SERVED int __open64_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
SERVED int __openat_2(int folder, const char *path, int flags) { return open_at(folder, path, flags, 0); }
SERVED int __openat64_2(int folder, const char *path, int flags) { return open_at(folder, path, flags, 0); }

static FILE *open_stream(const char *name, const char *path, const char *mode) {
    FILE *(*original)(const char *, const char *) = dlsym(RTLD_NEXT, name);
    if (account >= 0 && mode && mode[0] == 'r')
        note(AT_FDCWD, path);
    return original(path, mode);
}

SERVED FILE *fopen(const char *path, const char *mode) { return open_stream("fopen", path, mode); }
SERVED FILE *fopen64(const char *path, const char *mode) { return open_stream("fopen64", path, mode); }
