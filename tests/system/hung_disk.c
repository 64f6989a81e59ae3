/* A disk that does not answer: while the file $HUNG_DISK_FLAG exists, whatever touches a path that
   begins with $HUNG_DISK_PATH waits, as under a network file system whose server is away. To be
   loaded before the C library (LD_PRELOAD); what that calls within itself is not seen. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int hung(void) {
    const char *flag = getenv("HUNG_DISK_FLAG");
    return flag && syscall(SYS_faccessat, AT_FDCWD, flag, F_OK) == 0;
}

static void wait_for(const char *path) {
    const char *disk = getenv("HUNG_DISK_PATH");
    if (!disk || !path || strncmp(path, disk, strlen(disk)) != 0) return;
    while (hung()) usleep(10000);
}

static void wait_at(int folder, const char *name) {
    char link[64], path[PATH_MAX];
    if (!hung() || !name) return;
    if (name[0] == '/') { wait_for(name); return; }
    if (folder == AT_FDCWD) { if (getcwd(path, sizeof path)) wait_for(path); return; }
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length > 0) { path[length] = 0; wait_for(path); }
}

static void wait_on(int file) { wait_at(file, "."); }

#define REAL(result, name, types) static result (*real) types; \
    if (!real) real = (result (*) types)dlsym(RTLD_NEXT, #name)

#define OPEN(name) int name(const char *path, int flags, ...) { \
    REAL(int, name, (const char *, int, ...)); \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
    wait_at(AT_FDCWD, path); return real(path, flags, mode); }
OPEN(open) OPEN(open64)

#define OPENAT(name) int name(int folder, const char *path, int flags, ...) { \
    REAL(int, name, (int, const char *, int, ...)); \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
    wait_at(folder, path); return real(folder, path, flags, mode); }
OPENAT(openat) OPENAT(openat64)

#define OF_FILE(result, name, types, names) result name types { \
    REAL(result, name, types); wait_on(file); return real names; }
OF_FILE(ssize_t, read, (int file, void *data, size_t size), (file, data, size))
OF_FILE(ssize_t, pread, (int file, void *data, size_t size, off_t at), (file, data, size, at))
OF_FILE(ssize_t, pread64, (int file, void *data, size_t size, off64_t at), (file, data, size, at))
OF_FILE(ssize_t, write, (int file, const void *data, size_t size), (file, data, size))
OF_FILE(ssize_t, writev, (int file, const struct iovec *parts, int count), (file, parts, count))
OF_FILE(ssize_t, pwrite, (int file, const void *data, size_t size, off_t at), (file, data, size, at))
OF_FILE(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t at), (file, data, size, at))
OF_FILE(int, fsync, (int file), (file))
OF_FILE(int, fdatasync, (int file), (file))
OF_FILE(int, ftruncate, (int file, off_t size), (file, size))
OF_FILE(int, ftruncate64, (int file, off64_t size), (file, size))

#define OF_PATH(result, name, types, names) result name types { \
    REAL(result, name, types); wait_at(AT_FDCWD, path); return real names; }
OF_PATH(int, rename, (const char *path, const char *to), (path, to))
OF_PATH(int, unlink, (const char *path), (path))
OF_PATH(int, mkdir, (const char *path, mode_t mode), (path, mode))
OF_PATH(int, rmdir, (const char *path), (path))
OF_PATH(int, stat, (const char *path, struct stat *found), (path, found))
OF_PATH(int, stat64, (const char *path, struct stat64 *found), (path, found))
OF_PATH(int, lstat, (const char *path, struct stat *found), (path, found))
OF_PATH(int, lstat64, (const char *path, struct stat64 *found), (path, found))
OF_PATH(void *, opendir, (const char *path), (path))
OF_PATH(int, link, (const char *path, const char *to), (path, to))

#define OF_PLACE(result, name, types, names) result name types { \
    REAL(result, name, types); wait_at(folder, path); return real names; }
OF_PLACE(int, renameat, (int folder, const char *path, int there, const char *to), (folder, path, there, to))
OF_PLACE(int, renameat2, (int folder, const char *path, int there, const char *to, unsigned flags), (folder, path, there, to, flags))
OF_PLACE(int, unlinkat, (int folder, const char *path, int flags), (folder, path, flags))
OF_PLACE(int, mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode))
OF_PLACE(int, fstatat, (int folder, const char *path, struct stat *found, int flags), (folder, path, found, flags))
OF_PLACE(int, fstatat64, (int folder, const char *path, struct stat64 *found, int flags), (folder, path, found, flags))
