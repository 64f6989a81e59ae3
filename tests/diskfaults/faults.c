/* Preloaded: operations on files below a folder fail as a list of rules says.

   FAULTS_ROOT   the folder, absolute
   FAULTS_RULES  a file of lines "OPERATION ERRNO TIMES PATTERN": an operation on a path below the
                 folder that the pattern (fnmatch, of what comes after the folder) fits fails with
                 that number. TIMES: how often in all processes; -1: always. Read anew each
                 time. A pattern "#N" is of the file with inode N, whatever it is called: what is
                 written in its place is another.

   Operations: open, read, write, sync, rename (across folders only), link, lock, list, stat, remove.
   Maps of files are not seen: a program that maps what is to fail has to be recorded otherwise. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX], rules_name[PATH_MAX];
static size_t root_length;

__attribute__((constructor)) static void begin(void) {
  const char *folder = getenv("FAULTS_ROOT"), *rules = getenv("FAULTS_RULES");
  if (folder == NULL || rules == NULL) return;
  snprintf(root, sizeof root, "%s", folder);
  snprintf(rules_name, sizeof rules_name, "%s", rules);
  root_length = strlen(root);
}

/* One of so many times: they are marks at the end of a file of their own. */
static int taken(int line, long times) {
  if (times < 0) return 1;
  char name[PATH_MAX + 32];
  snprintf(name, sizeof name, "%s.%d", rules_name, line);
  int file = syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return 0;
  syscall(SYS_flock, file, LOCK_EX);
  struct stat found;
  int is = fstat(file, &found) == 0 && found.st_size < times;
  if (is) syscall(SYS_write, file, "x", 1L);
  syscall(SYS_close, file);
  return is;
}

static int fits(const char *pattern, const char *name, int descriptor) {
  struct stat found;
  if (pattern[0] != '#') return fnmatch(pattern, name, 0) == 0;
  return descriptor >= 0 && fstat(descriptor, &found) == 0 &&
         found.st_ino == strtoull(pattern + 1, NULL, 10);
}

/* The error of an operation on an absolute path, or 0. */
static int fault(const char *operation, const char *path, int descriptor) {
  if (root_length == 0 || strncmp(path, root, root_length) != 0 || path[root_length] != '/') return 0;
  int kept = errno, found = 0;
  char text[8192], *at = text, *rest = NULL;
  int file = syscall(SYS_openat, AT_FDCWD, rules_name, O_RDONLY | O_CLOEXEC, 0);
  ssize_t size = file < 0 ? -1 : syscall(SYS_read, file, text, sizeof text - 1);
  if (file >= 0) syscall(SYS_close, file);
  if (size > 0) {
    text[size] = 0;
    int number = 0;
    for (char *line = strtok_r(at, "\n", &rest); line && !found; line = strtok_r(NULL, "\n", &rest)) {
      char name[16], pattern[1024];
      int error;
      long times;
      if (sscanf(line, "%15s %d %ld %1023s", name, &error, &times, pattern) == 4 &&
          strcmp(name, operation) == 0 && fits(pattern, path + root_length + 1, descriptor) &&
          taken(number, times))
        found = error;
      number++;
    }
  }
  errno = kept;
  return found;
}

static void clean(char *path) { /* of "//" and "/./", in place */
  char *to = path;
  for (char *from = path; *from; from++) {
    if (from[0] == '/' && (from[1] == '/' || (from[1] == '.' && from[2] == '/'))) {
      if (from[1] == '.') from++;
      continue;
    }
    *to++ = *from;
  }
  *to = 0;
}

static int fault_at(const char *operation, int folder, const char *path) {
  if (root_length == 0 || path == NULL) return 0;
  int kept = errno;
  char found[2 * PATH_MAX] = "";
  if (path[0] != '/') {
    char link[64];
    snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, found, PATH_MAX - 1);
    if (length < 0) length = 0;
    found[length] = '/';
    found[length + 1] = 0;
  }
  strncat(found, path, PATH_MAX - 1);
  clean(found);
  errno = kept;
  return fault(operation, found, -1);
}

static int fault_of(const char *operation, int descriptor) {
  if (root_length == 0) return 0;
  int kept = errno;
  char link[64], found[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, found, PATH_MAX - 1);
  errno = kept;
  if (length <= 0) return 0;
  found[length] = 0;
  return fault(operation, found, descriptor);
}

#define REFUSE(error) \
  do { \
    int number = error; \
    if (number) { \
      errno = number; \
      return -1; \
    } \
  } while (0)
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(flags) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list rest; \
    va_start(rest, flags); \
    mode = va_arg(rest, mode_t); \
    va_end(rest); \
  }

static int opened(int folder, const char *path, int flags, mode_t mode) {
  REFUSE(fault_at("open", folder, path));
  if ((flags & O_ACCMODE) != O_RDONLY) REFUSE(fault_at("write", folder, path));
  return syscall(SYS_openat, folder, path, flags, mode);
}
int open(const char *path, int flags, ...) {
  MODE(flags)
  return opened(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
  MODE(flags)
  return opened(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
  MODE(flags)
  return opened(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
  MODE(flags)
  return opened(folder, path, flags, mode);
}

ssize_t read(int file, void *data, size_t size) {
  REFUSE(fault_of("read", file));
  return syscall(SYS_read, file, data, size);
}
ssize_t pread(int file, void *data, size_t size, off_t at) {
  REFUSE(fault_of("read", file));
  return syscall(SYS_pread64, file, data, size, at);
}
ssize_t pread64(int file, void *data, size_t size, off64_t at) { return pread(file, data, size, at); }
ssize_t readv(int file, const struct iovec *parts, int count) {
  REFUSE(fault_of("read", file));
  return syscall(SYS_readv, file, parts, count);
}
ssize_t preadv(int file, const struct iovec *parts, int count, off_t at) {
  REFUSE(fault_of("read", file));
  return syscall(SYS_preadv, file, parts, count, at, 0L);
}
ssize_t preadv64(int file, const struct iovec *parts, int count, off64_t at) {
  return preadv(file, parts, count, at);
}
ssize_t write(int file, const void *data, size_t size) {
  REFUSE(fault_of("write", file));
  return syscall(SYS_write, file, data, size);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
  REFUSE(fault_of("write", file));
  return syscall(SYS_pwrite64, file, data, size, at);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
  return pwrite(file, data, size, at);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
  REFUSE(fault_of("write", file));
  return syscall(SYS_writev, file, parts, count);
}
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *where, size_t size, unsigned flags) {
  REFUSE(fault_of("read", from));
  return syscall(SYS_copy_file_range, from, at, to, where, size, flags);
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) {
  REFUSE(fault_of("read", from));
  return syscall(SYS_sendfile, to, from, at, size);
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) { return sendfile(to, from, at, size); }
int fsync(int file) {
  REFUSE(fault_of("sync", file));
  return syscall(SYS_fsync, file);
}
int fdatasync(int file) {
  REFUSE(fault_of("sync", file));
  return syscall(SYS_fdatasync, file);
}

static int renamed(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  const char *one = strrchr(from, '/'), *other = strrchr(to, '/');
  size_t first = one ? one - from : 0, second = other ? other - to : 0;
  if (first != second || strncmp(from, to, first) != 0) REFUSE(fault_at("rename", from_folder, from));
  return syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}
int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  return renamed(from_folder, from, to_folder, to, 0);
}
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  return renamed(from_folder, from, to_folder, to, flags);
}
int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  REFUSE(fault_at("link", to_folder, to));
  return syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int unlinkat(int folder, const char *path, int flags) {
  REFUSE(fault_at("remove", folder, path));
  return syscall(SYS_unlinkat, folder, path, flags);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int flock(int file, int operation) {
  REFUSE(fault_of("lock", file));
  return syscall(SYS_flock, file, operation);
}
int stat(const char *path, struct stat *found) {
  REFUSE(fault_at("stat", AT_FDCWD, path));
  return REAL(stat)(path, found);
}
int fstatat(int folder, const char *path, struct stat *found, int flags) {
  if (path[0]) REFUSE(fault_at("stat", folder, path));
  return REAL(fstatat)(folder, path, found, flags);
}
DIR *opendir(const char *path) {
  int number = fault_at("list", AT_FDCWD, path);
  if (number) {
    errno = number;
    return NULL;
  }
  return REAL(opendir)(path);
}
