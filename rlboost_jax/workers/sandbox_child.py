"""Script that runs an untrusted program inside what Linux offers to contain it.

A script of its own, of the standard library only, started by `sandbox.py` as
`python -P -s -B sandbox_child.py HEADER REPORT`: two open files, by number. The first has the
limits and the program as JSON; to the second goes what could not be dropped, or `STARTED`. Both are
closed before the first line of the program runs, and this process has dropped for good:

- network: no socket can be made (seccomp), and where the kernel allows, there is no interface
  either (a network namespace of its own), nor may TCP connect or bind (Landlock);
- processes: none can be started, signalled, traced, looked into, pinned or slowed (seccomp);
- threads: no more than `MAX_TASKS` with the first (setrlimit, of a user that is this process's
  alone); none at all (seccomp) where they could not be counted;
- files: only the interpreter and system libraries can be read, nothing can be written
  (Landlock), and no owner, right, time or attribute of a file be changed (seccomp); standard
  output is a file of limited length;
- memory, processor time, open files, core dumps: limited (setrlimit); what the kernel would keep
  for it besides (asynchronous I/O, shared memory, queues, keys, locks, timers, watches of files,
  larger pipes) cannot be had (seccomp), and no memory be locked (setrlimit);
- the rights of root (capabilities), which it has where the run is root's.

It then tries each of the first three, and ends with `NOT_CONTAINED` where one is still open and
containment is required. What is not contained: the processor's side channels, and faults of the
kernel that the remaining system calls reach. Whether a file is there, and how long it is, can
be asked of any.
"""

import ctypes
import importlib.abc
import importlib.util
import json
import os
import platform
import random
import resource
import signal
import socket
import struct
import sys

NOT_CONTAINED = 97  # exit code
ENDED = 98  # exit code of a program that came to its end, as far as its own process can be believed
MAX_TASKS = 64  # threads of a program, its first included
STARTED = b"started"  # reported before the program's first line

_LIBC = ctypes.CDLL(None, use_errno=True)
_NO_NEW_PRIVS, _SET_SECCOMP, _SET_PDEATHSIG = 38, 22, 1
_SECCOMP_FILTER = 2
_NEW_USER, _NEW_NET, _NEW_IPC = 0x10000000, 0x40000000, 0x08000000
_THREAD = 0x00010000  # flag of clone: not a process
_EPERM, _ENOSYS = 1, 38
# Of nobody, in a range that neither people nor services nor containers are given users from.
_OWN_USERS = 0x7FFE0000, 0x10000  # the first, how many

# Denied system calls by name, with their numbers on x86_64 and aarch64; None where there is none.
# fmt: off
DENIED = {
    # network and other processes
    "socket": (41, 198), "socketpair": (53, 199), "fork": (57, None), "vfork": (58, None),
    "execve": (59, 221), "execveat": (322, 281), "kill": (62, 129), "tkill": (200, 130),
    "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274), "sched_setaffinity": (203, 122),
    # rights and places of its own
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "setuid": (105, 146),
    "setreuid": (113, 145), "setresuid": (117, 147), "setfsuid": (122, 151),
    "setrlimit": (160, 164), "prlimit64": (302, 261), "personality": (135, 92),
    "seccomp": (317, 277), "landlock_create_ruleset": (444, 444),
    # what the kernel would keep for it, or share
    "io_setup": (206, 0), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "userfaultfd": (323, 282), "vmsplice": (278, 75), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191),
    "semtimedop": (220, 192), "mq_open": (240, 180), "mq_unlink": (241, 181), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "inotify_init": (253, None),
    "inotify_init1": (294, 26), "fanotify_init": (300, 262), "timer_create": (222, 107),
    "flock": (73, 32), "modify_ldt": (154, None), "bpf": (321, 280), "perf_event_open": (298, 241),
    "syslog": (103, 116), "quotactl": (179, 60), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106),
    # files: rights, owners, times, attributes
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "truncate": (76, 45), "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "removexattrat": (466, 466),
}
# fmt: on
# Denied with some values of one argument: numbers, which argument, values.
DENIED_WITH = (
    # fcntl, its command: locks and leases on files that others use, who gets which signal of a
    # file, notices, the size of a pipe.
    ((72, 25), 1, (6, 7, 8, 10, 15, 37, 38, 1024, 1026, 1031)),
    # prctl: to outlive the parent; filters of its own, which the kernel keeps.
    ((157, 167), 0, (_SET_PDEATHSIG, _SET_SECCOMP)),
)
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
_CLONE, _CLONE3 = (56, 220), (435, 435)
_X32 = 0x40000000  # numbers from here on are the x32 interface's


def contain(limits: dict[str, int]) -> None:
    """Drop every right that can be dropped; `gaps` finds those that remain."""
    _LIBC.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    counted = _become_countable()
    if _LIBC.unshare(_NEW_USER | _NEW_NET | _NEW_IPC):
        _LIBC.unshare(_NEW_NET | _NEW_IPC)  # root, where user namespaces are switched off
    _LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    _landlock([sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64", "/dev/null", "/dev/urandom"])
    for name, value in (
        ("RLIMIT_AS", limits["memory_bytes"]),
        ("RLIMIT_CPU", limits["cpu_seconds"]),
        ("RLIMIT_FSIZE", limits["output_bytes"]),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_NPROC", MAX_TASKS),
        ("RLIMIT_MEMLOCK", 0),
        ("RLIMIT_CORE", 0),
    ):
        resource.setrlimit(getattr(resource, name), (value, value))
    _LIBC.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24))  # version 3, oneself: none
    _seccomp(threads=counted)


def gaps() -> list[str]:
    """Things this process can still do, found by trying them."""

    def read_root() -> None:
        os.listdir("/")

    def start_process() -> None:
        if os.fork() == 0:
            os._exit(0)
        os.wait()

    def signal_parent() -> None:
        os.kill(os.getppid(), 0)

    attempts = (
        ("network", socket.socket),
        ("processes", start_process),
        ("processes", signal_parent),
        ("files", read_root),
    )
    found: dict[str, None] = {}
    for name, attempt in attempts:
        try:
            attempt()
        except OSError:
            continue
        found[name] = None
    return list(found)


class PipeEnd:
    """One end of an event loop's wake-up pipe, in place of a socket, which is not permitted.

    Args:
        reads, writes: descriptors; -1: this end does not.
    """

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes

    def fileno(self) -> int:
        return max(self._reads, self._writes)

    def setblocking(self, flag: bool) -> None:
        os.set_blocking(self.fileno(), flag)

    def recv(self, size: int) -> bytes:
        return os.read(self._reads, size)

    def send(self, data: bytes) -> int:
        return os.write(self._writes, data)

    def close(self) -> None:
        os.close(self.fileno())


def pipe_pair(*_: object, **__: object) -> tuple[PipeEnd, PipeEnd]:
    """Return what an event loop reads from and what it writes to, in place of `socketpair`."""
    reads, writes = os.pipe()
    return PipeEnd(reads, -1), PipeEnd(-1, writes)


class Program(importlib.abc.InspectLoader):
    """The program, or a module that it may import, without a file."""

    def __init__(self, source: str) -> None:
        self._source = source

    def get_source(self, fullname: str) -> str:
        return self._source


def _become_countable() -> bool:
    """Make the system limit this process's threads; return whether it does.

    It counts by real user, in each user namespace anew, and never root's. So root's process takes
    a real user of its own; what it may read goes by the effective one, which stays. Others are
    counted in a namespace that they make, or where they may not, with all else they run, which
    leaves room for few threads or for none.
    """
    if not _is_root_of_the_host():
        return True
    first, count = _OWN_USERS
    try:
        os.setresuid(first + os.getpid() % count, -1, -1)
    except OSError:  # no right to (a container's), no such user there
        return False
    return True


def _is_root_of_the_host() -> bool:
    """Whether the process is root outside of any user namespace."""
    if os.getuid() != 0:
        return False
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            mapped = [line.split() for line in file]
    except OSError:
        return True
    return not any(inside == "0" and outside != "0" for inside, outside, _ in mapped)


def _landlock(readable: list[str]) -> None:
    """Leave reading and executing below these places, and nothing else; see landlock(7)."""
    create, add, restrict = 444, 445, 446  # the same numbers on every machine
    version = _LIBC.syscall(create, None, 0, 1)
    if version < 1:
        return
    files = (1 << (13, 14, 15, 15, 16)[min(version, 5) - 1]) - 1  # all rights of that version
    network = 0b11 if version >= 4 else 0  # bind and connect
    scoped = 0b11 if version >= 6 else 0  # abstract sockets and signals
    rules = struct.pack("<QQQ", files, network, scoped)[
        : 8 if version < 4 else 16 if version < 6 else 24
    ]
    ruleset = _LIBC.syscall(create, rules, len(rules), 0)
    if ruleset < 0:
        return
    execute, read_file, read_dir = 1 << 0, 1 << 2, 1 << 3
    for path in readable:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rights = execute | read_file | (read_dir if os.path.isdir(path) else 0)
        beneath = struct.pack("<Qi", rights, place)
        _LIBC.syscall(add, ruleset, 1, beneath, 0)
        os.close(place)
    _LIBC.syscall(restrict, ruleset, 0)
    os.close(ruleset)


def _seccomp(*, threads: bool) -> None:
    """Answer EPERM to system calls in DENIED and DENIED_WITH, and to clone except for threads.

    Args:
        threads: they may be made.
    """
    if platform.machine() not in _MACHINES:
        return
    column, architecture = _MACHINES[platform.machine()]
    load, jump_equal, jump_set, jump_least, give = 0x20, 0x15, 0x45, 0x35, 0x06
    allow, kill = 0x7FFF0000, 0x80000000

    def errno(number: int) -> int:
        return 0x00050000 | number

    def refuse(value: int) -> tuple[tuple[int, int, int, int], ...]:
        return (jump_equal, 0, 1, value), (give, 0, 0, errno(_EPERM))

    denied = [number for row in DENIED.values() if (number := row[column]) is not None]
    some = []
    for numbers, argument, values in DENIED_WITH:
        some += [
            (jump_equal, 0, 2 * len(values) + 2, numbers[column]),
            (load, 0, 0, 16 + 8 * argument),
            *(step for value in values for step in refuse(value)),
            (give, 0, 0, allow),
        ]
    steps = [
        (load, 0, 0, 4),  # the architecture
        (jump_equal, 1, 0, architecture),
        (give, 0, 0, kill),
        (load, 0, 0, 0),  # the number of the call
        (jump_least, 0, 1, _X32),
        (give, 0, 0, errno(_ENOSYS)),
        (jump_equal, 0, 1, _CLONE3[column]),
        (give, 0, 0, errno(_ENOSYS)),  # its flags are in memory: callers fall back to clone
        *(step for number in denied for step in refuse(number)),
        *some,
        (jump_equal, 0, 3, _CLONE[column]),
        (load, 0, 0, 16),  # low half of the first argument, the flags
        (jump_set, 1 if threads else 0, 0, _THREAD),
        (give, 0, 0, errno(_EPERM)),
        (give, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    program = struct.pack("@HxxxxxxP", len(steps), ctypes.addressof(code))
    _LIBC.prctl(_SET_SECCOMP, _SECCOMP_FILTER, program, 0, 0)


def main() -> None:
    file, report = map(int, sys.argv[1:])
    with open(file, encoding="utf-8") as source:
        header = json.load(source)
    contain(header["limits"])
    open_still = gaps()
    if open_still and header["required"]:
        os.write(report, ", ".join(open_still).encode())
        os._exit(NOT_CONTAINED)
    os.write(report, STARTED)
    os.close(report)
    for name, text in header["modules"].items():
        _load(name, text)
    socket.socketpair = pipe_pair  # type: ignore[assignment]
    random.seed(0)  # as sets are in the same order every time (PYTHONHASHSEED)
    sys.argv = ["program"]
    sys.setrecursionlimit(10_000)
    try:
        _load("__main__", header["program"])
    except SystemExit as end:  # `exit()` as the last line of a program
        if end.code is not None and end.code != 0:
            raise
    sys.stdout.flush()
    raise SystemExit(ENDED)


def _load(name: str, source: str) -> None:
    loader = Program(source)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)


if __name__ == "__main__":
    main()
