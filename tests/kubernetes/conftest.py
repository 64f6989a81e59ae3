"""One cluster for all tests of this folder, in a process of tests."""

from collections.abc import Iterator

import pytest

from tests.docs_blocks import ROOT
from tests.kubernetes.build import missing

MANIFESTS = ROOT / "deploy" / "kubernetes"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Start a cluster with the namespace, accounts and role of `deploy/`."""
    if reason := missing():
        pytest.skip(f"no Kubernetes here: {reason}")
    pytest.importorskip("lightkube", reason="no lightkube; make test-kubernetes installs it")
    from tests.kubernetes.cluster import running_cluster

    with running_cluster(tmp_path_factory.mktemp("kubernetes") / "cluster") as made:
        made.kubectl("apply", f"--filename={MANIFESTS / 'rlboost.yaml'}")
        accounts = "rlboost-server", "rlboost-trainer"
        made.wait_until(lambda: made.named("serviceaccounts") >= set(accounts), "accounts")
        yield made


@pytest.fixture(autouse=True)
def as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """The next test finds all nodes and no pods, whatever became of this one."""
    yield
    if "cluster" in request.fixturenames:
        made = request.getfixturevalue("cluster")
        made.kubectl("uncordon", *made.named("nodes"))
        made.kubectl("-n=rlboost", "delete", "pods", "--all", "--grace-period=0", "--force")
        made.wait_until(lambda: not made.items("pods"), "end of its pods")
