// The real cuDNN's answers about graphs of operations: kept ones from a file, new ones from a process of its own.
//
// A separate process, because the real library cannot live beside the null GPU, which has its names, takes 200 MiB, and
// would not survive a fork. It is started at the first question that no kept answer fits, answers one line for each line,
// keeps each answer for later, and ends when this process does. A process that was forked starts its own.
//
// The environment says how, all set together or not at all:
//   OOMDOCTOR_NULL_CUDNN_COMMAND   the process, its words separated by line feeds
//   OOMDOCTOR_NULL_CUDNN_CARD      the card, as the JSON that cuDNN takes
//   OOMDOCTOR_NULL_CUDNN_ANSWERS   the file of kept answers, a line each: KEY COUNT ENGINE:NOTES:NOTES:BYTES:STATUS ...
// A question is a line, KEY CARD GRAPH.
//
// Where no answer can be had, a graph has one engine without a workspace, and that is reported as a call not served.

#define _GNU_SOURCE
#include "null_gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEY_CHARACTERS = 28, MAX_WORDS = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// ---- keys: the text as one large number, modulo two primes, which Python computes quickly too ----

static uint64_t remainder_of(const char *text, uint64_t prime, uint64_t before) {
    for (; *text; text++)
        before = (before * 256 + (unsigned char)*text) % prime;
    return before;
}

static void write_key(const char *card, const char *graph, char key[KEY_CHARACTERS + 1]) {
    const uint64_t primes[] = {((uint64_t)1 << 56) - 5, ((uint64_t)1 << 55) - 55};
    for (int i = 0; i < 2; i++)
        snprintf(key + 14 * i, KEY_CHARACTERS + 1 - 14 * i, "%014llx",
                 (unsigned long long)remainder_of(graph, primes[i], remainder_of(card, primes[i], 0)));
}

// ---- answers ----

// Parses `COUNT ENGINE:NUMERICAL:BEHAVIOR:BYTES:STATUS ...`; a count below 0 is the library's refusal of the graph.
static bool parse_answer(const char *text, cudnn_configuration **results, int *count) {
    char *end;
    *count = (int)strtol(text, &end, 10);
    if (end == text || *count > 4096)
        return false;
    *results = calloc(*count > 0 ? (size_t)*count : 1, sizeof **results);
    for (int i = 0; i < *count && *results; i++) {
        cudnn_configuration *one = *results + i;
        long long bytes;
        int read = 0;
        if (sscanf(end, " %d:%x:%x:%lld:%d%n", &one->engine, &one->numerical_notes, &one->behavior_notes, &bytes,
                   &one->status, &read) != 5) {
            free(*results);
            return false;
        }
        one->workspace_bytes = bytes;
        end += read;
    }
    return *results;
}

static struct {
    const char *text;
    size_t bytes, indexed;  // as mapped, and how many of them hold lines that are in the index
    size_t *starts;         // of lines, by their keys, one more than where they begin; 0 where there is none
    size_t room, count;     // a power of two, and how many are used
} kept;

// The file holds tens of thousands of lines after some weeks: to read it from its start for each question takes seconds.
static size_t *place_of(size_t *starts, size_t room, const char *key) {
    uint64_t value = 0xcbf29ce484222325;  // FNV-1a
    for (int i = 0; i < KEY_CHARACTERS; i++)
        value = (value ^ (unsigned char)key[i]) * 0x100000001b3;
    size_t at = (value ^ value >> 32) & (room - 1);
    while (starts[at] && memcmp(kept.text + starts[at] - 1, key, KEY_CHARACTERS))
        at = (at + 1) & (room - 1);
    return &starts[at];
}

static bool grow_index(void) {
    size_t room = kept.room ? 2 * kept.room : 4096, *starts = calloc(room, sizeof *starts);
    if (!starts)
        return false;
    for (size_t i = 0; i < kept.room; i++)
        if (kept.starts[i])
            *place_of(starts, room, kept.text + kept.starts[i] - 1) = kept.starts[i];
    free(kept.starts);
    kept.starts = starts;
    kept.room = room;
    return true;
}

static void index_line(const char *line) {
    if (2 * kept.count >= kept.room && !grow_index())
        return;
    size_t *place = place_of(kept.starts, kept.room, line);
    kept.count += !*place;
    *place = (size_t)(line - kept.text) + 1;
}

static void index_new_lines(void) {
    const char *line = kept.text + kept.indexed, *last = kept.text + kept.bytes, *end;
    for (; line < last && (end = memchr(line, '\n', (size_t)(last - line))); line = end + 1)
        if (end - line > KEY_CHARACTERS && line[KEY_CHARACTERS] == ' ')
            index_line(line);
    kept.indexed = (size_t)(line - kept.text);
}

static void map_kept_answers(void) {
    const char *path = getenv("OOMDOCTOR_NULL_CUDNN_ANSWERS");
    // Not `open`, which is logged where a program's inputs are recorded.
    int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    struct stat status;
    if (file < 0)
        return;
    if (!fstat(file, &status) && (size_t)status.st_size > kept.bytes) {
        void *mapped = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        if (mapped != MAP_FAILED) {
            if (kept.text)
                munmap((void *)kept.text, kept.bytes);
            kept.text = mapped;
            kept.bytes = (size_t)status.st_size;
            index_new_lines();  // another file's lines are not found by keys that they do not begin with
        }
    }
    close(file);
}

static bool find_in_mapped(const char *key, cudnn_configuration **results, int *count) {
    char line[1 << 16];
    size_t start = kept.room ? *place_of(kept.starts, kept.room, key) : 0;
    if (!start)
        return false;
    const char *found = kept.text + start + KEY_CHARACTERS;
    const char *end = memchr(found, '\n', (size_t)(kept.text + kept.bytes - found));
    if (!end || (size_t)(end - found) >= sizeof line)
        return false;
    memcpy(line, found, (size_t)(end - found));
    line[end - found] = '\0';
    return parse_answer(line, results, count);
}

static bool find_kept(const char *key, cudnn_configuration **results, int *count) {
    if (find_in_mapped(key, results, count))
        return true;
    map_kept_answers();  // another process may have asked since
    return find_in_mapped(key, results, count);
}

// ---- the process that asks ----

static struct {
    pid_t owner;  // the process that started it
    FILE *questions, *answers;
    bool failed;
} asker;

static bool start_asker(char *command) {
    int questions[2], answers[2];
    char *words[MAX_WORDS + 1] = {0};
    for (int i = 0; i < MAX_WORDS && (words[i] = strsep(&command, "\n")); i++)
        continue;
    if (pipe2(questions, O_CLOEXEC))
        return false;
    if (pipe2(answers, O_CLOEXEC)) {
        close(questions[0]);
        close(questions[1]);
        return false;
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, questions[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, answers[1], STDOUT_FILENO);
    pid_t child;
    char *environment[] = {NULL};  // nothing of the null GPU's
    bool started = words[0] && !posix_spawn(&child, words[0], &actions, NULL, words, environment);
    posix_spawn_file_actions_destroy(&actions);
    close(questions[0]);
    close(answers[1]);
    asker.questions = fdopen(questions[1], "w");
    asker.answers = fdopen(answers[0], "r");
    while (started && waitpid(child, NULL, 0) < 0 && errno == EINTR)  // it has gone on in a child of its own
        continue;
    return started && asker.questions && asker.answers;
}

static bool has_asker(void) {
    const char *command = getenv("OOMDOCTOR_NULL_CUDNN_COMMAND");
    if (asker.owner == getpid())
        return !asker.failed;
    asker.owner = getpid();  // what a parent had belongs to the parent
    char *copy = command ? strdup(command) : NULL;
    asker.failed = !copy || !start_asker(copy);
    free(copy);
    return !asker.failed;
}

static bool ask(const char *key, const char *card, const char *graph, cudnn_configuration **results, int *count) {
    static char line[1 << 16];
    if (!has_asker())
        return false;
    sigset_t pipe_signal, before;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    bool sent = fprintf(asker.questions, "%s %s %s\n", key, card, graph) > 0 && !fflush(asker.questions);
    if (!sent)
        sigtimedwait(&pipe_signal, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    bool answered = sent && fgets(line, sizeof line, asker.answers) && parse_answer(line, results, count);
    asker.failed = !answered;
    return answered;
}

// A graph of operations, of which the first is no convolution: neither forward nor the gradient of weight or input.
static bool is_attention(const char *graph) {
    return strstr(graph, ":15=") && !strstr(graph, ":15=10(") && !strstr(graph, ":15=11(") && !strstr(graph, ":15=12(");
}

int null_cudnn_answer(const char *graph, cudnn_configuration **results) {
    char key[KEY_CHARACTERS + 1];
    int count;
    const char *card = getenv("OOMDOCTOR_NULL_CUDNN_CARD");
    write_key(card ? card : "", graph, key);
    pthread_mutex_lock(&lock);
    bool answered = card && (find_kept(key, results, &count) || ask(key, card, graph, results, &count));
    pthread_mutex_unlock(&lock);
    if (answered && (count > 0 || !is_attention(graph)))
        return count;
    if (answered)
        free(*results);  // PyTorch has checked itself whether cuDNN computes such an attention, and has no other plan
    else
        null_report_unknown("cudnnBackendFinalize");
    *results = calloc(1, sizeof **results);
    return *results ? 1 : 0;
}
