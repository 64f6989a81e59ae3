"""Go on with runs in one process, which has imported and compiled everything once.

    python -m tests.powercut.resume

reads lines of JSON, [workdir, config.json, most servers], and answers each with one: "" or what
was wrong.
"""

import contextlib
import dataclasses
import json
import sys
from pathlib import Path

from rlboost_jax.learner.training import run_training
from rlboost_jax.settings.load import read_run_config


def resume(workdir: Path, config: Path, max_instances: int) -> str:
    run = read_run_config(config)
    fleet = dataclasses.replace(run.fleet, max_instances=max_instances)
    try:
        run_training(dataclasses.replace(run, fleet=fleet), workdir)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        workdir, config, max_instances = json.loads(line)
        with contextlib.ExitStack() as stack:
            said = stack.enter_context(open(f"{workdir}.log", "w"))
            stack.enter_context(contextlib.redirect_stderr(said))
            stack.enter_context(contextlib.redirect_stdout(said))
            result = resume(Path(workdir), Path(config), max_instances)
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
