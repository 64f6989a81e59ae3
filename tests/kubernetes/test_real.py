"""Real pods of a real API server: evicted with notice, drained, their manager killed; same bits.

    make test-kubernetes

Etcd, API server, scheduler and controllers are real; what a kubelet does, processes stand in for
(tests/kubernetes/kubelet.py). The release is 1.20: it has no DisruptionTarget condition.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.cluster import Cluster
from tests.system.conftest import short_and_calm  # noqa: F401
from tests.system.elsewhere import assert_secrets_are_kept, busy, joined, reap
from tests.system.harness import MARK, PACED, PATIENT, REPOSITORY, SHORT, Run, running, wait_until

pytestmark = [pytest.mark.system, pytest.mark.soak]  # real clusters start slowly

PODS = 6


def settings(workdir: Path) -> tuple[str, ...]:
    path = os.pathsep.join(
        filter(None, [str(PACED), str(REPOSITORY), os.environ.get("PYTHONPATH")])
    )
    variables = {
        "PYTHONPATH": path,
        MARK: workdir,
        "RLBOOST_TEST_PACE": workdir.with_name(f"{workdir.name}.pace"),
    }
    environment = " ".join(f"{name}={value}" for name, value in variables.items())
    return (
        *SHORT,
        *PATIENT,
        "fleet.provider=kubernetes",
        f"fleet.max_instances={PODS}",
        "fleet.notice_seconds=50",
        "fleet.kubernetes.image=rlboost/server",
        f"fleet.kubernetes.program={sys.executable} -m rlboost_jax.rollout",
        f"fleet.kubernetes.environment={environment}",
        "fleet.kubernetes.pools=a: test/zone=a; b: test/zone=b",
        "fleet.kubernetes.minutes=30",
        "fleet.kubernetes.poll_seconds=0.5",
    )


def pods(cluster: Cluster) -> dict[str, str]:
    """Names of pods that are not over, by the name of their instance."""
    return {
        pod["metadata"]["labels"]["rlboost/name"]: pod["metadata"]["name"]
        for pod in cluster.items("pods")
        if pod["status"]["phase"] in ("Pending", "Running")
    }


def nodes(cluster: Cluster) -> dict[str, str]:
    """Node of each instance."""
    return {
        pod["metadata"]["labels"]["rlboost/name"]: pod["spec"].get("nodeName", "")
        for pod in cluster.items("pods")
    }


def evict(cluster: Cluster, pod: str) -> None:
    """As `kubectl drain` does, of one pod."""
    eviction = f'{{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{{"name":"{pod}"}}}}'
    path = f"/api/v1/namespaces/rlboost/pods/{pod}/eviction"
    cluster.kubectl("create", f"--raw={path}", "--filename=-", given=eviction)


def of(run: Run, kind: str) -> dict[str, dict[str, Any]]:
    """What events of a kind say, by instance."""
    return {e["instance"]: e["detail"] for e in run.events(kind)}


def test_pods_come_and_go_and_change_no_bit(
    cluster: Cluster,
    short_and_calm: Run,  # noqa: F811
    tmp_path: Path,
) -> None:
    workdir, access = tmp_path / "run", {"KUBECONFIG": str(cluster.trainer)}
    with running(workdir, *settings(workdir), environment=access) as run:
        # Two are evicted while they generate.
        with run.at_a_standstill(version=1, servers=False):
            run.wait_until(lambda: len(joined(run)) == PODS, f"{PODS} pods that have joined")
            assert_kept(run, cluster)
            run.wait_until(lambda: len(busy(run)) >= 2, "work for two of them")
            evicted = busy(run)[:2]
            for name in evicted:
                evict(cluster, pods(cluster)[name])
            run.wait_until(lambda: of(run, "notice").keys() >= set(evicted), "notice to two pods")

        # A node is drained, with all that is on it; kubectl waits for their end.
        with run.at_a_standstill(version=3, servers=False):
            run.wait_until(lambda: of(run, "drained").keys() >= set(evicted), "their goodbye")
            assert [of(run, "drained")[name]["tokens_lost"] for name in evicted] == [0, 0]
            run.wait_until(lambda: len(joined(run)) >= PODS + 2, "pods in their place")
            run.wait_until(lambda: busy(run), "work for one of them")
            node = nodes(cluster)[busy(run)[0]]
            there = {name for name, place in nodes(cluster).items() if place == node}
            draining = cluster.begin("drain", node, "--force")
            run.wait_until(lambda: of(run, "notice").keys() >= there, "notice to all of the node")

        # The manager dies; the next one finds the pods and goes on with them.
        with run.at_a_standstill(version=4, servers=False):
            assert draining.wait() == 0 and not there & pods(cluster).keys()
            run.wait_until(lambda: len(pods(cluster)) == PODS, "pods in their place")
            assert node not in nodes(cluster).values()
            cluster.kubectl("uncordon", node)
            before = set(pods(cluster))
            os.kill(run.manager()["pid"], signal.SIGKILL)
            run.wait_until(lambda: len(run.events("manager")) == 2, "another manager")
            assert before & set(pods(cluster)), "it has ended them all"
        run.finish()
    assert run.digests() == short_and_calm.digests()
    run.assert_accounts_hold()
    assert_nothing_is_left(cluster)


def test_what_a_dead_run_has_left_is_found_and_reaped(cluster: Cluster, tmp_path: Path) -> None:
    """Trainer and manager are killed at once, as with a host: nobody is left to delete the pods."""
    workdir, access = tmp_path / "run", {"KUBECONFIG": str(cluster.trainer)}
    few = (*settings(workdir), "fleet.max_instances=2")
    with running(workdir, *few, environment=access) as run:
        run.wait_until(lambda: "ready" in {e["kind"] for e in run.events()}, "a start")
        run.wait_until(lambda: len(pods(cluster)) == 2, "two pods")
        pid = run.manager()["pid"]
        run.kill()
        os.kill(pid, signal.SIGKILL)
        found = reap(run, access, "list", code=1)
        assert found.count("kubernetes-") == 2, found
        said = reap(run, access, "reap", code=0)
        assert "2 ended" in said, said
        assert not pods(cluster)
        assert "nothing" in reap(run, access, "list", code=0)
    assert_nothing_is_left(cluster)


def assert_nothing_is_left(cluster: Cluster) -> None:
    """No pod, and no Secret of one: the garbage collector is some seconds behind."""
    assert not cluster.items("pods")
    wait_until(
        lambda: not [s for s in cluster.named("secrets") if s.startswith("rlboost-k")], "end"
    )


def assert_kept(run: Run, cluster: Cluster) -> None:
    """What opens the manager is in nothing that is shown of pods, and in one Secret of each."""
    shown = [cluster.kubectl("-n=rlboost", *words) for words in (
        ("get", "pods", "--output=yaml"),
        ("describe", "pods"),
        ("get", "events", "--output=yaml"),
    )]  # fmt: skip
    packed = [s["data"]["join"] for s in cluster.items("secrets") if "join" in s["data"]]
    assert len(packed) == PODS
    logs = sorted(cluster.folder.rglob("*.log"))
    assert_secrets_are_kept(run, shown, logs, tag="rlboost/nonce", more=packed)
