"""Every reader of files that others wrote, given every content and place of `files.py`.

What comes of it is a value, which a reader falls back to by design, or an error in one short line
that names the file. `test_no_reader_is_left_out` finds the readers in the product's own text.
"""

import ast
import base64
import contextlib
import datetime
import io
import json
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from configs import base
from configs.sim import base as simulation
from rlboost_jax.cli import logits
from rlboost_jax.data import csv_rows, exported_tokenizer, json_rows, table_rows, text_rows
from rlboost_jax.data.dataset_rows import open_rows
from rlboost_jax.data.row import BrokenRow
from rlboost_jax.data.tokenizers import open_tokenizer
from rlboost_jax.environments.builtin.corpus import Corpus, NoCorpus
from rlboost_jax.environments.player import example_of
from rlboost_jax.learner.checkpoints import run_copies
from rlboost_jax.learner.checkpoints.reading import read_extra
from rlboost_jax.learner.checkpoints.run_copies import read_list
from rlboost_jax.manager.service.page.page_certificate import former_port
from rlboost_jax.models.checkpoint_reader import read_checkpoint
from rlboost_jax.models.checkpoint_writer import write_checkpoint
from rlboost_jax.models.params import init_params
from rlboost_jax.observe import events_file, metrics, summary
from rlboost_jax.observe.alert_process import _url_of
from rlboost_jax.observe.comparing.compared_page import comparison_page
from rlboost_jax.observe.comparing.compared_run import compared_runs
from rlboost_jax.observe.comparing.side_by_side import text_lines
from rlboost_jax.observe.page.run_view import RunView
from rlboost_jax.platform import at_rest
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.platform.object_store import ObjectStore, StoreFailed
from rlboost_jax.providers.price_command import prices_in
from rlboost_jax.providers.server_files import ServerFiles
from rlboost_jax.qualification import cache as verdicts
from rlboost_jax.qualification.trial_records import KernelVerdict, Trial
from rlboost_jax.rewards.code import cases
from rlboost_jax.rewards.http_rewards import _found_in
from rlboost_jax.rewards.references import alternatives, listed
from rlboost_jax.rewards.reward_frames import RewardJob, RewardResponse
from rlboost_jax.rollout.notices import aws_notices, metadata_server
from rlboost_jax.settings.config_loading import (
    read_changes,
    read_origin,
    read_run_config,
    read_run_id,
    run_config,
    to_dict,
    write_run_config,
)
from rlboost_jax.settings.gguf.container import read_container
from rlboost_jax.settings.huggingface.adapter_config import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    adapter_fields,
)
from rlboost_jax.settings.huggingface.config import to_huggingface
from rlboost_jax.settings.huggingface.generation import GENERATION, end_ids, end_texts
from rlboost_jax.settings.huggingface.sources import source_fields
from rlboost_jax.settings.huggingface.tensor_files import INDEX, SINGLE, TensorFiles
from rlboost_jax.settings.traces import read_trace
from rlboost_jax.simulator.market.availability import read_availability
from rlboost_jax.simulator.plan.price_list import EXAMPLE_FILE, read_prices
from rlboost_jax.simulator.sim_config_loading import sim_config
from rlboost_jax.trust import authority, credentials, seal
from rlboost_jax.trust.run_files import read_record, token_of
from rlboost_jax.trust.seal import read_seal_key
from tests.hostile import files
from tests.patience import PATIENCE_SECONDS
from tests.settings.test_huggingface import PUBLISHED
from tests.small import small_model

PRODUCT = Path(__file__).resolve().parents[2] / "rlboost_jax"
LONGEST = 2_000  # characters of a line


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One kind of file and who reads it.

    Attributes:
        sites: module:function of the product by which the file is opened or decoded.
        good: what it accepts; contents of `files` stand in its place.
        read: is given the file's path.
        values: whose places in an object take odd values, one at a time.
        strict: nonsense and what is no object are refused. Else the reader may take or skip them.
        raises: besides `Mistake`.
        said: what a line names, if not the file.
        places: what the file may be instead, where the reader opens it.
        more: contents of its own.
    """

    sites: tuple[str, ...]
    name: str
    read: Callable[[Path], Any]
    good: bytes | Callable[[], bytes]
    values: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)
    strict: bool = True
    raises: tuple[type[Exception], ...] = ()
    said: str = ""
    places: tuple[str, ...] = tuple(files.PLACES)
    lines: bool = False  # a mistake has a line each
    prepare: Callable[[Path], object] = lambda folder: None
    more: Callable[[], Iterator[tuple[str, bytes]]] = lambda: iter(())


def of_object(values: Mapping[str, Any], **other: Any) -> dict[str, Any]:
    return {"good": json.dumps(values).encode(), "values": values, **other}


def text_of(path: Path) -> str:
    """For readers of texts that come by another way."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


def a_run(folder: Path) -> None:
    """Besides the file: the configuration of a run."""
    write_run_config(folder, run_config(base.get_config()), "f00d")


def compared(path: Path) -> None:
    """A run beside itself, in all that is made of it."""
    runs = compared_runs([path.parent, path.parent])
    assert list(text_lines(runs)) and comparison_page(runs)


def copies_beside(path: Path) -> ObjectStore:
    """A store of copies in which the file is what a run has put there."""
    store = ObjectStore(f"file://{path.parent}/store", setting="test")
    store.put("run.json", path.read_bytes())
    store.put("copies/1.json", path.read_bytes())
    return store


COPY = {"run_id": "f00d", "step": 1, "files": {"config.json": [1, "0" * 64]}}
QWEN = PUBLISHED["Qwen3-8B"][1]
RUN = to_dict(run_config(base.get_config()))
MODEL = small_model(tie_embeddings=True, qk_norm=False)
DATA = run_config(base.get_config()).data
GGUF = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
TOKENIZER: dict[str, dict[str, Any]] = {
    "tokenizer.json": {
        "version": "1.0",
        "added_tokens": [
            {
                **{"id": 2, "content": "<end>", "special": True, "normalized": False},
                **{"single_word": False, "lstrip": False, "rstrip": False},
            }
        ],
        "pre_tokenizer": {"type": "Whitespace"},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
    },
    "tokenizer_config.json": {
        **{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"},
        **{"model_max_length": 64, "chat_template": "{{ messages }}", "clean_up": False},
    },
}
ORIGIN = {"workdir": "/runs/one", "run_id": "f00d", "step": 3}
LORA = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
TABLE = "model.embed_tokens.weight"
JOB = RewardJob(
    prompt="p",
    responses=(RewardResponse(completion="c", completion_ids=(1,), finished=True),),
    columns={},
)
RECORD = {
    **{"address": "10.0.0.1:80", "local_address": "127.0.0.1:80", "join": "/join"},
    **{"pid": 1, "started": "1", "run_id": "f00d", "weights_port": 81},
}


@cache
def tensors() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(MODEL, init_params(MODEL, 0), Path(folder), dtype="float32")
        return (Path(folder) / SINGLE).read_bytes()


@cache
def adapter() -> bytes:
    return save({LORA.format(each): np.ones((4, 4), np.float32) for each in "AB"})


def described_model(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(to_huggingface(MODEL)))


def whole_checkpoint(path: Path) -> None:
    fields = source_fields(str(path.parent))  # by the head in the weights, if they can be read
    read_checkpoint(replace(MODEL, tie_embeddings=fields["tie_embeddings"]), path.parent)


def rows(path: Path) -> int:
    """How many rows are sound."""
    found = open_rows(str(path), "auto", subset="", split="", columns=("question",))
    sound = 0
    for index in range(len(found)):
        with contextlib.suppress(BrokenRow):
            sound += bool(found[index])
    return sound


def page(path: Path) -> None:
    view = RunView(path.parent)
    try:
        view.poll()
        view.now()
    finally:
        view.close()


def record(path: Path) -> object:
    found = read_record(path.parent)
    return None if found is None else (found.port, found.lives)


def at_rest_config(path: Path) -> None:
    for read in (read_run_config, read_run_id, read_changes, read_origin):
        read(path)


def calibration(path: Path) -> None:
    config = simulation.get_config()
    config.calibration = str(path)
    sim_config(config)


def answer(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", "replace")
    metadata_server.decode(
        metadata_server.MetadataAnswer(status=200, text=text, headers={}, at=0.0),
        aws_notices.Action,
    )


def join_word(path: Path) -> None:
    word = base64.b64encode(path.read_bytes()).decode()
    credentials.read_credentials(None, {credentials.JOIN_VARIABLE: word})


def tokenizer_files(folder: Path) -> None:
    for name, values in TOKENIZER.items():
        (folder / name).write_text(json.dumps(values))


def tokenizer(path: Path) -> None:
    pytest.importorskip("transformers")
    opened = open_tokenizer(replace(DATA, tokenizer=str(path.parent)))
    opened.encode(["a b"], chat=False)


def joined(folder: Path) -> dict[str, str]:
    """Files of a manager's own making."""
    for name in ("join", "trainer"):
        (folder / name).mkdir()
        token_of(folder / name)
    authority.prepare(
        authority=folder / "authority",
        servers=folder / "join",
        trainer=folder / "trainer",
        names=(),
        now=datetime.datetime.now(datetime.UTC),
    )
    seal.prepare_seal(folder / "trainer", [folder / "join"])
    return {name: (folder / "join" / name).read_text() for name in credentials.JOIN_FILES}


@cache
def credentials_made() -> Mapping[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        made = joined(Path(folder))
        return {**made, "seal.key": (Path(folder) / "trainer" / "seal.key").read_text()}


def join_folder(folder: Path) -> None:
    for name in credentials.JOIN_FILES:
        (folder / name).write_text(credentials_made()[name])


def parquet(texts: Sequence[str] = ("a", "b")) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    written = pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    written.write_table(pyarrow.table({"question": texts}), file)
    return file.getvalue()


def verdict() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "verdict.json"
        trials = (Trial(candidate="c", outcome="crashed"),)
        said = verdicts.keep(
            path, {"a": 1}, KernelVerdict(platform="cpu", device="d", trials=trials)
        )
        assert not said
        return path.read_bytes()


@cache
def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros((2, 3), np.int32))
    return file.getvalue()


def odd_arrays() -> Iterator[tuple[str, bytes]]:
    """Headers that take NumPy a while."""
    for shape in ("(2**62, 2**62)", "(4611686018427387904,)", "(-1, 3)", "('a',)", "(2, " * 900):
        header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': {shape}}}"
        for text in (header, header.replace("<i4", "O"), "[" * 9_000):
            size = len(text).to_bytes(2, "little")
            yield f"a header of {text[:60]}", b"\x93NUMPY\x01\x00" + size + text.encode()


def cut(whole: bytes) -> Iterator[tuple[str, bytes]]:
    for share in (0.1, 0.5, 0.9):
        yield f"cut off at {share:.0%}", whole[: int(len(whole) * share)]
    for at in range(4, len(whole), max(1, len(whole) // 40)):
        yield f"byte {at} changed", whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]


ROWS = b'{"question": "a"}\n{"question": "b"}\n'
SKY = json.dumps({"metadata": {"gap_seconds": 60}, "data": [1, 2]}).encode()
ROW_SITES = (
    "data/text_rows.py:TextRows.__init__",
    "data/text_rows.py:TextRows._read",
    "data/text_rows.py:_decompressing",
)
OF_LINES = tuple(place for place in files.PLACES if "terabyte" not in place)  # it reads on and on
LINES = ("observe/json_lines.py:read_lines", "observe/json_lines.py:decoded")
HUGGINGFACE = "settings/huggingface/"

READERS: dict[str, Reader] = {
    # a checkpoint's folder
    "config.json": Reader(
        sites=(f"{HUGGINGFACE}sources.py:_values",),
        name="config.json",
        read=lambda path: source_fields(str(path.parent)),
        **of_object({**QWEN, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ),
    "generation_config.json": Reader(
        sites=(f"{HUGGINGFACE}generation.py:generation_values",),
        name=GENERATION,
        read=lambda path: (end_ids(path.parent), end_texts(path.parent)),
        **of_object({"eos_token_id": [1, 2], "stop_strings": ["x"], "temperature": 1.0}),
    ),
    "adapter_config.json": Reader(
        sites=(f"{HUGGINGFACE}adapter_config.py:adapter_fields",),
        name=ADAPTER_CONFIG,
        read=lambda path: adapter_fields(str(path.parent)),
        prepare=lambda folder: (folder / ADAPTER_WEIGHTS).write_bytes(adapter()),
        **of_object(
            {
                **{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_rslora": False},
                **{"bias": "none", "rank_pattern": {}, "init_lora_weights": True},
                **{"target_modules": ["q_proj"], "use_dora": False, "lora_dropout": 0.0},
            }
        ),
    ),
    "adapter's tensors": Reader(
        sites=(f"{HUGGINGFACE}tensor_files.py:TensorFiles._handle",),
        name=ADAPTER_WEIGHTS,
        read=lambda path: adapter_fields(str(path.parent)),
        prepare=lambda folder: (folder / ADAPTER_CONFIG).write_text('{"peft_type": "LORA"}'),
        good=adapter,
        more=lambda: files.of_tensors(adapter(), LORA.format("A")),
    ),
    "index of tensors": Reader(
        sites=(f"{HUGGINGFACE}tensor_files.py:TensorFiles._find",),
        name=INDEX,
        read=lambda path: TensorFiles(path.parent).close(),
        prepare=lambda folder: (folder / "a.safetensors").write_bytes(tensors()),
        **of_object({"metadata": {"total_size": 1}, "weight_map": {TABLE: "a.safetensors"}}),
    ),
    "tensors": Reader(
        sites=(f"{HUGGINGFACE}tensor_files.py:TensorFiles._handle",),
        name=SINGLE,
        read=whole_checkpoint,
        prepare=described_model,
        good=tensors,
        more=lambda: files.of_tensors(tensors(), TABLE),
    ),
    "a GGUF file": Reader(
        sites=("settings/gguf/container.py:_read",),
        name="model.gguf",
        read=read_container,
        good=GGUF,
        more=lambda: iter(
            (name, GGUF[:8] + counts)
            for name, counts in {
                "2^63 tensors": struct.pack("<QQ", 2**63, 0),
                "2^63 keys": struct.pack("<QQ", 0, 2**63),
                "a key of 2^60 bytes": struct.pack("<QQQ", 0, 1, 2**60),
            }.items()
        ),
    ),
    **{
        name: Reader(
            sites=(
                "data/tokenizers.py:HuggingFaceTokenizer.__init__",
                "data/tokenizers.py:_check_files",
                "data/token_bytes.py:bytes_of_tokens",
            ),
            name=name,
            read=tokenizer,
            said="{folder}",
            strict=name == "tokenizer.json",  # from the other transformers takes what it can
            prepare=tokenizer_files,
            **of_object(values),
        )
        for name, values in TOKENIZER.items()
    },
    "tokenizer_config.json of an export": Reader(
        sites=("data/exported_tokenizer.py:_object", "data/exported_tokenizer.py:_template"),
        name="tokenizer_config.json",
        read=lambda path: (
            exported_tokenizer._object(path),
            exported_tokenizer._template(path.parent),
        ),
        strict=False,
        **of_object(TOKENIZER["tokenizer_config.json"]),
    ),
    # a run's folder
    "config.json of a run": Reader(
        sites=("settings/config_loading.py:_read",),
        name="config.json",
        read=at_rest_config,
        lines=True,
        good=json.dumps({**RUN, "run_id": "f00d", "changes": [], "fork": ORIGIN}).encode(),
        values={"run_id": "f00d", "changes": [], "fork": ORIGIN, "seed": 0, "algorithm": {}},
    ),
    "a sealed file": Reader(
        sites=("platform/durable.py:read_object", "platform/at_rest.py:is_sealed"),
        name="data.json",
        read=lambda path: (at_rest.read_sealed(path, "bring it back"), at_rest.is_sealed(path)),
        **of_object({"digest": "f00d", "rows": 3}),
    ),
    "copies/STEP.json": Reader(
        sites=("learner/checkpoints/run_copies.py:read_list",),
        name="1.json",
        read=lambda path: read_list(copies_beside(path), 1),
        good=json.dumps(at_rest.sealed(COPY)).encode(),
        places=(),  # a store has objects
    ),
    "run.json": Reader(
        sites=("learner/checkpoints/run_copies.py:_run_of",),
        name="run.json",
        read=lambda path: run_copies._run_of(copies_beside(path)),
        places=(),
        raises=(StoreFailed,),
        **of_object({"run_id": "f00d"}),
    ),
    "digests.json": Reader(
        sites=("platform/durable.py:read_object",),
        name=at_rest.FILE,
        read=lambda path: at_rest.described(path.parent),
        **of_object(at_rest.sealed({"files": {"a": [1, "00"]}})),
    ),
    "values of a checkpoint": Reader(
        sites=("learner/checkpoints/reading.py:read_extra",),
        name="1/extra/metadata",
        read=lambda path: read_extra(path.parents[2], 1),
        said="checkpoint 1",
        **of_object({"step": 1}),
    ),
    "metrics.jsonl": Reader(
        sites=LINES,
        name=metrics.FILE,
        read=lambda path: metrics.read_metrics(path.parent),
        good=b'{"step": 0}\n',
        strict=False,
        places=OF_LINES,
    ),
    "metrics.jsonl of a run that is compared": Reader(
        sites=LINES,
        name=metrics.FILE,
        read=compared,
        prepare=a_run,
        strict=False,
        **of_object(
            {"step": 0, "params_digest": "f00d", "reward_mean": 0.5, "loss": 0.1, "final": False},
            places=OF_LINES,
        ),
    ),
    "fingerprints.json of a run that is compared": Reader(
        sites=("platform/durable.py:read_object",),
        name="fingerprints.json",
        read=compared,
        prepare=a_run,
        strict=False,
        **of_object({"engines": [{"step": 0, "fingerprint": "jax1"}], "releases": []}),
    ),
    "events.jsonl": Reader(
        sites=LINES,
        name=events_file.FILE,
        read=lambda path: events_file.read_events(path.parent),
        good=b'{"step": 0}\n',
        strict=False,
        places=OF_LINES,
    ),
    "metrics.jsonl on the page": Reader(
        sites=(
            "observe/page/file_tail.py:FileTail._open",
            "observe/page/sample_index.py:SampleIndex._read",
        ),
        name=metrics.FILE,
        read=page,
        strict=False,
        **of_object({"step": 0, "time": 1.0, "reward_mean": 0.5, "cost_dollars": 1.0}),
    ),
    "events.jsonl on the page": Reader(
        sites=("observe/page/file_tail.py:FileTail._open",),
        name=events_file.FILE,
        read=page,
        strict=False,
        **of_object({"time": 1.0, "step": 0, "kind": "joined", "instance": "a", "detail": {}}),
    ),
    "summary.json": Reader(
        sites=("observe/summary.py:read_summary",),
        name=summary.FILE,
        read=lambda path: summary.read_summary(path.parent),
        strict=False,
        **of_object(asdict(summary.summarize([], reserved_price_per_hour=1.0))),
    ),
    "a server's note": Reader(
        sites=("providers/server_files.py:ServerFiles.find", "providers/server_files.py:_parse"),
        name="servers/a",
        read=lambda path: ServerFiles(path.parent).find("a"),
        strict=False,
        **of_object({"nonce": "n", "pid": 2**22, "started": "1"}),
    ),
    "manager.json": Reader(
        sites=("trust/run_files.py:read_record",),
        name="manager.json",
        read=record,
        strict=False,
        **of_object(RECORD),
    ),
    "a manager's token": Reader(
        sites=("trust/run_files.py:token_of",),
        name="join/token",
        read=lambda path: None if path.is_dir() else token_of(path.parent),
        strict=False,
        good=b"token",
    ),
    "a manager's certificate": Reader(
        sites=("trust/authority.py:_load",),
        name="ca.pem",
        read=lambda path: authority._load(path, path),
        strict=False,
        good=b"",
    ),
    "the page's address": Reader(
        sites=("manager/service/page/page_certificate.py:_address",),
        name="page/url",
        read=lambda path: former_port(path.parents[1]),
        strict=False,
        good=b"https://127.0.0.1:80/#token",
    ),
    "the seal's key": Reader(
        sites=("trust/seal.py:read_seal_key",),
        name="seal.key",
        read=lambda path: read_seal_key(path.parent),
        raises=(ValueError,),
        said="",
        good=lambda: credentials_made()["seal.key"].encode(),
    ),
    "a verdict on kernels": Reader(
        sites=("qualification/cache.py:kept",),
        name="verdict.json",
        read=lambda path: verdicts.kept(path, {"a": 1}, KernelVerdict),
        strict=False,
        good=verdict,
        values={"key": {"a": 1}, "digest": "", "verdict": {"platform": "", "trials": []}},
    ),
    "a webhook's address": Reader(
        sites=("observe/alert_process.py:_url_of",),
        name="url",
        read=_url_of,
        raises=(ValueError,),
        said="",
        good=b"https://127.0.0.1/",
    ),
    # what lets a server in
    "a join word": Reader(
        sites=("trust/credentials.py:_unpack",),
        name="word",
        read=join_word,
        raises=(credentials.CredentialsUnusable,),
        said=credentials.JOIN_VARIABLE,
        places=(),
        good=lambda: json.dumps(credentials_made()).encode(),
        values=lambda: {name: credentials_made()[name] for name in credentials.JOIN_FILES},
    ),
    **{
        f"join/{name}": Reader(
            sites=("trust/credentials.py:_token", "trust/credentials.py:_seal_check"),
            name=name,
            read=lambda path: credentials.read_credentials(path.parent, {}),
            raises=(credentials.CredentialsUnusable,),
            said="{folder}",
            prepare=join_folder,
            good=lambda name=name: credentials_made()[name].encode(),
            strict=name != credentials.TOKEN_FILE,
            places=tuple(files.PLACES) if name in ("token", "seal.pub") else (),
        )
        for name in credentials.JOIN_FILES
    },
    # data
    "rows in lines": Reader(
        sites=(*ROW_SITES, "data/json_rows.py:json_object"),
        name="rows.jsonl",
        read=rows,
        strict=False,
        good=ROWS,
    ),
    "rows in an array": Reader(
        sites=(*ROW_SITES, "data/json_rows.py:_Text.__init__"),
        name="rows.json",
        read=rows,
        strict=False,
        good=b'[{"question": "a"}]',
        more=lambda: iter([("an array without end", b'[{"question": "' + b"x" * 300_000)]),
    ),
    **{
        f"rows of {ending}": Reader(
            sites=ROW_SITES, name=f"rows.{ending}", read=rows, strict=False, good=b"question\na\n"
        )
        for ending in ("csv", "tsv")
    },
    **{
        f"rows in {ending}": Reader(
            sites=ROW_SITES,
            name=f"rows.jsonl{ending}",
            read=rows,
            strict=False,
            good=content,
            more=lambda content=content, ending=ending: (
                *cut(content),
                ("a bomb", files.packed(b'{"question": "' + b"0" * 2**24)[ending]),
            ),
        )
        for ending, content in files.packed(ROWS).items()
    },
    "Parquet": Reader(
        sites=("data/table_rows.py:ParquetRows.__init__",),
        name="rows.parquet",
        read=rows,
        strict=False,
        good=parquet,
        more=lambda: iter((*cut(parquet()), ("a bomb", parquet(["0" * 1000] * 100_000)))),
    ),
    "ArrayRecord": Reader(
        sites=("data/table_rows.py:ArrayRecords.__init__",),
        name="rows.arrayrecord",
        read=rows,
        strict=False,
        good=b"",
        places=(),  # its library opens it, and `_files` takes regular files alone
    ),
    "an example to play": Reader(
        sites=("environments/player.py:example_of",),
        name="example",
        read=lambda path: example_of(run_config(base.get_config()), text_of(path)),
        said="--example",
        places=(),
        good=b'{"index": 1}',
    ),
    "a corpus to search": Reader(
        sites=(
            "environments/builtin/corpus.py:Corpus._opened",
            "environments/builtin/corpus.py:Corpus.__init__",
        ),
        name="corpus",
        read=Corpus,
        raises=(NoCorpus,),
        good=b"",
    ),
    "tokens": Reader(
        sites=("cli/logits.py:_read",),
        name="tokens.npy",
        read=lambda path: logits._read(str(path)),
        good=array,
        more=lambda: iter([*cut(array()), *odd_arrays()]),
    ),
    # rewards
    "a reference": Reader(
        sites=("rewards/references.py:listed", "rewards/references.py:_members"),
        name="reference",
        read=lambda path: (alternatives(text_of(path)), listed(text_of(path))),
        raises=(ValueError,),
        said="",
        strict=False,
        places=(),
        good=b'["a", "b"]',
    ),
    "tests of programs": Reader(
        sites=("rewards/code.py:cases",),
        name="tests",
        read=lambda path: cases(text_of(path)),
        raises=(ValueError,),
        said="",
        strict=False,
        places=(),
        **of_object({"inputs": ["1"], "outputs": ["2"], "type": "stdin"}),
    ),
    "a test of a program": Reader(
        sites=("rewards/code.py:cases",),
        name="tests",
        read=lambda path: cases(b"[" + path.read_bytes() + b"]"),
        raises=(ValueError,),
        said="",
        strict=False,
        places=(),
        **of_object({"input": "1", "output": "2", "testtype": "stdin"}),
    ),
    "an answer of a reward service": Reader(
        sites=("rewards/http_rewards.py:_found_in",),
        name="answer",
        read=lambda path: _found_in(path.read_bytes(), JOB),
        strict=False,
        places=(),
        **of_object({"rewards": [1.0]}),
    ),
    # fleets, prices and traces
    "prices of a command": Reader(
        sites=("providers/price_command.py:prices_in",),
        name="prices",
        read=lambda path: prices_in(text_of(path)),
        raises=(ValueError,),
        said="",
        strict=False,
        places=(),
        **of_object({"spot": 1.5}),
    ),
    "an answer of a cloud": Reader(
        sites=("rollout/notices/metadata_server.py:decode",),
        name="answer",
        read=answer,
        raises=(metadata_server.NoAnswer,),
        said="Action",
        places=(),
        **of_object({"action": "stop", "time": "2026-01-01T00:00:00Z"}),
    ),
    "a price list": Reader(
        sites=("simulator/plan/price_list.py:read_prices",),
        name="prices.toml",
        read=read_prices,
        lines=True,
        good=EXAMPLE_FILE.read_bytes(),
        more=lambda: iter(
            (name, text.encode())
            for name, text in {
                "a deep list": "date = " + "[" * files.DEEP,
                "many digits": "date = " + "9" * 10**6,
                "no list of tables": "instances = 3",
                "a table for a price": "[[instances]]\nname = 'a'\n[instances.price_per_hour]",
            }.items()
        ),
    ),
    "a trace": Reader(
        sites=("settings/traces.py:read_trace",),
        name="trace.csv",
        read=read_trace,
        good=b"0,add,a\n",
    ),
    **{
        f"a trace of {form}": Reader(
            sites=("simulator/market/availability.py:read_availability",),
            name="trace",
            read=lambda path, form=form: read_availability(path, form),
            good=good,
        )
        for form, good in {
            "bamboo": b"0,add,a\n",
            "parcae": b"0,2\n",
            "gcp": b"2024-01-01, 00:00:00, 1\n",
        }.items()
    },
    "a trace in JSON": Reader(
        sites=("simulator/market/availability.py:_json_counts",),
        name="trace",
        read=lambda path: read_availability(path, "skypilot"),
        good=SKY,
        values=json.loads(SKY),
    ),
    "a calibration": Reader(
        sites=("simulator/sim_config_loading.py:calibrated",),
        name="calibration.json",
        read=calibration,
        lines=True,
        said="",
        raises=(ValueError,),
        **of_object({"settings": {"engine": {"slots": 8}}}),
    ),
}


def outcome(reader: Reader, path: Path, *, refused: bool = False) -> str:
    """What is wrong with what came of reading a file; "" where nothing is.

    Args:
        refused: it has to be.
    """
    try:
        reader.read(path)
    except (Mistake, *reader.raises) as error:
        lines = str(error).split("\n")
        if len(lines) > 1 and not reader.lines:
            return f"{len(lines)} lines: {str(error)[:300]!r}"
        said = (reader.said or path.name).format(folder=path.parent)
        for line in lines:
            if not line.isprintable() or len(line) > LONGEST:
                return f"no line: {line[:300]!r} ({len(line):,} characters)"
            if said not in line and (reader.said or not reader.raises):
                return f"names no file: {line[:300]}"
        return ""
    except OSError as error:
        named = str(error.filename) == str(path)
        return "" if named else f"names no file: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return "it is taken for good" if refused else ""


def contents(reader: Reader) -> Iterator[tuple[str, bytes]]:
    yield from {**files.NONSENSE, **files.NO_OBJECT}.items()
    if reader.values:
        whole = json.loads(reader.good if isinstance(reader.good, bytes) else reader.good())
        values = reader.values() if callable(reader.values) else reader.values
        for name, text in files.changed(values):
            yield name, json.dumps({**whole, **json.loads(text)}).encode()
    yield from reader.more()


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bombs need not be as large as what they are to exceed."""
    for module, name in (
        *((text_rows, "MAX_UNPACKED"), (json_rows, "MAX_ROW"), (csv_rows, "MAX_CELL")),
        (table_rows, "MAX_TABLE"),
    ):
        monkeypatch.setattr(module, name, 2**18)


def place_of(reader: Reader, folder: Path) -> Path:
    path = folder / reader.name
    path.parent.mkdir(parents=True, exist_ok=True)
    reader.prepare(folder)
    return path


@pytest.mark.parametrize("name", READERS)
def test_a_hostile_file_is_a_line_or_passed_over(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    path = place_of(reader, tmp_path)
    path.write_bytes(reader.good if isinstance(reader.good, bytes) else reader.good())
    if path.read_bytes():
        reader.read(path)  # whole as it is, so that all else is due to what is changed
    wrong = {}
    for what, content in contents(reader):
        path.write_bytes(content)
        nonsense = what in files.NONSENSE or what in files.NO_OBJECT
        if problem := outcome(reader, path, refused=reader.strict and nonsense):
            wrong[what] = problem
    assert not wrong, "\n".join(f"{what}: {problem}" for what, problem in wrong.items())


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name in READERS for place in READERS[name].places]
)
def test_what_is_no_file_is_a_line_or_passed_over(name: str, place: str, tmp_path: Path) -> None:
    """Nobody waits for a FIFO's writer, or for the end of what has none."""
    reader = READERS[name]
    path = place_of(reader, tmp_path)
    path.unlink(missing_ok=True)
    files.PLACES[place](path)
    problems: list[str] = []
    thread = threading.Thread(target=lambda: problems.append(outcome(reader, path)), daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert problems == [""], problems or "it waits for ever"


# Calls that open or decode what is there already, and whose they are where a name is not enough.
OPENS = frozenset(
    (
        *("read_text", "read_bytes", "open_regular", "check_size", "safe_open", "safe_load"),
        *("ParquetFile", "ArrayRecordDataSource", "load_from_disk", "load_dataset", "read_array"),
        *("from_pretrained", "JSONDecoder"),
    )
)
OF_MODULES = {
    "foreign_json": ("read", "decode"),
    "json": ("load", "loads", "decode", "Decoder"),
    "tomllib": ("load", "loads"),
    "sqlite3": ("connect",),
    **dict.fromkeys(("gzip", "bz2", "lzma"), ("open",)),
}


def sites() -> Iterator[str]:
    """module:function of the product for each place that opens or decodes a file."""
    for path in sorted(PRODUCT.rglob("*.py")):
        file = path.relative_to(PRODUCT).as_posix()
        yield from (f"{file}:{name}" for name in _opening(ast.parse(path.read_text()), ""))


def _opening(node: ast.AST, name: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        is_scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inner = f"{name}.{child.name}".strip(".") if is_scope else name
        if isinstance(child, ast.Call) and _opens(child):
            yield name
        yield from _opening(child, inner)


def _opens(call: ast.Call) -> bool:
    function = call.func
    called = getattr(function, "attr", getattr(function, "id", ""))
    value = getattr(function, "value", None)
    owner = getattr(value, "attr", getattr(value, "id", ""))
    if called == "open" and (isinstance(function, ast.Name) or owner in ("path", "file", "target")):
        given = (*call.args, *(each.value for each in call.keywords if each.arg == "mode"))
        texts = [each.value for each in given if isinstance(each, ast.Constant)]
        return not any(isinstance(each, str) and set(each) & set("wax+") for each in texts)
    return called in OPENS or called in OF_MODULES.get(owner, ())


# Readers that are given nothing of `files`, and why.
EXEMPT: dict[str, str] = {
    site: reason
    for reason, found in {
        "it runs without the package": (
            *(
                "cli/bootstrap.py:main",
                "environments/builtin/cells.py:main",
                "cli/wheelhouse.py:script",
            ),
            "workers/template_child.py:_rendered",
            *("workers/sandbox_child.py:main", "workers/apart/verdict_process.py:main"),
            *(
                "workers/apart/plain_values.py:Line.receive",
                "workers/apart/program_process.py:main",
            ),
        ),
        "lines of a process that this one has started": (
            *("learner/processes/bulletin.py:Bulletin._exchanged", "workers/sandbox.py:"),
            "learner/processes/process_group.py:tell_all",
            *("qualification/child_process.py:_listen", "qualification/trial.py:main"),
            "rollout/sharing/tenant_protocol.py:",
        ),
        "lines of this user's servers: tests/rollout/sharing/test_neighbours.py": (
            "rollout/sharing/neighbour_protocol.py:",
        ),
        "what this process has encoded just now": (
            *("settings/changes.py:recorded", "platform/at_rest.py:_digest_of"),
            *("environments/hosted.py:_messages", "environments/adapters/verifiers.py:_config"),
            "environments/adapters/verifiers_harness.py:_called",
        ),
        "settings of the user's, which the command line or the configuration has decoded": (
            "environments/adapters/reasoning_gym.py:_dataset",
            "environments/adapters/tinker_cookbook.py:_builder",
        ),
        "the system's own": (
            *(
                "platform/compile_cache.py:_processor",
                "engine/fingerprint.py:_cpu",
                "platform/processor.py:processor_name",
                "engine/device_memory.py:_read",
            ),
            *("engine/fingerprint.py:_xla_flags", "platform/huge_pages.py:_policy"),
            *(
                "platform/process_liveness.py:_boot",
                "platform/process_liveness.py:_command",
                "rewards/forked_call.py:children",
            ),
            *("platform/process_liveness.py:is_stopped", "platform/process_liveness.py:start_time"),
            *("qualification/machine.py:_device", "qualification/machine.py:_digest_of"),
        ),
        "shipped with the package": (
            *("environments/builtin/python_tool.py:", "observe/page/assets.py:asset"),
            *("cli/plan.py:main", "settings/shipped.py:file_of", "settings/shipped.py:first_line"),
            *(
                "settings/shipped.py:main",
                "settings/shipped.py:shipped",
                "cli/completion.py:options",
            ),
        ),
        "bytes that are compared, copied or hashed, and never decoded": (
            *("platform/at_rest.py:_digest_of_file", "platform/durable.py:keep"),
            *("platform/outside_code.py:digest_of", "rollout/row_verdicts.py:_digest_of"),
            *("weights/compiled.py:offer", "weights/shares.py:_file_entry"),
            *(
                "weights/serve.py:_read",
                "weights/stored_versions.py:StoredVersions._put",
                "weights/wheels.py:Wheelhouse.entries",
                "learner/checkpoints/forking.py:bring",
                "learner/checkpoints/run_copies.py:RunCopies._blocks",
            ),
            *(
                "environments/builtin/corpus.py:build",
                "settings/gguf/stand_in.py:_name",
                "platform/private_paths.py:open_private",
            ),
        ),
        "sealed by this run's key before anything is read": (
            *("weights/compiled.py:_known", "weights/piece_lists.py:read_list"),
        ),
        "journals, whose frames tests/fuzz, tests/bitrot and tests/manager change": (
            *(
                "environments/environment_journal.py:EnvironmentJournal._read",
                "cli/verify.py:_of_journal",
            ),
            "manager/service/journal_files.py:_open_to_read",
        ),
        "logs and rows that this run writes, shown as they are": (
            *(
                "learner/fleet/manager_process.py:ManagerProcess._last_words",
                "cli/logs.py:_overview",
            ),
            *(
                "cli/logs.py:_show",
                "manager/service/page/page_app.py:_end_of",
                "providers/log_files.py:tail_of",
            ),
            *(
                "manager/service/server_logs.py:ServerLogs._write",
                "observe/chrome_trace.py:write_trace",
            ),
            *("observe/events_file.py:_is_cut_off", "observe/notebook_console.py:show_report"),
            *("learner/workdir.py:check_usable", "learner/workdir.py:is_held"),
            "environments/builtin/drawers.py:Log.outcome",
        ),
        "bodies of requests: tests/fuzz/gateway.py": (
            *("gateway/request_bodies.py:_half_of_a_pair", "gateway/request_bodies.py:decode"),
        ),
        "bodies of a library in this process, behind a secret address": (
            "environments/adapters/verifiers_answers.py:VerifiersAnswers._run.completion",
        ),
        "texts of a policy or a row: tests beside it": (
            *("chat/formats/objects.py:", "data/columns.py:decoded"),
            *("environments/adapters/openenv.py:OpenEnv.step", "trust/credentials.py:packed"),
            "environments/adapters/skyrl_gym.py:_decoded",
        ),
        "after ssl has loaded the same file": ("trust/credentials.py:_pem",),
        "of an extra, whose errors are caught whole": (
            *("data/table_rows.py:HuggingFaceRows.__init__", "observe/wandb.py:_last_step"),
            "providers/skypilot.py:SkyPilotLauncher._task",
        ),
        "the decoder itself: tests/platform/test_foreign_json.py": (
            *("platform/bounded_files.py:_opened", "platform/bounded_files.py:read_text"),
            *("platform/foreign_json.py:", "platform/foreign_json.py:read"),
        ),
    }.items()
    for site in found
}


def test_no_reader_is_left_out() -> None:
    """What opens or decodes a file is in `READERS`, or in `EXEMPT` with a reason."""
    found = set(sites())
    known = {site for reader in READERS.values() for site in reader.sites}
    assert not known & EXEMPT.keys()
    assert sorted(found - known - EXEMPT.keys()) == []
    assert sorted((known | EXEMPT.keys()) - found) == [], "there is no such place any more"
