"""`train()` in a real kernel: progress, an interrupt in the midst, the same cell again, the report.

Needs ipykernel and nbclient (the extra notebooks), which the test environments do not have;
docs/how-to/notebooks.md says how to run it with them.
"""

import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]
SETUP = """
from configs import tiny
from rlboost_jax.main import train
config = tiny.get_config()
config.num_steps = STEPS
config.checkpoint.every_steps = 1
"""
CELL = "print(train(config, WORKDIR).steps)"
LIMIT = 300.0


@pytest.fixture
def kernel() -> Any:
    pytest.importorskip("ipykernel", reason="the extra notebooks")
    manager_of = pytest.importorskip("jupyter_client", reason="the extra notebooks").KernelManager
    manager = manager_of(kernel_name="python3")
    manager.start_kernel(cwd=str(ROOT), env={**os.environ, "JAX_PLATFORMS": "cpu"})
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=LIMIT)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def outputs(client: Any, code: str, *, until: str = "") -> list[dict[str, Any]]:
    """What a cell shows, to its end or to the first that has a text."""
    client.execute(code)
    return following(client, until=until)


def following(client: Any, *, until: str = "") -> list[dict[str, Any]]:
    found = []
    while True:
        message = client.get_iopub_msg(timeout=LIMIT)
        content = {"kind": message["msg_type"], **message["content"]}
        if content.get("execution_state") == "idle":
            return found
        found.append(content)
        if until and until in content.get("data", {}).get("text/plain", ""):
            return found


def test_a_cell_trains_is_interrupted_and_goes_on(kernel: Any, tmp_path: Path) -> None:
    manager, client = kernel
    cell = CELL.replace("WORKDIR", repr(str(tmp_path / "run")))
    assert not [o for o in outputs(client, SETUP.replace("STEPS", "40")) if o["kind"] == "error"]
    outputs(client, cell, until=" 2/40 steps")
    manager.interrupt_kernel()
    (error,) = [o for o in following(client) if o["kind"] == "error"]
    assert error["traceback"] == ["interrupted; the same call goes on with the run"]
    shown = outputs(client, f"config.num_steps = 6\n{cell}")
    assert not [o for o in shown if o["kind"] == "error"], shown
    text = [o["data"]["text/plain"] for o in shown if o["kind"] == "update_display_data"]
    assert "6/6 steps" in text[-1] and "step 5 (6/6)" in text[-1]
    (report,) = [o for o in shown if "iframe" in o.get("data", {}).get("text/html", "")]
    assert report["data"]["text/plain"].endswith("report.html")
    assert "6\n" in [o.get("text") for o in shown if o["kind"] == "stream"]
