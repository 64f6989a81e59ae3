"""On-policy distillation: what a teacher says of the policy's tokens, and what comes of it."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from rlboost_jax import main
from rlboost_jax.algorithms.kl import distilled_advantages
from rlboost_jax.data.tokenizer_check import check_teacher
from rlboost_jax.engine.dispatches import NonFiniteLogits
from rlboost_jax.learner.checkpoints.origin import OriginChanged, keep_teachers
from rlboost_jax.learner.fleet.score_requests import ScoreRequests
from rlboost_jax.learner.fleet.teacher_snapshots import published_teachers
from rlboost_jax.learner.packing import pack
from rlboost_jax.learner.programs.objective import objective
from rlboost_jax.learner.programs.teachers import opened_teachers
from rlboost_jax.learner.setup import fit
from rlboost_jax.learner.setup.preparation import programs
from rlboost_jax.messages import ScoreTokens, pack_tokens
from rlboost_jax.models.checkpoint_writer import write_checkpoint
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import init_params
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rollout.scorer import NoTeacher, Scorer
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.distillation_config import DistillationConfig, TeacherConfig
from rlboost_jax.settings.huggingface.config import to_huggingface
from rlboost_jax.settings.memory_estimates import (
    scoring_bytes_per_device,
    server_scoring_bytes,
    teacher_bytes_per_device,
)
from rlboost_jax.settings.presets import PRESETS
from rlboost_jax.settings.teacher_models import with_models
from rlboost_jax.weights.piece_lists import listed
from tests.learner.setup.test_sft import target_logprobs
from tests.oracles import torch_oracle
from tests.weights.reading import read_params

TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def teacher_of(config, tmp_path_factory):
    """`teacher_of(seed)`: parameters of a wider model than the policy's, and their folder."""

    def made(seed, **changes):
        model = replace(config.model, embed_dim=24, num_layers=2, **changes)
        params, folder = init_params(model, seed), tmp_path_factory.mktemp("teacher")
        write_checkpoint(model, params, folder, dtype="float32")
        (folder / "config.json").write_text(json.dumps(to_huggingface(model)))
        return model, params, str(folder)

    return made


def distilled(config, *teachers, **distillation):
    return replace(
        config,
        sampling=replace(config.sampling, temperature=TEMPERATURE),
        distillation=DistillationConfig(teachers=teachers, **distillation),
    )


def opened(config, *teachers, **distillation):
    return opened_teachers(distilled(config, *teachers, **distillation), make_mesh((1, 1, 1)))


def test_each_token_has_the_difference_to_the_teacher_of_its_data_set(config, groups, teacher_of):
    """By a second derivation: each sequence alone, a softmax in float64."""
    first, second = teacher_of(1), teacher_of(2)
    teachers = opened(
        config,
        TeacherConfig(source=first[2], data=("sums",)),
        TeacherConfig(source=second[2]),
        weight=0.5,
        reward_weight=2.0,
    )
    members = [
        replace(t, data="sums" if group.prompt % 2 else "")
        for group in groups
        for t in group.trajectories
    ]
    taught, total = teachers.taught(members)
    differences = []
    for before, after in zip(members, taught, strict=True):
        model, params, _ = first if before.data else second
        theirs = target_logprobs(model, params, before.sequence, TEMPERATURE)
        difference = theirs - before.logprobs
        expected = 2.0 * before.advantage + 0.5 * difference
        np.testing.assert_allclose(after.advantages, expected, atol=2e-5)
        assert replace(after, advantages=None) == replace(before, advantages=None)
        differences.append(difference)
    assert total == pytest.approx(-np.concatenate(differences).sum(), rel=1e-5)
    held = 2 * sum(leaf.nbytes for leaf in jax.tree.leaves(first[1]))
    assert teachers.num_bytes == held
    assert teacher_bytes_per_device(config, [first[0], second[0]]) == held


def test_on_policy_the_loss_has_the_gradient_of_the_advantages(config, groups, teacher_of):
    """The gradient is that of surrogate and KL together, to each token's log-probability."""
    teacher = TeacherConfig(source=teacher_of(1)[2], data=("sums",))
    weights = {"weight": 0.5, "reward_weight": 2.0}
    algorithm = replace(PRESETS["grpo"], loss_aggregation="sequence_mean")
    members = [
        replace(t, data="sums" if group.prompt % 2 else "")
        for group in groups
        for t in group.trajectories
    ]
    gradients = {}
    for form in ("advantage", "loss"):
        taught, total = opened(config, teacher, form=form, **weights).taught(members)
        (batch,) = pack(taught, rows=8, row_tokens=48, loss_aggregation="sequence_mean")

        def loss(logprobs, form=form, batch=batch):
            return objective(
                algorithm,
                batch,
                logprobs,
                jnp.zeros(batch.tokens.size),
                teacher_weight=0.5 if form == "loss" else 0.0,
            )[0]

        gradients[form] = jax.grad(loss)(jnp.ravel(batch.behaviour_logprobs)), total
    assert gradients["loss"][1] == gradients["advantage"][1]
    np.testing.assert_allclose(gradients["loss"][0], gradients["advantage"][0], atol=1e-6)
    assert np.abs(gradients["loss"][0]).max() > 0.1
    assert not (batch.taught & ~batch.response_mask).any() and batch.taught.any()
    assert [t.teacher_logprobs is None for t in taught] == [not t.data for t in taught]


def test_the_programs_of_a_run_have_the_kl_in_their_loss(config, groups, teacher_of):
    """By each sequence alone, in float64; the policy is another than the one that sampled."""
    model, params, source = teacher_of(1)
    given = {"form": "loss", "weight": 0.5, "reward_weight": 0.0}
    run = distilled(config, TeacherConfig(source=source), **given)
    members, _ = opened_teachers(run, make_mesh((1, 1, 1))).taught(groups[1].trajectories)
    policy, _ = programs(run, make_mesh((1, 1, 1)))
    ours = init_params(run.model, 0)
    (batch,) = pack(members, rows=2, row_tokens=48, loss_aggregation="token_mean")
    _, sums = policy.gradients(ours, None, batch)
    expected = 0.0
    for t in members:
        now = target_logprobs(run.model, ours, t.sequence, TEMPERATURE)
        theirs = target_logprobs(model, params, t.sequence, TEMPERATURE)
        expected += 0.5 * (np.exp(now - t.logprobs) * (now - theirs) ** 2 / 2).sum()
    assert float(sums["loss"]) == pytest.approx(expected, rel=1e-4)
    assert expected > 0.01


def test_the_plan_counts_teachers_and_notices_a_missing_one(config, teacher_of, capsys):
    """On a CPU parameters count; on a GPU also the scores, where they take more than a gradient."""

    def run_with(*sources):
        teachers = tuple(TeacherConfig(source=source) for source in sources)
        return replace(config, distillation=DistillationConfig(teachers=teachers))

    model, params, folder = teacher_of(1)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    for needs in (fit.needs, fit.least_needs):
        alone, beside = needs(run_with()), needs(run_with(folder))
        assert beside.trees - alone.trees == held
        assert beside.working == alone.working, "a gradient of the policy takes more"
    wide = replace(model, embed_dim=24 * 64)
    scores = scoring_bytes_per_device(config, wide)
    assert scores >= 4 * 24 * 64 * wide.vocab_size
    (Path(folder) / "config.json").write_text(json.dumps(to_huggingface(wide)))
    assert fit.needs(run_with(folder)).working == scores > alone.working
    main._plan(run_with(folder), "")
    assert f"teachers    over the learner's devices: {folder} " in capsys.readouterr().out
    for look in (lambda run: main._plan(run, ""), fit.least_needs):
        with pytest.raises(ConfigError, match=r"^distillation.teachers: source is 'none': no such"):
            look(run_with("none"))


def test_a_data_set_without_a_teacher_keeps_its_advantages(config, groups, teacher_of):
    teachers = opened(config, TeacherConfig(source=teacher_of(1)[2], data=("sums",)))
    members = groups[0].trajectories
    assert teachers.taught(members) == (members, 0.0)


def test_scores_do_not_depend_on_the_company(config, groups, teacher_of):
    """So neither on who sampled what, nor when it arrived."""
    teachers = opened(config, TeacherConfig(source=teacher_of(1)[2]))
    everything = [t for group in groups for t in group.trajectories]
    together, _ = teachers.taught(everything)
    for t in together:
        (alone,), _ = teachers.taught([replace(t, advantages=None)])
        assert alone.advantages.tobytes() == t.advantages.tobytes()


def test_servers_find_the_scores_of_the_trainer(config, groups, teacher_of):
    """But for the last bit, and all servers the same bits in any order; of responses with several
    sequences and turns as well."""
    model, params, folder = teacher_of(1)
    said = {"source": folder, "data": ("sums",)}
    run = replace(
        config,
        sampling=replace(config.sampling, temperature=TEMPERATURE),
        learner=replace(config.learner, row_lengths=2),
        distillation=DistillationConfig(
            teachers=(TeacherConfig(**said, model=model),), scored_by="servers"
        ),
    )
    first, second, *rest = [t for group in groups for t in group.trajectories]
    later = Sequence(
        tokens=np.array([1, 2, 3, 5, 6, 7, 8, 9], np.int32),
        runs=(1, 2, 2, 3),
        logprobs=np.full(5, -1.0, np.float32),
        versions=((3, 5),),
    )
    several = replace(first, later=(later,))
    members = [replace(t, data="sums", batch=4) for t in (several, second, *rest)]
    members.append(replace(second, sample=99, batch=4))  # of a data set without a teacher

    asked: list[ScoreTokens] = []
    requests = ScoreRequests(
        run.distillation, ["t"], asked.append, temperature=run.sampling.temperature
    )
    futures = {t.sample: requests.ask(t) for t in members}
    assert futures.pop(99) is None
    assert list(requests.open()) == asked and len(requests) == len(asked)
    assert len(asked) == len(members), "one has two sequences, one no teacher"
    earlier = replace(run, learner=replace(run.learner, row_lengths=1))  # which may change
    scorer, other = (Scorer(each, jax.devices()[0]) for each in (run, earlier))
    for each in (scorer, other):
        each.hold(0, "t", jax.device_get(params))
    for item in reversed(asked):
        found = scorer.score(item)
        assert found == other.score(item) and found.number == item.number
        requests.take(found)
        requests.take(found)  # said again
    assert not requests.open() and scorer.row_lengths == other.row_lengths
    assert scorer.row_lengths[0] * 2 == scorer.row_lengths[1] < scorer.row_lengths[-1]
    scored = [
        replace(t, teacher_logprobs=futures[t.sample].result() if t.sample in futures else None)
        for t in members
    ]
    taught, total = opened_teachers(run, make_mesh((1, 1, 1))).taught(scored)
    trainers = opened(replace(run), TeacherConfig(**said))
    expected, same = trainers.taught(members)
    assert total == pytest.approx(same, rel=1e-5)
    for here, there in zip(taught, expected, strict=True):
        assert (here.advantages is None) == (there.advantages is None) == (here.sample == 99)
        if there.advantages is not None:
            np.testing.assert_allclose(here.advantages, there.advantages, atol=2e-6)


def test_a_server_holds_what_the_run_says(config, teacher_of):
    model, params, folder = teacher_of(1)
    teachers = (TeacherConfig(source=folder, model=model),)
    run = replace(config, distillation=DistillationConfig(teachers=teachers, scored_by="servers"))
    scorer = Scorer(run, jax.devices()[0])
    smaller = jax.device_get(init_params(replace(model, num_layers=1), 1))
    for place, tree in ((0, smaller), (1, jax.device_get(params))):
        with pytest.raises(ValueError, match=rf"teacher {place}"):
            scorer.hold(place, "t", tree)
    item = ScoreTokens(
        number=0, batch=0, teacher="t", temperature=1.0, first=1, tokens=pack_tokens([1, 2])
    )
    with pytest.raises(NoTeacher):
        scorer.score(item)
    broken = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), jax.device_get(params))
    scorer.hold(0, "t", broken)
    with pytest.raises(NonFiniteLogits, match="replace the teacher"):
        scorer.score(item)
    scorer.keep(["u"])
    assert scorer.digests == ()


def test_snapshots_of_teachers_can_be_pulled(config, teacher_of, tmp_path, monkeypatch):
    """In the type of the model, and sealed as they are announced."""
    model, params, folder = teacher_of(1)
    teachers = (TeacherConfig(source=folder, model=model),)
    run = replace(config, distillation=DistillationConfig(teachers=teachers, scored_by="servers"))
    sealed = lambda each: msgspec.structs.replace(each, seal="s")  # noqa: E731
    (manifest,) = published_teachers(run, tmp_path, sealed)
    assert manifest.seal == "s" and manifest.version == 2**52
    pulled = read_params(Path(manifest.directory), listed(manifest))
    jax.tree.map(np.testing.assert_array_equal, pulled, jax.device_get(params))
    assert with_models(run, weights=False) == run
    found = with_models(
        replace(
            run, distillation=replace(run.distillation, teachers=(TeacherConfig(source=folder),))
        ),
        weights=False,
    )
    assert found.distillation.teachers[0].model.num_layers == model.num_layers
    assert server_scoring_bytes(run) > teacher_bytes_per_device(run, [model])
    assert fit.least_needs(run).trees == fit.least_needs(config).trees, "none on the trainer"

    def unknown(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", unknown)
    with pytest.raises(ConfigError, match="unset it"):
        published_teachers(run, tmp_path, sealed)


def test_the_teacher_alone_teaches_and_agrees_with_itself():
    logprobs = np.array([-1.0, -2.0], np.float32)
    advantages, gaps = distilled_advantages(logprobs, logprobs, 3.0, weight=1.0, reward_weight=0.0)
    assert advantages.tolist() == gaps.tolist() == [0.0, 0.0]
    advantages, _ = distilled_advantages(
        logprobs, logprobs + 0.5, np.array([1.0, 0.0], np.float32), weight=2.0, reward_weight=1.0
    )
    assert advantages.dtype == np.float32 and advantages.tolist() == [2.0, 1.0]


def test_a_teacher_with_fewer_rows_is_refused(config, teacher_of):
    small = teacher_of(1, vocab_size=100)[2]
    with pytest.raises(ConfigError, match=r"has 100 rows, the policy 112 \(model.vocab_size\)"):
        opened(config, TeacherConfig(source=small))


def test_a_teacher_with_another_vocabulary_is_refused(config, tmp_path):
    transformers, tokenizers = torch_oracle("transformers"), pytest.importorskip("tokenizers")
    for name, letters in (("ours", "abc"), ("same", "abc"), ("other", "acb")):
        vocabulary = {"?": 0} | {letter: place for place, letter in enumerate(letters, start=1)}
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
        end = "<end>" if name == "ours" else "<stop>"  # added to the vocabulary
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=end)
        fast.save_pretrained(tmp_path / name)
    data = replace(config.data, tokenizer=str(tmp_path / "ours"))
    check_teacher(data, str(tmp_path / "same"))
    with pytest.raises(ConfigError, match=r"the vocabulary of .*other.*'b' is 3 instead of 2"):
        check_teacher(data, str(tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"distillation.teachers .* needs its tokenizer"):
        check_teacher(data, str(tmp_path))


def test_a_run_goes_on_with_the_teachers_that_it_began_with(teacher_of, tmp_path):
    first, second = teacher_of(1)[2], teacher_of(2)[2]
    keep_teachers(tmp_path, [first])
    keep_teachers(tmp_path, [teacher_of(1)[2]])  # a copy
    with pytest.raises(OriginChanged, match=r"distillation.teachers\[0\] is .* bring them back"):
        keep_teachers(tmp_path, [second])
    with pytest.raises(ConfigError, match=r"^distillation.teachers: source is 'none': no such"):
        keep_teachers(tmp_path, ["none"])
