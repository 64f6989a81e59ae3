"""Files for operators: rules of Prometheus, a compose file, manifests for kustomize."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlboost_jax.observe.metrics import MEANINGS, SUMMED
from rlboost_jax.observe.page.run_view import NEWS

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
SERVED = {
    *("rlboost_num_steps", "rlboost_run_steps_total", "rlboost_servers"),
    *("rlboost_events_total", "rlboost_warnings_total"),
    *(f"rlboost_{key}" for key in MEANINGS),
    *(f"rlboost_run_{key}_total" for key in SUMMED),
}  # `observe/page/prometheus.py`


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def test_alerts_ask_for_numbers_that_a_run_serves() -> None:
    (rules,) = documents(DEPLOY / "prometheus" / "alerts.yml")
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert set(re.findall(r"rlboost_\w+", rule["expr"])) <= SERVED, rule
        assert rule["annotations"]["summary"] and rule["labels"]["severity"]


def promtool(*arguments: str | Path) -> None:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool on the PATH; Debian's package prometheus brings it")
    done = subprocess.run([found, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_has_nothing_to_say() -> None:
    promtool("check", "rules", DEPLOY / "prometheus" / "alerts.yml")


def test_kinds_of_events_in_alerts_are_served_before_the_first() -> None:
    text = (DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    assert set(re.findall(r'kind="(\w+)"', text)) <= NEWS


def test_alerts_fire_for_a_first_quarantine_and_for_a_run_that_broke_off(tmp_path: Path) -> None:
    """And not for a run that is complete."""
    values = {
        "rlboost_events_total": ("0x9 1x51", "0x60"),
        "up": ("1x9 0x51", "1x9 0x51"),
        "rlboost_run_steps_total": ("0+1x9 _x51", "0+1x9 _x51"),
        "rlboost_num_steps": ("20x9 _x51", "9x9 _x51"),
    }
    labels = {"up": 'job="rlboost"', "rlboost_events_total": 'job="rlboost",kind="quarantined"'}
    series = [
        {"series": f'{name}{{{labels.get(name, labels["up"])},instance="{run}"}}', "values": value}
        for name, both in values.items()
        for run, value in zip(("broken", "complete"), both, strict=True)
    ]
    expected = {
        f'count by (alertname, instance) (ALERTS{{alertname="{alert}",alertstate="firing"}})': alert
        for alert in ("RlboostUnreachable", "RlboostServerQuarantined")
    }
    checks = [
        {
            "expr": expression,
            "eval_time": "40m",
            "exp_samples": [{"labels": f'{{alertname="{alert}", instance="broken"}}', "value": 1}],
        }
        for expression, alert in expected.items()
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": checks}
    rules = [str(DEPLOY / "prometheus" / "alerts.yml")]
    asked = {"rule_files": rules, "evaluation_interval": "1m", "tests": [test]}
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(asked), encoding="utf-8")
    promtool("test", "rules", path)


def test_compose_mounts_what_is_there_and_pins_its_images() -> None:
    (compose,) = documents(DEPLOY / "compose.yaml")
    for service in compose["services"].values():
        assert re.fullmatch(r"docker\.io/[\w./-]+:v?\d+\.\d+\.\d+", service["image"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source.startswith("${RUN") or (DEPLOY / source).exists(), volume
    (prometheus,) = documents(DEPLOY / "prometheus" / "prometheus.yml")
    (scraped,) = prometheus["scrape_configs"]
    (rules,) = documents(DEPLOY / "prometheus" / "alerts.yml")
    (jobs,) = re.findall(r'up\{job=~"(.*?)"\}', str(rules))
    assert re.fullmatch(jobs, scraped["job_name"])


def test_kustomize_makes_all_of_them() -> None:
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("no kubectl on the PATH")
    command = [found, "kustomize", str(DEPLOY / "kubernetes")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and "unknown command" in done.stderr:
        pytest.skip("a kubectl without kustomize")
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    (job,) = [each for each in made if each["kind"] == "Job"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    assert {each["metadata"].get("namespace", "rlboost") for each in made} == {"rlboost"}
