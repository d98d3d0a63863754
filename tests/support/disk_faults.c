/* A disk that fails: below a folder, some writes or syncs have an error, or writes do less than was asked.
 *
 * Preloaded into a process (LD_PRELOAD). disk_faults_begin(root, kind, first, length) begins: `length` of the calls that
 * the kind is about fail, from number `first` on. disk_faults_end() ends, and returns how many failed.
 * The processes of a server share what is said and counted, in the file that DISK_FAULTS names; who starts them loads
 * the library too, and begins and ends for all.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SHORT_WRITE, FULL, WRITE_ERROR, SYNC_ERROR };

struct faults {
    int armed, kind, first, length, number, failed;
    char root[PATH_MAX];
};

static struct faults own;
static struct faults *faults = &own;

__attribute__((constructor)) static void share(void) {
    const char *name = getenv("DISK_FAULTS");
    int descriptor = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    if (descriptor < 0)
        return;
    void *shared = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (shared != MAP_FAILED)
        faults = shared;
    close(descriptor);
}

void disk_faults_begin(const char *below, int fault, int from, int calls) {
    strncpy(faults->root, below, PATH_MAX - 1);
    faults->kind = fault;
    faults->first = from;
    faults->length = calls;
    faults->number = faults->failed = 0;
    __atomic_store_n(&faults->armed, 1, __ATOMIC_SEQ_CST);
}

int disk_faults_end(void) {
    __atomic_store_n(&faults->armed, 0, __ATOMIC_SEQ_CST);
    return faults->failed;
}

static int is_below(int descriptor) {
    char link_name[64], path[PATH_MAX];
    snprintf(link_name, sizeof link_name, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link_name, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return !strncmp(path, faults->root, strlen(faults->root));
}

/* Whether this call is one of those that fail. */
static int fails(int descriptor) {
    if (!__atomic_load_n(&faults->armed, __ATOMIC_SEQ_CST) || !is_below(descriptor))
        return 0;
    int number = __atomic_add_fetch(&faults->number, 1, __ATOMIC_SEQ_CST);
    if (number < faults->first || number >= faults->first + faults->length)
        return 0;
    __atomic_add_fetch(&faults->failed, 1, __ATOMIC_SEQ_CST);
    return 1;
}

/* How many bytes to write, or -1 with an error. A disk that gets full takes a part first. */
static ssize_t allowed(int descriptor, size_t count) {
    if (faults->kind == SYNC_ERROR || count < 2 || !fails(descriptor))
        return count;
    if (faults->kind == SHORT_WRITE || (faults->kind == FULL && faults->failed == 1))
        return count / 2;
    errno = faults->kind == FULL ? ENOSPC : EIO;
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

/* Of several parts, a short write takes half of the first. */
static ssize_t allowed_parts(int descriptor, const struct iovec *parts, int count, struct iovec *half) {
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += parts[i].iov_len;
    ssize_t part = allowed(descriptor, total);
    half->iov_base = parts[0].iov_base;
    half->iov_len = parts[0].iov_len / 2;
    return part < 0 ? -1 : (size_t)part < total;
}

ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t place) {
    struct iovec half;
    ssize_t is_short = allowed_parts(descriptor, parts, count, &half);
    if (is_short < 0)
        return -1;
    return REAL(pwritev)(descriptor, is_short ? &half : parts, is_short ? 1 : count, place);
}

ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off64_t place) {
    struct iovec half;
    ssize_t is_short = allowed_parts(descriptor, parts, count, &half);
    if (is_short < 0)
        return -1;
    return REAL(pwritev64)(descriptor, is_short ? &half : parts, is_short ? 1 : count, place);
}

int posix_fallocate(int descriptor, off_t place, off_t count) {
    if (faults->kind == FULL && fails(descriptor))
        return ENOSPC;
    return REAL(posix_fallocate)(descriptor, place, count);
}

int posix_fallocate64(int descriptor, off64_t place, off64_t count) {
    if (faults->kind == FULL && fails(descriptor))
        return ENOSPC;
    return REAL(posix_fallocate64)(descriptor, place, count);
}

static int synced(int (*real)(int), int descriptor) {
    if (faults->kind == SYNC_ERROR && fails(descriptor)) {
        errno = EIO;
        return -1;
    }
    return real(descriptor);
}

int fsync(int descriptor) { return synced(REAL(fsync), descriptor); }

int fdatasync(int descriptor) { return synced(REAL(fdatasync), descriptor); }
