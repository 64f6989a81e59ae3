"""Write a run's model as a checkpoint in Hugging Face's format.

    rlboost export --workdir=RUN --to=FOLDER [--step=N] [--dtype=bfloat16] [--adapter]
                   [--push=OWNER/NAME [--public]]

FOLDER then has config.json, safetensors files of at most 5 GB, and the tokenizer's files with the
run's chat template and stop ids; transformers loads it. A model from scratch becomes a Qwen3.
Adapters are merged, or with --adapter written alone, as the PEFT library has them.
Works beside a run that is alive, and on the CPU. With --push the folder is then uploaded to the
Hugging Face hub: private unless --public, with the token in HF_TOKEN.
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from absl import logging

from rlboost_jax.cli.hub_push import Push
from rlboost_jax.platform import command_parser, durable, exits
from rlboost_jax.platform.exhaustion import exhausted
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import read_run_config
from rlboost_jax.settings.huggingface.config import from_huggingface, to_huggingface
from rlboost_jax.settings.huggingface.sources import CONFIG, source_config
from rlboost_jax.settings.model_config import Dtype, ModelConfig


def export(
    workdir: str | Path,
    folder: str | Path,
    *,
    step: int | None = None,
    dtype: str = "bfloat16",
    adapter: bool = False,
) -> list[str]:
    """Write the parameters after `step` updates, the newest checkpoint's if None.

    The folder appears under its name when it is whole.

    Args:
        adapter: write adapters alone, in the PEFT library's format.

    Returns:
        Lines for a person: what was written, and what could not be found.

    Raises:
        ConfigError, CheckpointNotFound: one line that says what to change.
    """
    from rlboost_jax.data.exported_tokenizer import write_tokenizer
    from rlboost_jax.learner.checkpoints.base import read_policy
    from rlboost_jax.learner.checkpoints.reading import newest_step
    from rlboost_jax.models.adapters import base_model, merged_params
    from rlboost_jax.models.checkpoint_writer import write_checkpoint
    from rlboost_jax.models.peft_files import write_peft
    from rlboost_jax.platform.jax_switches import check_switches

    check_switches()
    workdir, folder = Path(workdir), Path(folder).absolute()
    run = read_run_config(workdir)
    model = run.model
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--to={folder} exists; name a new folder")
    if adapter and not model.lora.rank:
        raise ConfigError(
            f"--adapter: the run in {workdir} trains all parameters (model.lora.rank is 0); leave "
            "the option out"
        )
    checkpoints = workdir / "checkpoints"
    step = newest_step(checkpoints) if step is None else step
    params = read_policy(model, workdir, checkpoints, step)

    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(
            f"--to={folder} cannot be made: {error.strerror}; name another folder"
        ) from error
    if adapter:
        write_peft(model, params, partial, dtype=dtype)
        notes = write_tokenizer(run, partial)
        _finish(partial, folder)
        return [
            f"{folder}: adapters of rank {model.lora.rank} after {step} updates, {dtype}; they "
            f"belong to {model.source or 'a model from scratch, in ' + str(workdir / 'base')}",
            *notes,
        ]
    params = merged_params(model, params, model.dtype)
    files = write_checkpoint(base_model(model), params, partial, dtype=dtype)
    values, notes = _config(model, dtype)
    (partial / CONFIG).write_text(json.dumps(values, indent=2) + "\n")
    notes += write_tokenizer(run, partial)
    _finish(partial, folder)
    return [
        f"{folder}: {values['architectures'][0]} after {step} updates, {dtype}, {len(files)} "
        f"file{'s' * (len(files) > 1)} of weights",
        *notes,
    ]


def _finish(partial: Path, folder: Path) -> None:
    """Rename the finished folder into place, durably."""
    durable.sync_tree(partial)
    durable.replace(partial, folder)


def _config(model: ModelConfig, dtype: str) -> tuple[dict[str, Any], list[str]]:
    """Return config.json: the source's own where it still holds, with the keys only it has."""
    values = to_huggingface(model)
    notes: list[str] = []
    if model.source:
        try:
            theirs = source_config(model.source)
            fields = from_huggingface(theirs, CONFIG)
        except ConfigError as error:
            notes.append(f"config.json is made from the run's own record: {error}")
        else:
            fields["tie_embeddings"] = model.tie_embeddings  # the weights may have known better
            same = all(getattr(model, name) == value for name, value in fields.items())
            if same and theirs["model_type"] == model.family:
                values = {
                    **_with_attention_factor(theirs, model),
                    "architectures": theirs.get("architectures") or values["architectures"],
                    "tie_word_embeddings": model.tie_embeddings,
                }
    values = {k: v for k, v in values.items() if k not in ("torch_dtype", "dtype")}
    return {**values, "torch_dtype": dtype}, notes


def _with_attention_factor(values: dict[str, Any], model: ModelConfig) -> dict[str, Any]:
    """Add `attention_factor`, which all readers know: transformers ignores `attn_factor`."""
    name = next((n for n in ("rope_scaling", "rope_parameters") if values.get(n)), "")
    if "attn_factor" not in values.get(name, {}):
        return values
    return {**values, name: {**values[name], "attention_factor": model.rope_attention_factor}}


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser.parser("export", __doc__)
    parser.add_argument("--workdir", required=True, help="folder of a run, finished or not")
    parser.add_argument("--to", required=True, help="folder to write; must not exist")
    parser.add_argument("--step", type=int, help="updates made; the newest checkpoint if not given")
    parser.add_argument("--dtype", default="bfloat16", choices=get_args(Dtype))
    parser.add_argument("--adapter", action="store_true", help="adapters alone, for PEFT")
    parser.add_argument("--push", default="", help="OWNER/NAME on the hub, to upload it to")
    parser.add_argument("--public", action="store_true", help="with --push: for all to see")
    arguments = parser.parse_args(argv)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # accelerators are a run's that may be alive
    logging.set_verbosity(logging.ERROR)  # JAX and Orbax have much to say
    try:
        if arguments.public and not arguments.push:
            raise ConfigError("--public says how --push uploads; give --push=OWNER/NAME")
        push = Push(arguments.push, public=arguments.public) if arguments.push else None
        lines = export(
            arguments.workdir,
            arguments.to,
            step=arguments.step,
            dtype=arguments.dtype,
            adapter=arguments.adapter,
        )
        print("\n".join(lines), flush=True)
        if push is not None:
            what = lines[0].partition(": ")[2].partition(";")[0]  # and nothing of this host
            push.upload(Path(arguments.to), what, lambda line: print(line, flush=True))
    except Exception as error:
        if line := exhausted(error):
            raise SystemExit(f"error: {line}") from None
        if not (isinstance(error, OSError) or type(error).__module__.startswith("rlboost_")):
            raise
        exits.leave(f"error: {error}", exits.MISTAKE)


if __name__ == "__main__":
    main()
