"""A cloud of shell scripts over a folder: what a user of `fleet.command` writes, and Slurm's words.

`<folder>/machines/<name>` is one line, RUN NONCE PID. Servers are small programs that say their
nonce through a pipe, if there is one of their name, and wait.
"""

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

CODE = 7  # with which a server ends by itself

SERVER = f"""#!{sys.executable} -SE
import os, signal, sys
name = os.environ["RLBOOST_NAME"] if "RLBOOST_NAME" in os.environ else next(
    a.partition("=")[2] for a in sys.argv if a.startswith("--name="))
if name == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
# Blocked, it is kept until it is waited for. A handler of Python's misses one that comes between
# the interpreter's last look and `signal.pause`, which then never returns.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
pipe = "@/pipes/" + name
if os.path.exists(pipe):
    with open(pipe, "w") as file:
        file.write(os.environ["RLBOOST_NONCE"])
signal.sigwait([signal.SIGUSR1])
os._exit({CODE})
"""
START = """#!/bin/sh -e
# start NAME NONCE RUN
test ! -e "@/fail" || { cat "@/fail" >&2; exit 1; }
test ! -e "@/hang" || sleep 600
while test -e "@/late"; do sleep 0.01; done
"@/server" --name="$1" </dev/null >"@/logs/$1" 2>&1 &
echo "$3 $2 $!" >"@/machines/$1.part"
mv "@/machines/$1.part" "@/machines/$1"
"""
STOP = """#!/bin/sh
# stop NAME GRACE
read -r run nonce pid <"@/machines/$1" || exit 0
if [ "$2" = 0 ]; then kill -KILL "$pid"; else kill -TERM "$pid"; fi 2>"@/logs/stop"
exit 0
"""
LIST = """#!/bin/sh
# list
test ! -e "@/blind" || { cat "@/blind" >&2; exit 1; }
cd "@/machines" || exit 1
for name in *; do
  case "$name" in "*"|*.part) continue;; esac
  read -r run nonce pid <"$name" || continue
  state=$(cut -d" " -f3 "/proc/$pid/stat" 2>/dev/null)
  case "$state" in ""|Z|X) rm -f "$name"; continue;; esac
  echo "$run $name $nonce"
done
"""
# The same in the words of Slurm. A job's number is its process id.
SBATCH = """#!/bin/sh -e
for word in "$@"; do
  case "$word" in --job-name=*) tag=${word#--job-name=rlboost/};; esac
done
run=${tag%%/*} rest=${tag#*/}
name=${rest%%/*} nonce=${rest#*/}
cat >"@/logs/$name.sh"
test ! -e "@/fail" || { cat "@/fail" >&2; exit 1; }
test ! -e "@/hang" || sleep 600
while test -e "@/late"; do sleep 0.01; done
sh "@/logs/$name.sh" </dev/null >"@/logs/$name" 2>&1 &
echo "$run $nonce $!" >"@/machines/$name.part"
mv "@/machines/$name.part" "@/machines/$name"
echo "$!"
"""
SQUEUE = """#!/bin/sh
"@/list" >"@/logs/squeue.$$" || exit 1
while read -r run name nonce; do
  read -r _ _ pid <"@/machines/$name" && echo "$pid|RUNNING|0:0|None|rlboost/$run/$name/$nonce|"
done <"@/logs/squeue.$$"
echo "7|RUNNING|0:0|None|somebody else's|"
"""
SCANCEL = """#!/bin/sh
signal=KILL
for word in "$@"; do
  case "$word" in --signal=*) signal=${word#--signal=};; esac
done
kill -"$signal" "$word" 2>"@/logs/scancel"
exit 0
"""
# A host is a folder.
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
cd "@/$1" || exit 255
exec sh -c "$2"
"""
SCRIPTS = {
    "bin/ssh": SSH,
    "bin/rlboost": SERVER,
    "server": SERVER,
    **{"start": START, "stop": STOP, "list": LIST},
    **{"sbatch": SBATCH, "squeue": SQUEUE, "scancel": SCANCEL},
}


class ShellCloud:
    """
    Attributes:
        folder: with the scripts. A file `fail` in it is the reason why nothing starts, `hang` has
            starts take for ever, `late` for as long as it is there, `blind` is the reason why
            nothing can be listed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cloud"
        for name in ("machines", "logs", "pipes", "bin"):
            (self.folder / name).mkdir(parents=True)
        for name, text in SCRIPTS.items():
            path = self.script(name)
            path.write_text(text.replace("@/", f"{self.folder}/"))
            path.chmod(stat.S_IRWXU)

    def script(self, name: str) -> Path:
        return self.folder / name

    async def nonce(self, name: str) -> str:
        """What a server of that name was given, asked once before and once after its start."""
        pipe = self.folder / "pipes" / name
        if not pipe.exists():
            os.mkfifo(pipe)
            return ""
        return await asyncio.to_thread(pipe.read_text)

    def end(self, name: str) -> None:
        """Have it end by itself, with `CODE`."""
        os.kill(self.pid(name), signal.SIGUSR1)

    def pid(self, name: str) -> int:
        return int((self.folder / "machines" / name).read_text().split()[2])
