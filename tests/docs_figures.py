"""Measured figures in README and docs/: `docs/figures.json`, and the sentences made of it.

    python -m tests.docs_figures                               write the sentences anew
    python -m tests.docs_figures --quickstart=runs/quickstart  from a finished run, and its picture
    python -m tests.docs_figures --locker=runs/locker          from that of own-environment.md
    python -m tests.docs_figures --suite 14.1 8.5 5.5 12.1     minutes: all, unit, system, all again

A sentence stands on lines of its own, so that it can be replaced. A unit test compares the pages
with the file, and the file with what it can be compared with: plans with configurations, and
figures of experiments with their results.
"""

import argparse
import datetime
import importlib
import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.sim.h100_speedups import SPEEDUPS
from experiments.spot_discount import prices
from rlboost_jax.observe.summary import headline, read_summary
from rlboost_jax.settings.break_even import discount
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.dry_run import engine_bytes
from rlboost_jax.settings.memory_estimates import learner_bytes_per_device, size_text
from tests.docs_blocks import ROOT

FILE = ROOT / "docs" / "figures.json"
PICTURE = ROOT / "docs" / "images" / "report.png"
LAG = ROOT / "experiments" / "lag"
PICTURE_SIZE = "1000,935"
FIRST_RUN, README = "docs/tutorials/first-run.md", "README.md"
SPOT_DISCOUNT = "experiments/spot_discount/README.md"
OWN_ENVIRONMENT = "docs/tutorials/own-environment.md"

PRICES = (
    "Six instances of two H100s make {prices.25} times the tokens per dollar of eight reserved "
    "ones alone at 25 % off,\n{prices.50} times at 50 %, {prices.75} times at 75 %."
)

OWN_PRICES = (
    "At the speeds of this project's own programs such a fleet pays from {prices.own} % off, a "
    "single GPU on GSM8K hardly ever."
)

# (page, sentence with names of figures in braces); `flat` has the names.
SENTENCES: tuple[tuple[str, str], ...] = (
    (README, "{quickstart.headline}\nfinal weights: {quickstart.digest}…"),
    (FIRST_RUN, "{quickstart.headline}"),
    (OWN_ENVIRONMENT, "{locker.headline}"),
    (FIRST_RUN, "These are from a machine of {quickstart.cores} cores, on {quickstart.date}."),
    (
        "docs/how-to/testing.md",
        "On two quiet cores it took {suite.minutes} minutes in a new checkout ({suite.date}): "
        "{suite.unit} for unit tests, {suite.system} for system tests. Where\nit has run before, "
        "programs come from the cache of the compiler: {suite.again}.",
    ),
    (
        "docs/how-to/lag.md",
        "Lag 1 makes {lag.1.2} times the tokens per second of lag 0 with two instances of two "
        "H100,\n{lag.1.4} times with four, {lag.1.8} times with eight, {lag.1.16} times with "
        "sixteen.",
    ),
    (
        "docs/how-to/lag.md",
        "Lag 1 makes {lag.trace.1} times the tokens per second of lag 0, lag 2 {lag.trace.2} "
        "times.",
    ),
    *(
        ("docs/how-to/presets.md", f"| `{name}.py` | {what} | {{plans.{name}}} |")
        for name, what in {
            "qwen25_05b_gsm8k": "Qwen2.5-0.5B-Instruct on GSM8K | one GPU of 24 GB",
            "qwen3_06b_gsm8k": "Qwen3-0.6B on GSM8K | one GPU of 32 to 80 GB",
            "llama32_1b_lora": "Llama-3.2-1B-Instruct on GSM8K, adapters only | one GPU of 24 GB",
            "qwen3_8b_openr1": "Qwen3-8B on OpenR1-Math, 14k tokens, as in RLBoost's paper "
            "| 8 H100",
            "qwen3_14b_openr1": "Qwen3-14B on the same, servers of 2 GPUs | 8 H100",
            "qwen3_32b_openr1": "Qwen3-32B on the same, servers of 4 GPUs | 16 H100",
            "qwen3_30b_a3b_moe": "Qwen3-30B-A3B, a mixture of experts, on GSM8K, servers of "
            "4 GPUs | 16 H100",
        }.items()
    ),
    *(("docs/how-to/presets.md", f"| `{name}.py` | {{break_even.{name}}} |") for name in SPEEDUPS),
    (README, PRICES),
    (README, OWN_PRICES),
    (SPOT_DISCOUNT, PRICES),
    (SPOT_DISCOUNT, OWN_PRICES),
)


def flat(figures: Mapping[str, Any], name: str = "") -> dict[str, str]:
    """Figures by their place, with points between: {"a": {"b": 1}} is {"{a.b}": "1"}."""
    found: dict[str, str] = {}
    for key, value in figures.items():
        place = f"{name}.{key}" if name else key
        if isinstance(value, Mapping):
            found |= flat(value, place)
        else:
            found[f"{{{place}}}"] = str(value)
    return found


def sentences(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What each page has to say, as it has to say it."""
    words = flat(figures)
    made = []
    for page, sentence in SENTENCES:
        for place, value in words.items():
            sentence = sentence.replace(place, value)
        made.append((page, sentence))
    return made


def rewrite(before: Mapping[str, Any], after: Mapping[str, Any], root: Path = ROOT) -> None:
    """Put the sentences of new figures in the place of the old ones.

    Raises:
        ValueError: a page does not say what it had to say.
    """
    for (page, old), (_, new) in zip(sentences(before), sentences(after), strict=True):
        text = (root / page).read_text(encoding="utf-8")
        if old not in text:
            raise ValueError(f"{page} does not say {old!r}; mend the page or SENTENCES")
        (root / page).write_text(text.replace(old, new), encoding="utf-8")


def plan_of(name: str, checkpoint: Mapping[str, Any]) -> str:
    """What `--dry_run` counts for a run of configs/: of a device, "learner, engine's weights".

    Args:
        checkpoint: the config.json of what it trains.
    """
    config = importlib.import_module(f"configs.{name}").get_config()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(checkpoint))
        config.model.source = folder
        run = run_config(config)
    learner, weights = learner_bytes_per_device(run), engine_bytes(run)["weights"]
    return f"{size_text(learner)}, {size_text(weights)}"


def lag_gains() -> dict[str, dict[str, str]]:
    """Tokens per second over those without a lag: `experiments/lag`, by lag and instances."""
    fixed, trace = (json.loads((LAG / f"{name}.json").read_text()) for name in ("results", "trace"))
    gains = {lag: {n: _gain(each) for n, each in fleets.items()} for lag, fleets in fixed.items()}
    return {**gains, "trace": {lag: _gain(each) for lag, each in trace["lags"].items()}}


def _gain(result: Mapping[str, Any]) -> str:
    return f"{result['throughput_ratio']['mean']:.2f}"


def tokens_per_dollar() -> dict[str, str]:
    """Over the reserved node alone, by per cent of discount: `experiments/spot_discount`; and from
    which discount on the same fleet pays at the bounds of our own programs."""
    found = prices.results()
    own = break_even()["qwen3_14b_openr1"].split(" | ")[2].split()[0]
    return {"own": own} | {
        str(percent): f"{prices.tokens_per_dollar(found, 6, percent / 100):.2f}"
        for percent in (25, 50, 75)
    }


def break_even() -> dict[str, str]:
    """Figures of each preset's own fleet, a row of the table each.

    Instances, speed-up, where it pays, and its prices.
    """
    return {name: _break_even(name, speedups) for name, speedups in SPEEDUPS.items()}


def _break_even(name: str, figures: Mapping[str, Any]) -> str:
    fleet = importlib.import_module(f"configs.{name}").get_config().fleet
    count, share = fleet.max_instances, figures["tensor_parallel"] / math.prod(figures["mesh"])
    speedup = figures["speedups"][count - 1]
    own = 1 - fleet.price_per_hour / (share * fleet.reserved_price_per_hour)
    pays = discount(speedup, count, share)
    return f"{count} | {speedup:.2f} | {100 * pays:.0f} % | {100 * own:.0f} %"


def of_run(workdir: Path) -> dict[str, Any]:
    summary = read_summary(workdir)
    if summary is None:
        raise SystemExit(f"{workdir} has no summary.json: name a run that is complete")
    written = datetime.datetime.fromtimestamp((workdir / "summary.json").stat().st_mtime)
    return {
        "headline": headline(summary),
        "digest": summary.params_digest[:12],
        "cores": os.cpu_count(),
        "date": written.date().isoformat(),
    }


def take_picture(report: Path) -> None:
    """The beginning of a report, by a browser without a window."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no chromium here: the picture stays as it is")
        return
    command = [browser, "--headless=new", "--disable-gpu", "--hide-scrollbars"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []
    command += ["--virtual-time-budget=20000", f"--window-size={PICTURE_SIZE}"]
    command += [f"--screenshot={PICTURE}", report.resolve().as_uri()]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="tests.docs_figures", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.description = __doc__
    parser.add_argument("--quickstart", type=Path, help="folder of a finished quickstart")
    parser.add_argument("--locker", type=Path, help="folder of own-environment.md's finished run")
    parser.add_argument("--suite", nargs=4, metavar="MINUTES", help="of `python -m tests`")
    options = parser.parse_args(arguments)
    before = json.loads(FILE.read_text())
    after = {**before, "lag": lag_gains(), "plans": plans()}
    after |= {"break_even": break_even(), "prices": tokens_per_dollar()}
    if options.quickstart:
        after["quickstart"] = of_run(options.quickstart)
        take_picture(options.quickstart / "report.html")
    if options.locker:
        after["locker"] = of_run(options.locker)
    if options.suite:
        named = dict(zip(("minutes", "unit", "system", "again"), options.suite, strict=True))
        after["suite"] = {**named, "date": datetime.date.today().isoformat()}
    rewrite(before, after)
    FILE.write_text(json.dumps(after, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def plans() -> dict[str, str]:
    """Plans of all runs of configs/ whose architectures the tests know."""
    from tests.settings.test_configs import CHECKPOINTS

    return {name: plan_of(name, checkpoint) for name, (checkpoint, _) in CHECKPOINTS.items()}


if __name__ == "__main__":
    main()
