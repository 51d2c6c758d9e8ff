/* Ends the process by SIGKILL right after its n-th operation on files of the folder OWN_RUN: for LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int watched[4096]; /* open files of the folder */

static void done(void) {
    static int left = -1;
    if (left < 0) left = atoi(getenv("KILL_AFTER"));
    if (--left == 0) kill(getpid(), SIGKILL);
}

static int is_own(const char *path) { return strstr(path, getenv("OWN_RUN")) != NULL; }

static int opened(const char *path, int flags, int file) {
    if (file >= 0 && file < 4096) watched[file] = is_own(path);
    if (is_own(path) && (flags & O_CREAT)) done();
    return file;
}

#define OPEN(name)                                                    \
    int name(const char *path, int flags, ...) {                      \
        int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
        va_list more;                                                 \
        va_start(more, flags);                                        \
        int mode = va_arg(more, int);                                 \
        va_end(more);                                                 \
        return opened(path, flags, next(path, flags, mode));          \
    }
OPEN(open)
OPEN(open64)

ssize_t write(int file, const void *bytes, size_t count) {
    ssize_t (*next)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    if (file < 0 || file >= 4096 || !watched[file]) return next(file, bytes, count);
    /* in two halves: also a half may be all that is there */
    size_t half = count > 1 ? count / 2 : count;
    ssize_t written = next(file, bytes, half);
    done();
    return written;
}

#define OF_A_FILE(name)                                  \
    int name(int file) {                                 \
        int (*next)(int) = dlsym(RTLD_NEXT, #name);      \
        int result = next(file);                         \
        if (file >= 0 && file < 4096 && watched[file]) done(); \
        return result;                                   \
    }
OF_A_FILE(fsync)

#define OF_A_PATH(name)                                    \
    int name(const char *path) {                           \
        int (*next)(const char *) = dlsym(RTLD_NEXT, #name); \
        int result = next(path);                           \
        if (is_own(path)) done();                          \
        return result;                                     \
    }
OF_A_PATH(unlink)
OF_A_PATH(rmdir)

int rename(const char *from, const char *to) {
    int (*next)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    int result = next(from, to);
    if (is_own(to)) done();
    return result;
}
