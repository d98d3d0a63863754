/* Notes what is safe on the disk: after every fsync below a folder, the file's content, or the directory's entries.
 *
 * Preloaded into a process (LD_PRELOAD). power_cut_begin(root, log, last) begins; the process dies (SIGKILL) at its sync
 * number `last`, before that has an effect. A copy in `log` is named NUMBER.INODE; a directory's says "inode kind name"
 * line by line. A hard link keeps each inode from being used again.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[PATH_MAX], log_folder[PATH_MAX];
static int number, last;

void power_cut_begin(const char *below, const char *log, int syncs) {
    strncpy(root, below, PATH_MAX - 1);
    strncpy(log_folder, log, PATH_MAX - 1);
    number = 0;
    last = syncs;
}

static void note_directory(const char *path, FILE *out) {
    DIR *directory = opendir(path);
    struct dirent *entry;
    while (directory && (entry = readdir(directory)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            fprintf(out, "%lu %c %s\n", (unsigned long)entry->d_ino, entry->d_type == DT_DIR ? 'd' : 'f', entry->d_name);
    if (directory)
        closedir(directory);
}

/* Through the same descriptor: where a process closes another one of a file, all its locks on it are gone. */
static void note_file(int descriptor, FILE *out) {
    static char block[1 << 16];
    off_t place = 0;
    ssize_t count;
    for (; (count = pread(descriptor, block, sizeof block, place)) > 0; place += count)
        fwrite(block, 1, count, out);
}

static void note(int descriptor) {
    char link_name[64], path[PATH_MAX], copy[2 * PATH_MAX];
    struct stat seen;
    snprintf(link_name, sizeof link_name, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link_name, path, sizeof path - 1);
    if (!root[0] || length < 0 || fstat(descriptor, &seen))
        return;
    path[length] = 0;
    if (strncmp(path, root, strlen(root)))
        return;
    snprintf(copy, sizeof copy, "%s/%06d.%lu%s", log_folder, number, (unsigned long)seen.st_ino,
             S_ISDIR(seen.st_mode) ? ".entries" : "");
    FILE *out = fopen(copy, "wb");
    if (!out)
        return;
    if (S_ISDIR(seen.st_mode))
        note_directory(path, out);
    else
        note_file(descriptor, out);
    fclose(out);
    snprintf(copy, sizeof copy, "%s/held-%lu", log_folder, (unsigned long)seen.st_ino);
    if (!S_ISDIR(seen.st_mode))
        (void)!link(path, copy);
}

static int synced(const char *name, int descriptor) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    if (root[0] && ++number == last)
        raise(SIGKILL);
    int result = real(descriptor);
    if (!result)
        note(descriptor);
    return result;
}

int fsync(int descriptor) { return synced("fsync", descriptor); }

int fdatasync(int descriptor) { return synced("fdatasync", descriptor); }
