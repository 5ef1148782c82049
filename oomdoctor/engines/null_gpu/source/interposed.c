// Functions of other libraries that are replaced: one setting of PyTorch, and the opening of files.

#define _GNU_SOURCE  // dladdr, O_TMPFILE, RTLD_NEXT
#include "null_gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// ---- a setting of PyTorch that needs two answers ----

// Where the real cuDNN cannot be asked, the environment sets TORCH_CUDNN_V8_API_DISABLED=1, so that convolutions run through
// the older interface, which the null GPU serves by itself. But PyTorch reads it twice: libtorch_cuda, when it runs a convolution, and libtorch_cpu, when it chooses
// a backend. There "disabled" means that cuDNN cannot do bfloat16, and PyTorch takes its slow fallback with a buffer of
// gigabytes that no real GPU would hold. So libtorch_cpu is told that the newer interface is there.

// std::optional<bool> as C++ returns it in a register: the value in the low byte, 1 in the high byte if there is a value.
typedef uint16_t optional_bool;
enum { NO_ANSWER = 0, ANSWER = 0x100 };

static bool is_called_by(const char *library, void *caller) {
    Dl_info found;
    return dladdr(caller, &found) && found.dli_fname && strstr(found.dli_fname, library);
}

// c10::utils::check_env(const char *): "1" is true, "0" is false, anything else is no answer.
SERVED optional_bool _ZN3c105utils9check_envEPKc(const char *name) {
    if (!strcmp(name, "TORCH_CUDNN_V8_API_DISABLED") && is_called_by("libtorch_cpu", __builtin_return_address(0)))
        return NO_ANSWER;
    const char *value = getenv(name);
    if (!value || (strcmp(value, "0") && strcmp(value, "1")))
        return NO_ANSWER;
    return ANSWER | (*value == '1');
}

// ---- files that the process opens to read ----

// Python reports the files that it opens; native readers, such as those of safetensors and Arrow, do not. An answer that is
// cached until one of its inputs changes needs both.

// Absolute paths are appended here, each with a zero byte; negative: nothing is logged.
static int log_descriptor = -1;

SERVED void oomdoctor_null_note_files(int descriptor) { log_descriptor = descriptor; }

static bool directory_path(int directory, char *path) {
    if (directory == AT_FDCWD)
        return getcwd(path, PATH_MAX) != NULL;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return false;
    path[length] = 0;
    return true;
}

static void log_path(int directory, const char *path) {
    char line[2 * PATH_MAX + 2] = "";
    int saved_errno = errno;
    if (path && strlen(path) < PATH_MAX && (path[0] == '/' || directory_path(directory, line))) {
        if (path[0] != '/')
            strcat(line, "/");
        strcat(line, path);
        (void)!write(log_descriptor, line, strlen(line) + 1);
    }
    errno = saved_errno;
}

static bool opens_to_read(int flags) { return (flags & O_ACCMODE) != O_WRONLY && !(flags & (O_TRUNC | O_EXCL | O_DIRECTORY)); }

static int open_at(int directory, const char *path, int flags, mode_t mode) {
    if (log_descriptor >= 0 && opens_to_read(flags))
        log_path(directory, path);
    return (int)syscall(SYS_openat, directory, path, flags, mode);
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

SERVED int openat(int directory, const char *path, int flags, ...) {
    MODE(flags, flags)
    return open_at(directory, path, flags, mode);
}

SERVED int openat64(int directory, const char *path, int flags, ...) {
    MODE(flags, flags)
    return open_at(directory, path, flags, mode);
}

// Called instead by code that was compiled with _FORTIFY_SOURCE.
SERVED int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
SERVED int __open64_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
SERVED int __openat_2(int directory, const char *path, int flags) { return open_at(directory, path, flags, 0); }
SERVED int __openat64_2(int directory, const char *path, int flags) { return open_at(directory, path, flags, 0); }

static FILE *open_stream(const char *name, const char *path, const char *mode) {
    FILE *(*original)(const char *, const char *) = dlsym(RTLD_NEXT, name);
    if (log_descriptor >= 0 && mode && mode[0] == 'r')
        log_path(AT_FDCWD, path);
    return original(path, mode);
}

SERVED FILE *fopen(const char *path, const char *mode) { return open_stream("fopen", path, mode); }
SERVED FILE *fopen64(const char *path, const char *mode) { return open_stream("fopen64", path, mode); }
