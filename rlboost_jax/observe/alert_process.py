"""The process that gives a run's alerts.

    python -m rlboost_jax.observe.alert_process --workdir=W --trainer=PID

Started by the trainer where `observe.alerts` names a command or a webhook. It reads the files of
the run and outlives the trainer, to say that it ended or broke; no step ever waits for it. What it
gave is in `<W>/alerts.jsonl`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rlboost_jax.observe.alerts import Alert, Watch, last_alert
from rlboost_jax.observe.json_lines import read_lines
from rlboost_jax.observe.page.run_view import RunView
from rlboost_jax.platform import process_liveness
from rlboost_jax.platform.bounded_files import read_text
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.alerts_config import AlertsConfig
from rlboost_jax.settings.config_loading import read_run_config


class _NoUrl(ValueError):
    """A file holds something other than a URL."""


FILE: Final = "alerts.jsonl"
MOST_URL_BYTES: Final = 2**12
LOOK_SECONDS: Final = 1.0
COMMAND_SECONDS: Final = 30.0
WEBHOOK_SECONDS: Final = 10.0


def check_alerts(settings: AlertsConfig) -> None:
    """Raise ConfigError if an alert could not be delivered."""
    if settings.command and shutil.which(settings.command[0]) is None:
        raise ConfigError(
            f"observe.alerts.command is {settings.command[0]!r}: no such program; give its path, "
            "or take it out"
        )
    if settings.webhook_file:
        try:
            _url_of(Path(settings.webhook_file))
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(
                f"observe.alerts.webhook_file {settings.webhook_file!r}: {said}; name a file with "
                "the URL, or take it out"
            ) from error


def start_alerts(settings: AlertsConfig, workdir: Path) -> "subprocess.Popen[bytes] | None":
    """Start the process for this trainer, if an alert target is configured.

    It is not waited for. Where it cannot be started, the run goes on without: None.
    """
    if not (settings.command or settings.webhook_file):
        return None
    command = [sys.executable, "-m", "rlboost_jax.observe.alert_process", f"--workdir={workdir}"]
    try:
        (workdir / "logs").mkdir(exist_ok=True)
        with open(workdir / "logs" / "alerts.log", "ab") as log:
            return subprocess.Popen(
                [*command, f"--trainer={os.getpid()}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupt in the terminal is not for it
            )
    except OSError as error:
        print(f"no alerts, the run goes on: {error}", file=sys.stderr)
        return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True, help="folder of the run")
    parser.add_argument("--trainer", type=int, required=True, help="its process id")
    given = parser.parse_args(arguments)
    started = process_liveness.start_time(given.trainer)
    watch_run(given.workdir, lives=lambda: process_liveness.runs(given.trainer, started))
    return 0


def watch_run(
    workdir: Path,
    *,
    lives: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Deliver the alerts of a run until its trainer is gone.

    Args:
        lives: whether it is there.
        clock, wait: seconds; a test gives others.
    """
    settings = read_run_config(workdir / "config.json").observe.alerts
    said = [str(line.get("kind")) for line in read_lines(workdir / FILE)]
    watch = Watch(settings, said)
    with RunView(workdir) as view:
        while lives():
            view.poll()
            for alert in watch.look(view, clock()):
                give(alert, settings, workdir)
            wait(LOOK_SECONDS)
        view.poll()
        for alert in (*watch.look(view, clock()), last_alert(view)):
            give(alert, settings, workdir)


def give(alert: Alert, settings: AlertsConfig, workdir: Path) -> None:
    """Call the command and the webhook, once; the outcome is one line of `alerts.jsonl`."""
    values = {"time": time.time(), "run": workdir.name, **asdict(alert)}
    failures = []
    if settings.command:
        failures.append(_command(settings.command, values))
    if settings.webhook_file:
        failures.append(_webhook(Path(settings.webhook_file), values))
    values["failures"] = [failure for failure in failures if failure]
    with open(workdir / FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def _command(command: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """Run the command; returns why it failed, "" if it did not."""
    environment = {**os.environ, "RLBOOST_ALERT": str(values["kind"])}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(values).encode(),
            env=environment,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"command: {type(error).__name__}"
    return f"command: exit code {done.returncode}" if done.returncode else ""


def _webhook(file: Path, values: Mapping[str, Any]) -> str:
    """Call the webhook; returns why that failed. No message has the URL, which is a secret."""
    try:
        url = _url_of(file)
        body = json.dumps({**values, "text": f"{values['run']}: {values['text']}"}).encode()
        request = urllib.request.Request(
            url, data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS):
            return ""
    except _NoUrl as error:
        return f"webhook: {error}"
    except (OSError, ValueError) as error:
        return f"webhook: {type(error).__name__}"


def _url_of(file: Path) -> str:
    """Read the URL. Raises OSError, ValueError; no message has the URL, which is a secret."""
    url = read_text(file, MOST_URL_BYTES, "a URL").strip()
    if not url.startswith(("https://", "http://")):
        raise _NoUrl("the file holds no URL of http")
    return url


if __name__ == "__main__":
    sys.exit(main())
