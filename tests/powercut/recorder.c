/* Records what processes do to the files below one folder, in one order for all of them.

   Loaded with LD_PRELOAD. POWERCUT_ROOT is the folder, POWERCUT_LOG the file that records are
   appended to, POWERCUT_LOCK a file of two words: the lock, and how many milliseconds each sync takes
   at least, which may change meanwhile. Each operation and its record are one under that lock, so
   the order of the log is the order in which the files changed. `operations.py` reads the log.

   What the C library does inside itself (stdio) and what is written through a mapping is not seen
   but for being said: a record of kind ESCAPE names the file. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, RENAME, LINK, UNLINK, MKDIR, RMDIR, SYNC, SYNC_ALL, ESCAPE, SYMLINK };

typedef struct {
  uint32_t kind, pid, thread, unused, path_length, other_length;
  uint64_t offset, length;
} Header;

static char root[PATH_MAX], log_name[PATH_MAX];
static size_t root_length;
static _Atomic int *lock_word;

static void start(void) {
  const char *folder = getenv("POWERCUT_ROOT"), *log = getenv("POWERCUT_LOG");
  const char *lock = getenv("POWERCUT_LOCK");
  if (folder == NULL || log == NULL || lock == NULL) return;
  int descriptor = syscall(SYS_openat, AT_FDCWD, lock, O_RDWR | O_CLOEXEC, 0);
  if (descriptor < 0) return;
  void *shared =
      (void *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  syscall(SYS_close, descriptor);
  if (shared == MAP_FAILED) return;
  snprintf(log_name, sizeof log_name, "%s", log);
  snprintf(root, sizeof root, "%s", folder);
  lock_word = shared;
  root_length = strlen(root);
}

__attribute__((constructor)) static void begin(void) {
  if (root_length == 0) start();
}

#define REAL(name) \
  static __typeof__(name) *real; \
  if (real == NULL) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void hold(void) {
  int me = syscall(SYS_gettid), nobody = 0;
  for (int turn = 1; !atomic_compare_exchange_strong(lock_word, &nobody, me); turn++) {
    if (turn % 5000 == 0 && syscall(SYS_tkill, nobody, 0) < 0 && errno == ESRCH)
      atomic_compare_exchange_strong(lock_word, &nobody, 0); /* it was killed */
    nobody = 0;
    struct timespec pause = {0, 20000};
    if (turn > 50) syscall(SYS_nanosleep, &pause, NULL);
    else sched_yield();
  }
}

static void let_go(void) { atomic_store(lock_word, 0); }

/* The path without "." and "..", in place; links are not followed. */
static void clean(char *path) {
  char *to = path, *from = path;
  while (*from) {
    while (*from == '/') from++;
    char *end = strchrnul(from, '/');
    size_t length = end - from;
    if (length == 0 || (length == 1 && *from == '.')) {
    } else if (length == 2 && from[0] == '.' && from[1] == '.') {
      while (to > path && *--to != '/') {
      }
    } else {
      *to++ = '/';
      memmove(to, from, length);
      to += length;
    }
    from = end;
  }
  *to = 0;
}

static int inside(const char *path) {
  return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

/* Whether that names something below the folder; where, in `found` of PATH_MAX bytes. */
static int place(int folder, const char *path, char *found) {
  int kept = errno, is = 0;
  if (root_length == 0) start();
  if (root_length != 0 && path != NULL) {
    if (path[0] == '/') {
      is = snprintf(found, PATH_MAX, "%s", path) < PATH_MAX;
    } else {
      char link[64];
      if (folder == AT_FDCWD) strcpy(link, "/proc/self/cwd");
      else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
      ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, found, PATH_MAX - 1);
      if (length > 0) {
        int room = PATH_MAX - length;
        is = snprintf(found + length, room, "/%s", path) < room;
      }
    }
    if (is) clean(found);
    is = is && inside(found);
  }
  errno = kept;
  return is;
}

static int of_descriptor(int descriptor, char *found) {
  if (root_length == 0) return 0;
  int kept = errno;
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, found, PATH_MAX - 1);
  errno = kept;
  if (length <= 0) return 0;
  found[length] = 0;
  return inside(found) && (length < 10 || strcmp(found + length - 10, " (deleted)") != 0);
}

/* With the lock in hand, which other names it may have had before. */
static int hold_for(int descriptor, char *found) {
  if (!of_descriptor(descriptor, found)) return 0;
  hold();
  if (of_descriptor(descriptor, found)) return 1;
  let_go();
  return 0;
}

static void note(int kind, const char *path, const char *other, uint64_t offset, uint64_t length,
                 const struct iovec *parts, int count) {
  int kept = errno;
  Header header = {kind,   getpid(), syscall(SYS_gettid), 0, strlen(path), other ? strlen(other) : 0,
                   offset, length};
  int log = syscall(SYS_openat, AT_FDCWD, log_name, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
  if (log >= 0) {
    struct iovec all[3] = {{&header, sizeof header},
                           {(void *)path, header.path_length},
                           {(void *)(other ? other : ""), header.other_length}};
    syscall(SYS_writev, log, all, 3);
    for (int i = 0; i < count && length > 0; i++) {
      size_t left = parts[i].iov_len < length ? parts[i].iov_len : length;
      const char *data = parts[i].iov_base;
      length -= left;
      while (left > 0) {
        ssize_t done = syscall(SYS_write, log, data, left);
        if (done <= 0) break;
        data += done, left -= done;
      }
    }
    syscall(SYS_close, log);
  }
  errno = kept;
}

static void escaped(const char *path) {
  hold();
  note(ESCAPE, path, NULL, 0, 0, NULL, 0);
  let_go();
}

/* Files that are opened. */

static int open_noting(int folder, const char *path, int flags, mode_t mode) {
  char found[PATH_MAX];
  int writes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC));
  if (!writes || (flags & O_TMPFILE) == O_TMPFILE || !place(folder, path, found))
    return syscall(SYS_openat, folder, path, flags, mode);
  hold();
  struct stat before;
  int was = syscall(SYS_newfstatat, AT_FDCWD, found, &before, 0) == 0;
  int descriptor = syscall(SYS_openat, folder, path, flags, mode);
  if (descriptor >= 0) {
    if (!was) note(CREATE, found, NULL, 0, 0, NULL, 0);
    else if ((flags & O_TRUNC) && before.st_size > 0 && S_ISREG(before.st_mode))
      note(TRUNCATE, found, NULL, 0, 0, NULL, 0);
  }
  let_go();
  return descriptor;
}

#define MODE(flags) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list rest; \
    va_start(rest, flags); \
    mode = va_arg(rest, mode_t); \
    va_end(rest); \
  }

int open(const char *path, int flags, ...) {
  MODE(flags)
  return open_noting(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
  MODE(flags)
  return open_noting(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
int openat(int folder, const char *path, int flags, ...) {
  MODE(flags)
  return open_noting(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
  MODE(flags)
  return open_noting(folder, path, flags | O_LARGEFILE, mode);
}
int creat(const char *path, mode_t mode) {
  return open_noting(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int creat64(const char *path, mode_t mode) {
  return open_noting(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int __open_2(const char *path, int flags) { return open_noting(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_noting(AT_FDCWD, path, flags, 0); }
int __openat_2(int folder, const char *path, int flags) {
  return open_noting(folder, path, flags, 0);
}
int __openat64_2(int folder, const char *path, int flags) {
  return open_noting(folder, path, flags, 0);
}

FILE *fopen(const char *path, const char *mode) {
  REAL(fopen);
  char found[PATH_MAX];
  if (strpbrk(mode, "wa+") && place(AT_FDCWD, path, found)) escaped(found);
  return real(path, mode);
}
FILE *fopen64(const char *path, const char *mode) {
  REAL(fopen64);
  char found[PATH_MAX];
  if (strpbrk(mode, "wa+") && place(AT_FDCWD, path, found)) escaped(found);
  return real(path, mode);
}
static void *map(void *address, size_t length, int protection, int flags, int descriptor, off_t at) {
  char found[PATH_MAX];
  if (descriptor >= 0 && (protection & PROT_WRITE) && (flags & MAP_TYPE) != MAP_PRIVATE &&
      of_descriptor(descriptor, found))
    escaped(found);
  return (void *)syscall(SYS_mmap, address, length, protection, flags, descriptor, at);
}
void *mmap(void *address, size_t length, int protection, int flags, int descriptor, off_t at) {
  return map(address, length, protection, flags, descriptor, at);
}
void *mmap64(void *address, size_t length, int protection, int flags, int descriptor, off64_t at) {
  return map(address, length, protection, flags, descriptor, at);
}

/* What they hold. */

static ssize_t written(int descriptor, const struct iovec *parts, int count, off_t at, int has_at) {
  char found[PATH_MAX];
  int ours = hold_for(descriptor, found);
  ssize_t done = has_at ? syscall(SYS_pwritev, descriptor, parts, count, (long)at, 0L)
                        : syscall(SYS_writev, descriptor, parts, count);
  if (ours) {
    if (done > 0) {
      int kept = errno;
      off_t began = has_at ? at : syscall(SYS_lseek, descriptor, 0L, SEEK_CUR) - done;
      errno = kept;
      note(WRITE, found, NULL, began, done, parts, count);
    }
    let_go();
  }
  return done;
}
ssize_t write(int descriptor, const void *data, size_t size) {
  char found[PATH_MAX];
  if (!of_descriptor(descriptor, found)) return syscall(SYS_write, descriptor, data, size);
  struct iovec part = {(void *)data, size};
  return written(descriptor, &part, 1, 0, 0);
}
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t at) {
  struct iovec part = {(void *)data, size};
  return written(descriptor, &part, 1, at, 1);
}
ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t at) {
  return pwrite(descriptor, data, size, at);
}
ssize_t writev(int descriptor, const struct iovec *parts, int count) {
  return written(descriptor, parts, count, 0, 0);
}
ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t at) {
  return written(descriptor, parts, count, at, 1);
}
ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off64_t at) {
  return written(descriptor, parts, count, at, 1);
}

static int truncated(int descriptor, off_t size) {
  char found[PATH_MAX];
  if (!hold_for(descriptor, found)) return syscall(SYS_ftruncate, descriptor, size);
  int result = syscall(SYS_ftruncate, descriptor, size);
  if (result == 0) note(TRUNCATE, found, NULL, size, 0, NULL, 0);
  let_go();
  return result;
}
int ftruncate(int descriptor, off_t size) { return truncated(descriptor, size); }
int ftruncate64(int descriptor, off64_t size) { return truncated(descriptor, size); }
static int truncated_path(const char *path, off_t size) {
  char found[PATH_MAX];
  if (!place(AT_FDCWD, path, found)) return syscall(SYS_truncate, path, size);
  hold();
  int result = syscall(SYS_truncate, path, size);
  if (result == 0) note(TRUNCATE, found, NULL, size, 0, NULL, 0);
  let_go();
  return result;
}
int truncate(const char *path, off_t size) { return truncated_path(path, size); }
int truncate64(const char *path, off64_t size) { return truncated_path(path, size); }

/* In the kernel from file to file: callers copy themselves where that is refused. */
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *where, size_t size, unsigned flags) {
  char found[PATH_MAX];
  if (!of_descriptor(to, found)) return syscall(SYS_copy_file_range, from, at, to, where, size, flags);
  errno = ENOSYS;
  return -1;
}
static ssize_t sent(int to, int from, off_t *at, size_t size) {
  char found[PATH_MAX];
  if (!of_descriptor(to, found)) return syscall(SYS_sendfile, to, from, at, size);
  errno = ENOTSOCK;
  return -1;
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) { return sent(to, from, at, size); }
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) { return sent(to, from, at, size); }

/* Names. */

static int renamed(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  char one[PATH_MAX], other[PATH_MAX];
  int first = place(from_folder, from, one), second = place(to_folder, to, other);
  if (!first && !second) return syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  hold();
  int result = syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  if (result == 0) note(first && second ? RENAME : ESCAPE, first ? one : other, other, 0, 0, NULL, 0);
  let_go();
  return result;
}
int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  return renamed(from_folder, from, to_folder, to, 0);
}
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  return renamed(from_folder, from, to_folder, to, flags);
}

static int linked(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  char one[PATH_MAX], other[PATH_MAX];
  if (!place(to_folder, to, other)) return syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
  int first = place(from_folder, from, one);
  hold();
  int result = syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
  if (result == 0) note(first ? LINK : ESCAPE, first ? one : other, other, 0, 0, NULL, 0);
  let_go();
  return result;
}
int link(const char *from, const char *to) { return linked(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  return linked(from_folder, from, to_folder, to, flags);
}
int symlinkat(const char *target, int folder, const char *path) {
  char found[PATH_MAX];
  if (!place(folder, path, found)) return syscall(SYS_symlinkat, target, folder, path);
  hold();
  int result = syscall(SYS_symlinkat, target, folder, path);
  if (result == 0) note(SYMLINK, found, target, 0, 0, NULL, 0);
  let_go();
  return result;
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

int unlinkat(int folder, const char *path, int flags) {
  char found[PATH_MAX];
  if (!place(folder, path, found)) return syscall(SYS_unlinkat, folder, path, flags);
  hold();
  int result = syscall(SYS_unlinkat, folder, path, flags);
  if (result == 0) note(flags & AT_REMOVEDIR ? RMDIR : UNLINK, found, NULL, 0, 0, NULL, 0);
  let_go();
  return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
  int result = unlink(path);
  return result < 0 && errno == EISDIR ? rmdir(path) : result;
}
int mkdirat(int folder, const char *path, mode_t mode) {
  char found[PATH_MAX];
  if (!place(folder, path, found)) return syscall(SYS_mkdirat, folder, path, mode);
  hold();
  int result = syscall(SYS_mkdirat, folder, path, mode);
  if (result == 0) note(MKDIR, found, NULL, 0, 0, NULL, 0);
  let_go();
  return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Syncs: what was done before one is on the disk once it is noted. */

static int synced(int descriptor, long number) {
  char found[PATH_MAX];
  if (!of_descriptor(descriptor, found)) return syscall(number, descriptor);
  int slow = lock_word[1];
  if (slow > 0) {
    struct timespec pause = {slow / 1000, slow % 1000 * 1000000L};
    syscall(SYS_nanosleep, &pause, NULL);
  }
  if (!hold_for(descriptor, found)) return syscall(number, descriptor);
  int result = syscall(number, descriptor);
  if (result == 0) note(number == SYS_syncfs ? SYNC_ALL : SYNC, found, NULL, 0, 0, NULL, 0);
  let_go();
  return result;
}
int fsync(int descriptor) { return synced(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return synced(descriptor, SYS_fdatasync); }
int syncfs(int descriptor) { return synced(descriptor, SYS_syncfs); }
void sync(void) {
  if (root_length == 0) {
    syscall(SYS_sync);
    return;
  }
  hold();
  syscall(SYS_sync);
  note(SYNC_ALL, root, NULL, 0, 0, NULL, 0);
  let_go();
}
