/* A file system that fails, for `faults.py`: preloaded before libc, so Python, Arrow and delta-rs all go through it.

   Counted are the calls of chosen classes on what lies below chosen folders, from `faulty_arm` on; the nth and some
   after it fail. What goes round libc (io_uring, mmap'ed pages, copy_file_range) is not covered. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, MAKE = 2, READ = 4, WRITE = 8, SYNC = 16, LINK = 32, UNLINK = 64, MKDIR = 128, LIST = 256, STAT = 512 };
enum { NONE, FAIL, SHORT, END, TORN, CUT, LATE, HIDE, GONE };

#define FDS 65536
#define ROOTS 8
static char roots[ROOTS][1024];
static int root_count;
static atomic_char ours[FDS];
static atomic_int mask, action, error_number;
static atomic_long seen, first, last, fired;
static char gone[4096];

void faulty_root(const char *path) {
    if (root_count < ROOTS) strncpy(roots[root_count++], path, sizeof roots[0] - 1);
}
void faulty_arm(int classes, long nth, long length, int what, int error) {
    gone[0] = 0;
    seen = fired = 0;
    first = nth;
    last = nth + length - 1;
    action = what;
    error_number = error;
    mask = classes;
}
long faulty_disarm(void) {
    mask = 0;
    gone[0] = 0;
    return seen;
}
long faulty_fired(void) { return fired; }

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static int below(int folder, const char *path) {
    if (!path) return 0;
    if (path[0] != '/') return folder >= 0 && folder < FDS && ours[folder];
    for (int i = 0; i < root_count; i++) {
        size_t length = strlen(roots[i]);
        if (!strncmp(path, roots[i], length) && (path[length] == '/' || !path[length])) return 1;
    }
    return 0;
}
static int known(int fd) { return fd >= 0 && fd < FDS && ours[fd]; }
static void note(int fd, int is_ours) {
    if (fd >= 0 && fd < FDS) ours[fd] = (char)is_ours;
}
static int due(int class, int is_ours) {
    if (!is_ours || !(mask & class)) return NONE;
    long now = ++seen;
    if (now < first || now > last) return NONE;
    fired++;
    return action;
}
static int fail(void) {
    errno = error_number;
    return -1;
}
static void whole(int folder, const char *name, char *into, size_t size) {
    char link[64], base[2048];
    if (name[0] == '/') {
        snprintf(into, size, "%s", name);
        return;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, base, sizeof base - 1);
    base[length < 0 ? 0 : length] = 0;
    snprintf(into, size, "%s/%s", base, name);
}
static int is_gone(int folder, const char *path) {
    char full[4096];
    if (!gone[0] || !below(folder, path)) return 0;
    whole(folder, path, full, sizeof full);
    return !strcmp(full, gone);
}

static int opened(int (*real)(int, const char *, int, ...), int folder, const char *path, int flags, mode_t mode) {
    int is_ours = below(folder, path);
    int making = flags & (O_CREAT | O_WRONLY | O_RDWR);
    if (is_gone(folder, path) && !making) {
        errno = ENOENT;
        return -1;
    }
    int what = due(making ? MAKE : OPEN, is_ours);
    if (what == FAIL) return fail();
    int fd = real(folder, path, flags, mode);
    if (what == LATE && fd >= 0) {
        close(fd);
        return fail();
    }
    note(fd, is_ours);
    return fd;
}
#define MODE(flags) \
    mode_t mode = 0; \
    if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }
#define OPENAT REAL(int, "openat", int, const char *, int, ...)
int openat(int folder, const char *path, int flags, ...) { MODE(flags) OPENAT; return opened(real, folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) OPENAT; return opened(real, folder, path, flags, mode); }
int open(const char *path, int flags, ...) { MODE(flags) OPENAT; return opened(real, AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) OPENAT; return opened(real, AT_FDCWD, path, flags, mode); }
int __open_2(const char *path, int flags) { OPENAT; return opened(real, AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { OPENAT; return opened(real, AT_FDCWD, path, flags, 0); }
int close(int fd) {
    REAL(int, "close", int);
    note(fd, 0);
    return real(fd);
}

static ssize_t torn(int what, void *into, ssize_t got) {
    if (what == TORN && got > 1) memset((char *)into + got / 2, 0, got - got / 2);
    return got;
}
static size_t part(int what, size_t count) { return what == SHORT && count > 1 ? count / 2 : count; }
ssize_t read(int fd, void *into, size_t count) {
    REAL(ssize_t, "read", int, void *, size_t);
    int what = due(READ, known(fd));
    if (what == FAIL) return fail();
    if (what == END) return 0;
    return torn(what, into, real(fd, into, part(what, count)));
}
static ssize_t read_at(int fd, void *into, size_t count, off_t at) {
    REAL(ssize_t, "pread64", int, void *, size_t, off_t);
    int what = due(READ, known(fd));
    if (what == FAIL) return fail();
    if (what == END) return 0;
    return torn(what, into, real(fd, into, part(what, count), at));
}
ssize_t pread(int fd, void *into, size_t count, off_t at) { return read_at(fd, into, count, at); }
ssize_t pread64(int fd, void *into, size_t count, off_t at) { return read_at(fd, into, count, at); }
ssize_t write(int fd, const void *from, size_t count) {
    REAL(ssize_t, "write", int, const void *, size_t);
    int what = due(WRITE, known(fd));
    if (what == FAIL) return fail();
    ssize_t done = real(fd, from, what == CUT ? count / 2 : part(what, count));
    return what == LATE || what == CUT ? fail() : done;
}
ssize_t pwrite64(int fd, const void *from, size_t count, off_t at) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off_t);
    int what = due(WRITE, known(fd));
    if (what == FAIL) return fail();
    ssize_t done = real(fd, from, what == CUT ? count / 2 : part(what, count), at);
    return what == LATE || what == CUT ? fail() : done;
}
ssize_t writev(int fd, const struct iovec *from, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    int what = due(WRITE, known(fd));
    if (what == FAIL) return fail();
    ssize_t done = real(fd, from, count);
    return what == LATE || what == CUT ? fail() : done;
}

#define DONE(class, is_ours, call) \
    int what = due(class, is_ours); \
    if (what == FAIL) return fail(); \
    int done = call; \
    return what == LATE ? fail() : done
int fsync(int fd) { REAL(int, "fsync", int); DONE(SYNC, known(fd), real(fd)); }
int fdatasync(int fd) { REAL(int, "fdatasync", int); DONE(SYNC, known(fd), real(fd)); }
int link(const char *from, const char *to) {
    REAL(int, "link", const char *, const char *);
    DONE(LINK, below(-1, to), real(from, to));
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int);
    DONE(LINK, below(b, to), real(a, from, b, to, flags));
}
int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    DONE(LINK, below(-1, to), real(from, to));
}
int renameat(int a, const char *from, int b, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    DONE(LINK, below(b, to), real(a, from, b, to));
}
int unlink(const char *path) { REAL(int, "unlink", const char *); DONE(UNLINK, below(-1, path), real(path)); }
int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    DONE(UNLINK, below(folder, path), real(folder, path, flags));
}
int mkdir(const char *path, mode_t mode) { REAL(int, "mkdir", const char *, mode_t); DONE(MKDIR, below(-1, path), real(path, mode)); }
int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    DONE(MKDIR, below(folder, path), real(folder, path, mode));
}

#define LOOK(is_ours, folder, path, call) \
    if (is_gone(folder, path)) { \
        errno = ENOENT; \
        return -1; \
    } \
    DONE(STAT, is_ours, call)
int stat(const char *path, struct stat *into) { REAL(int, "stat", const char *, struct stat *); LOOK(below(-1, path), -1, path, real(path, into)); }
int stat64(const char *path, struct stat64 *into) { REAL(int, "stat64", const char *, struct stat64 *); LOOK(below(-1, path), -1, path, real(path, into)); }
int lstat(const char *path, struct stat *into) { REAL(int, "lstat", const char *, struct stat *); LOOK(below(-1, path), -1, path, real(path, into)); }
int lstat64(const char *path, struct stat64 *into) { REAL(int, "lstat64", const char *, struct stat64 *); LOOK(below(-1, path), -1, path, real(path, into)); }
int fstatat64(int folder, const char *path, struct stat64 *into, int flags) {
    REAL(int, "fstatat64", int, const char *, struct stat64 *, int);
    LOOK(below(folder, path) && path[0], folder, path, real(folder, path, into, flags));
}
int statx(int folder, const char *path, int flags, unsigned int fields, struct statx *into) {
    REAL(int, "statx", int, const char *, int, unsigned int, struct statx *);
    LOOK(path[0] && below(folder, path), folder, path, real(folder, path, flags, fields, into));
}

DIR *opendir(const char *path) {
    REAL(DIR *, "opendir", const char *);
    int is_ours = below(-1, path);
    if (due(OPEN, is_ours) == FAIL) {
        fail();
        return NULL;
    }
    DIR *found = real(path);
    if (found) note(dirfd(found), is_ours);
    return found;
}
int closedir(DIR *folder) {
    REAL(int, "closedir", DIR *);
    note(dirfd(folder), 0);
    return real(folder);
}
struct dirent64 *readdir64(DIR *folder) {
    REAL(struct dirent64 *, "readdir64", DIR *);
    struct dirent64 *entry = real(folder);
    while (entry && entry->d_name[0] != '.') {
        int what = due(LIST, known(dirfd(folder)));
        if (what == FAIL) {
            fail();
            return NULL;
        }
        if (what == GONE) whole(dirfd(folder), entry->d_name, gone, sizeof gone);
        if (what != HIDE) break;
        entry = real(folder);
    }
    return entry;
}
struct dirent *readdir(DIR *folder) { return (struct dirent *)readdir64(folder); }
