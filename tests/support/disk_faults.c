/* A disk that fails: below a folder, some writes or syncs have an error, or writes do less than was asked.
 *
 * Preloaded into a process (LD_PRELOAD). disk_faults_begin(root, kind, first, length) begins: `length` of the calls that
 * the kind is about fail, from number `first` on. disk_faults_end() ends, and returns how many failed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SHORT_WRITE, FULL, WRITE_ERROR, SYNC_ERROR };

static char root[PATH_MAX];
static int kind, first, length, number, failed;

void disk_faults_begin(const char *below, int fault, int from, int calls) {
    strncpy(root, below, PATH_MAX - 1);
    kind = fault;
    first = from;
    length = calls;
    number = failed = 0;
}

int disk_faults_end(void) {
    root[0] = 0;
    return failed;
}

static int is_below(int descriptor) {
    char link_name[64], path[PATH_MAX];
    snprintf(link_name, sizeof link_name, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link_name, path, sizeof path - 1);
    if (!root[0] || size < 0)
        return 0;
    path[size] = 0;
    return !strncmp(path, root, strlen(root));
}

/* Whether this call is one of those that fail. */
static int fails(int descriptor) {
    if (!is_below(descriptor))
        return 0;
    number++;
    if (number < first || number >= first + length)
        return 0;
    failed++;
    return 1;
}

/* How many bytes to write, or -1 with an error. A disk that gets full takes a part first. */
static ssize_t allowed(int descriptor, size_t count) {
    if (kind == SYNC_ERROR || count < 2 || !fails(descriptor))
        return count;
    if (kind == SHORT_WRITE || (kind == FULL && failed == 1))
        return count / 2;
    errno = kind == FULL ? ENOSPC : EIO;
    return -1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int descriptor, const void *content, size_t count) {
    ssize_t part = allowed(descriptor, count);
    return part < 0 ? -1 : REAL(write)(descriptor, content, part);
}

ssize_t pwrite(int descriptor, const void *content, size_t count, off_t place) {
    ssize_t part = allowed(descriptor, count);
    return part < 0 ? -1 : REAL(pwrite)(descriptor, content, part, place);
}

ssize_t pwrite64(int descriptor, const void *content, size_t count, off64_t place) {
    ssize_t part = allowed(descriptor, count);
    return part < 0 ? -1 : REAL(pwrite64)(descriptor, content, part, place);
}

static int synced(int (*real)(int), int descriptor) {
    if (kind == SYNC_ERROR && fails(descriptor)) {
        errno = EIO;
        return -1;
    }
    return real(descriptor);
}

int fsync(int descriptor) { return synced(REAL(fsync), descriptor); }

int fdatasync(int descriptor) { return synced(REAL(fdatasync), descriptor); }
