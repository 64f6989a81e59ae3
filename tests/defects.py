"""Put defects back and see the tests that matter most fail: `python -m tests.defects [NAME …]`.

Each is a small change of a copy of the sources in which one test, by name, has to fail that
passes without it. A test that does not is worth nothing, and this ends with code 1.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Defect:
    """One mistake that somebody could make.

    Attributes:
        file, right, wrong: where, and what takes the place of what; it is there once.
        test: fails with it.
    """

    name: str
    meaning: str
    file: str
    right: str
    wrong: str
    test: str


DEFECTS = (
    Defect(
        "sum",
        "bodies of calls are bounded one by one, and not in sum",
        "rlboost_jax/trust/bytes_in_flight.py",
        "            await self._flight.take(self._credential, size)\n"
        "            self.size += size\n",
        "            pass\n",
        "tests/trust/test_listener_limits.py::"
        "test_a_listeners_process_takes_up_no_more_than_its_limits_say[gateway]",
    ),
    Defect(
        "newcomers",
        "connections that have shown nothing take places from those that have",
        "rlboost_jax/trust/gate.py",
        "        if len(self._newcomers) >= self.limits.newcomers:\n",
        "        if False:\n",
        "tests/trust/test_gate.py::test_a_crowd_of_newcomers_keeps_nobody_out[False]",
    ),
    Defect(
        "noise",
        "a rollout that resumes on another instance is sampled with the noise of its first token",
        "rlboost_jax/engine/step_programs.py",
        "params, x[last_rows], keys, records[:, step_inputs.RESPONSE], controls",
        "params, x[last_rows], keys, 0 * records[:, step_inputs.RESPONSE], controls",
        "tests/system/test_same_bits.py::test_killed_and_joining_servers_change_no_bit",
    ),
    Defect(
        "journal",
        "a manager that was started again does not know what the one before had taken in",
        "rlboost_jax/manager/reducer/recovery.py",
        "                self._ledger.restore(entry, now)\n                if entry.server:",
        "                if entry.server:",
        "tests/system/test_durability.py::"
        "test_killed_at_any_moment_it_ends_with_the_same_bits[common]",
    ),
    Defect(
        "liar",
        "the learner believes every log-probability",
        "rlboost_jax/learner/update/batch.py",
        "dynamic_sampling or gaps.within(learner.tolerated)):",
        "dynamic_sampling or gaps):",
        "tests/system/test_liars.py::"
        "test_a_lying_server_is_quarantined_and_its_work_done_again[shift]",
    ),
    Defect(
        "choice",
        "a server's true log-probabilities of tokens that it chose itself are believed",
        "rlboost_jax/learner/tolerated_gaps.py",
        "            and self.choice <= tolerated.choice\n",
        "",
        "tests/learner/update/test_batch.py::test_a_choice_alone_is_disputed[choice-grpo]",
    ),
    Defect(
        "habit",
        "a server may forge as many tokens as it likes below the bound of a single one",
        "rlboost_jax/learner/tolerated_gaps.py",
        "            and self.mean_choice <= tolerated.mean_choice\n",
        "",
        "tests/learner/update/test_batch.py::test_a_choice_alone_is_disputed[mean_choice-grpo]",
    ),
    Defect(
        "graded",
        "answers to held-out prompts are believed",
        "rlboost_jax/learner/evaluation/measurement.py",
        "            if self._check_size:",
        "            if not self._check_size:",
        "tests/learner/test_lag_loop.py::"
        "test_lies_about_held_out_prompts_leave_no_trace_in_a_score",
    ),
    Defect(
        "digest",
        "a server loads weights whose digest is wrong",
        "rlboost_jax/weights/arrivals.py",
        "if digest != entry.sha256:",
        "if not digest:",
        "tests/system/test_by_hand.py::test_damaged_weights_are_refused_and_delay_nobody",
    ),
    Defect(
        "place",
        "a checkpoint is taken for that of the step that its folder is named after",
        "rlboost_jax/learner/checkpoints/folders.py",
        "    if said != step:\n",
        "    if not said:\n",
        "tests/learner/checkpoints/test_misplaced.py::test_only_own_older_ones_are_deleted",
    ),
    Defect(
        "template",
        "a chat template has all the processor time it wants",
        "rlboost_jax/workers/template_process.py",
        "limit = self._used_seconds + 1 + self._cpu_seconds",
        "limit = self._used_seconds + 1 + 100 * self._cpu_seconds",
        "tests/workers/test_template_process.py::"
        "test_one_that_takes_too_long_ends_and_the_next_one_works[{{ 9 ** (9 ** 9) }}]",
    ),
    Defect(
        "pieces",
        "a connection that breaks is not gone on with where it broke",
        "rlboost_jax/weights/download.py",
        "at = piece.at\n        # Identity",
        "at = piece.at - min(piece.at, 50)\n        # Identity",
        "tests/weights/test_pull.py::test_a_broken_download_is_taken_up_where_it_broke",
    ),
    Defect(
        "race",
        "a connection that has stalled keeps its bytes to itself",
        "rlboost_jax/weights/pieces.py",
        "if now - piece.moved_at >= silence]",
        "if piece.moved_at > now]",
        "tests/weights/test_pull.py::test_a_line_that_stalls_and_breaks_delays_and_changes_nothing",
    ),
    Defect(
        "forgotten",
        "an instance that ended before its start had returned was never there",
        "rlboost_jax/providers/polled.py",
        "            instance.over = own[-1]",
        "            instance.over = own[-1] if instance.asked_at < began else None",
        "tests/providers/test_polled.py::"
        "test_an_end_is_heard_of_once_whatever_was_seen_between_two_looks",
    ),
    Defect(
        "square",
        "all names of a file are listed anew for each of its tensors",
        "rlboost_jax/settings/huggingface/tensor_files.py",
        "        if file not in self._names:\n",
        "        if file:\n",
        "tests/models/test_opening_grows.py::"
        "test_four_times_as_many_tensors_take_four_times_as_much[sharded]",
    ),
    Defect(
        "lease",
        "a server may be silent for twice its lease",
        "rlboost_jax/manager/state/roster.py",
        'silent = Deadline(known.heard_at + lease, f"silent',
        'silent = Deadline(known.heard_at + 2 * lease, f"silent',
        "tests/schedules/test_schedules.py::test_every_sample_once_and_right[0]",
    ),
    Defect(
        "companions",
        "sums over the vocabulary are added up in an order that depends on the number of rows",
        "rlboost_jax/engine/row_sampling.py",
        "most = self._layout.sampled_rows",
        "most = R",
        "tests/engine/test_invariance.py::"
        "test_the_sampler_does_not_know_how_many_rows_there_are[False]",
    ),
    Defect(
        "mask",
        "a token does not attend to itself",
        "kernels/rlboost_kernels/attention/attention_xla.py",
        "& (position_1C < visible_R[:, None])",
        "& (position_1C < visible_R[:, None] - 1)",
        "kernels/tests/test_attention.py::test_matches_float64_loops[xla-groups of 4-{}]",
    ),
    Defect(
        "rope",
        "positions of long contexts are not scaled",
        "rlboost_jax/models/rope.py",
        "return np.asarray(kept * plain + (1 - kept) * plain / rope.factor)\n    if",
        "return np.asarray(plain)\n    if",
        "tests/models/test_families.py::test_greedy_generation[llama, scaled positions, biases]",
    ),
    Defect(
        "divisor",
        "an update is divided by the number of its responses in place of its tokens",
        "rlboost_jax/learner/packing.py",
        "return max(1, sum(t.num_sampled for t in trained))",
        "return max(1, len(trained))",
        "tests/learner/test_packing.py::test_weights_add_up_to_the_divisor",
    ),
    Defect(
        "rewritten",
        "a response counts once more for each sequence that its environment began",
        "rlboost_jax/learner/packing.py",
        "_token_weight(piece.num_sampled, loss_aggregation)",
        "_token_weight(sequence.num_sampled, loss_aggregation)",
        "tests/learner/episodes/test_assembly.py::"
        "test_each_sequence_is_packed_as_if_alone_and_counts_with_its_episode[sequence_mean-1]",
    ),
    Defect(
        "left_out",
        "a response whose environment failed counts in its group with a reward of 0",
        "rlboost_jax/learner/episodes/estimates.py",
        "counted = [t for t in members if not t.left_out]",
        "counted = list(members)",
        "tests/learner/episodes/test_left_out.py::test_the_others_are_a_group_without_it[group_mean]",
    ),
    Defect(
        "shaped",
        "a group of equal rewards learns from its penalties of length",
        "rlboost_jax/learner/episodes/estimates.py",
        "raw=np.array([t.reward for t in members]),",
        "raw=None,",
        "tests/learner/episodes/test_raw_rewards.py::"
        "test_the_gradient_of_a_batch_of_equal_rewards_is_exactly_0[dapo]",
    ),
    Defect(
        "filled_up",
        "groups that fill a batch up count in its divisor",
        "rlboost_jax/learner/stream/step_stream.py",
        "trained=False, fills_up=True",
        "trained=True, fills_up=True",
        "tests/learner/episodes/test_raw_rewards.py::"
        "test_what_fills_a_batch_up_leaves_no_trace_in_its_update[dapo-choices1]",
    ),
    Defect(
        "apart",
        "an object of a judged program says whether it equals what the test expects",
        "rlboost_jax/workers/apart/stand_ins.py",
        "        if type(other) is Remote:\n            return _truth",
        "        if other is not self:\n            return _truth",
        "tests/workers/apart/test_verdicts.py::test_no_attack_wins[equal to everything]",
    ),
    Defect(
        "places",
        "code is run from a folder that belongs to another user",
        "rlboost_jax/platform/code_places.py",
        "if found.st_uid not in ours:",
        "if found.st_uid < 0:",
        "tests/hostile/test_places.py::test_whose_places_may_hold_code"
        "[1001-16877-True-belongs to user 1001 (mode 755)]",
    ),
    Defect(
        "silence",
        "a response about which no reward function says anything has a reward of 0",
        "rlboost_jax/rewards/judge.py",
        "return verdict if verdict.components else replace(verdict, left_out=SILENT)",
        "return verdict",
        "tests/rewards/test_silence.py::test_of_a_group_only_those_that_no_function_speaks_of",
    ),
    Defect(
        "turns",
        "what a turn earns goes to the last turn of its episode",
        "rlboost_jax/learner/episodes/estimates.py",
        "rewards[np.cumsum(t.turns) - 1] += by_turn",
        "rewards[-1] += math.fsum(by_turn)",
        "tests/learner/episodes/test_turn_advantages.py::"
        "test_a_turn_is_compared_with_the_same_turn_of_the_others",
    ),
    Defect(
        "late",
        "a sequence counts though those before it were discarded",
        "rlboost_jax/learner/episodes/assembly.py",
        "if sample in self._whole or place > self._counts.get(sample, 0):",
        "if sample in self._whole:",
        "tests/learner/episodes/test_assembly.py::test_an_episode_is_whole_with_its_last_sequence",
    ),
    Defect(
        "seal",
        "weights are loaded from any peer that answers",
        "rlboost_jax/trust/seal.py",
        "key.verify(",
        "str(",
        "tests/weights/test_seal.py::test_nothing_can_be_changed",
    ),
    Defect(
        "reward",
        "a reward function may take all of the memory",
        "rlboost_jax/rewards/forked_call.py",
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))",
        "del limit",
        "tests/rewards/test_judge.py::test_memory_is_what_a_call_takes_besides_its_modules",
    ),
    Defect(
        "heard",
        "an environment's answer is sent before it is on disk",
        "rlboost_jax/environments/episode.py",
        "        self._failures = 0\n        return self._keep(said)",
        "        self._failures = 0\n        self._learn(said)\n        return self._next()",
        "tests/environments/test_episodes.py::"
        "test_what_was_answered_before_a_kill_is_not_asked_for_again",
    ),
    Defect(
        "begun",
        "a call is carried out before it is kept that it was begun",
        "rlboost_jax/environments/call_journal.py",
        "            await self._keep(begun)",
        "            self._keep(begun).close()",
        "tests/environments/test_episode_records.py::"
        "test_a_call_is_kept_as_begun_before_it_may_be_carried_out",
    ),
    Defect(
        "blame",
        "a process that somebody has killed counts against its episodes",
        "rlboost_jax/platform/exits.py",
        "return any(code == by_signal(number) for number in _SENT)",
        "return False",
        "tests/environments/test_environment_kind.py::"
        "test_whatever_an_environment_does_is_its_own_loss[shared-kill-ended by SIGKILL-outside]",
    ),
    Defect(
        "first_seconds",
        "a manager that is killed before it answers is taken for one that made a mistake",
        "rlboost_jax/learner/fleet/manager_process.py",
        "mistake = code == exits.MISTAKE or bool(missing)",
        "mistake = ready_at is None",
        "tests/learner/fleet/test_manager_process.py::"
        "test_one_that_is_killed_in_its_first_seconds_is_started_again",
    ),
    Defect(
        "missing",
        "a manager that lacks a package is started again and again",
        "rlboost_jax/learner/fleet/manager_process.py",
        "mistake = code == exits.MISTAKE or bool(missing)",
        "mistake = code == exits.MISTAKE",
        "tests/learner/fleet/test_manager_process.py::"
        "test_a_missing_package_is_a_mistake_and_one_line",
    ),
    Defect(
        "goodbye",
        "a manager that is killed by the goodbye is taken for one that has hung up",
        "rlboost_jax/learner/fleet/link.py",
        "return frame.type is aiohttp.WSMsgType.CLOSE",
        "return True",
        "tests/learner/fleet/test_link.py::"
        "test_a_manager_that_is_killed_by_the_goodbye_is_followed_by_one_that_is_told_the_same",
    ),
    Defect(
        "neighbours",
        "two episodes of one prompt share their calls",
        "rlboost_jax/environments/episode_records.py",
        'f"{batch} {sample} {seed}\\n"',
        'f"{batch} {seed}\\n"',
        "tests/environments/test_episode_records.py::test_no_two_episodes_have_the_same_name",
    ),
    Defect(
        "behind",
        "a small state never waits for its checkpoints, however many of them hang",
        "rlboost_jax/learner/loop.py",
        "session.checkpoints.wait(step - self._run.checkpoint.max_behind)",
        "pass",
        "tests/learner/test_loop.py::"
        "test_a_row_says_which_checkpoint_is_durable_and_no_save_may_take_too_many_steps",
    ),
    Defect(
        "stopped",
        "the time in which a process was stopped counts as one in which its disk did not answer",
        "rlboost_jax/platform/disk_thread.py",
        "self._still += min(seconds, MOST_SECONDS)",
        "self._still += seconds",
        "tests/platform/test_disk_thread.py::"
        "test_time_in_which_the_process_was_stopped_does_not_count",
    ),
    Defect(
        "depth",
        "JSON may be nested as deep as Python's stack happens to allow",
        "rlboost_jax/platform/foreign_json.py",
        "and deeper(value, MOST_DEPTH):",
        "and deeper(value, 10 * MOST_DEPTH):",
        "tests/hostile/test_files.py::test_a_hostile_file_is_a_line_or_passed_over[a sealed file]",
    ),
    Defect(
        "fifo",
        "a reader waits for whoever may write to a FIFO in a file's place",
        "rlboost_jax/platform/bounded_files.py",
        "if stat.S_ISREG(mode):",
        "if not stat.S_ISDIR(mode):",
        "tests/platform/test_foreign_json.py::test_what_is_no_such_file_is_one_line[a FIFO]",
    ),
)


def copy_of_sources(folder: Path) -> None:
    """All that version control knows or would take, and what an installation has built."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    built = [str(path.relative_to(ROOT)) for path in (ROOT / "kernels").rglob("*.so")]
    for name in [*listed.stdout.splitlines(), *built]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def passes(folder: Path, test: str) -> tuple[bool, str]:
    """Whether a test does there, and the end of what it prints."""
    path = os.pathsep.join([str(folder), str(folder / "kernels")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-o", "addopts=--import-mode=importlib", test],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "CI": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):  # of pytest: tests failed
        raise RuntimeError(f"{test} does not run:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.returncode == 0, done.stdout[-2000:]


def seen(defect: Defect, folder: Path) -> bool:
    """Whether its test passes without it and fails with it."""
    file = folder / defect.file
    right = file.read_text()
    if right.count(defect.right) != 1:
        raise RuntimeError(f"{defect.name}: {defect.file} has not once {defect.right!r}")
    began = time.monotonic()
    sound, output = passes(folder, defect.test)
    if not sound:
        print(output)
    file.write_text(right.replace(defect.right, defect.wrong))
    try:
        found = not passes(folder, defect.test)[0]
    finally:
        file.write_text(right)
    verdict = "seen" if found and sound else "NOT SEEN" if sound else "FAILS WITHOUT IT"
    print(f"{defect.name:11} {verdict:9} {time.monotonic() - began:5.0f} s  {defect.meaning}")
    print(f"{'':28} {defect.test}", flush=True)
    return found and sound


def main(arguments: Sequence[str]) -> int:
    names = {defect.name: defect for defect in DEFECTS}
    parser = argparse.ArgumentParser(prog="python -m tests.defects", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    chosen = parser.parse_args(arguments).names or list(names)
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"no defect {unknown[0]!r}; there are {', '.join(names)}")
    with tempfile.TemporaryDirectory(prefix="rlboost-defects-") as name:
        folder = Path(name)
        copy_of_sources(folder)
        missed = [each for each in chosen if not seen(names[each], folder)]
    if missed:
        print(f"not seen: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
