"""What an HLO module takes: arithmetic, memory traffic, communication, host round trips.

Everything inside a loop counts as often as the loop runs. The length of some loops is data: the
host has to read a predicate before every iteration, and how many there are has to be assumed.

- FLOPs are those of matrix products, inside fusions and as library calls. Other arithmetic is free.
  Factors in float32 may be rounded to TF32, with 10 bits, unless the product forbids it.
- Traffic is what kernels read and write, each operand and result once. A kernel that reads a slice
  of an array, or writes into one in place, pays for the slice. A small array that is made and used
  in one computation is taken to stay in the cache.
- A kernel that multiplies groups of rows (`rlboost_kernels.grouped`) takes what the rows that are
  in groups ask for, whatever room there is for more: how many that are is assumed.
- A collective's bytes are those that each device sends in a ring (Patarasuk and Yuan 2009,
  doi:10.1016/j.jpdc.2008.09.002): (n - 1) / n of the whole array, and twice that for an all-reduce.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import NamedTuple

from benchmarks.h100.hlo import Computation, Instruction, Module, Shape

# Sent by each of n devices, in units of the whole array.
_RING: dict[str, Callable[[int], float]] = {
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "ragged-all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1.0,
    "collective-broadcast": lambda n: 1.0,
}
# No kernel: names, or what the instruction that it belongs to pays for.
_FREE = frozenset(
    (
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
        *("partition-id", "replica-id", "opt-barrier", "domain", "add-dependency"),
    )
)
# One operand, each entry of the result from one entry of it: a kernel computes what is asked for.
_ENTRYWISE = frozenset(
    ("bitcast", "bitcast-convert", "reshape", "convert", "copy", "transpose", "negate")
)
# The same of operands as large as the result.
_OF_SEVERAL = frozenset(
    (
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "compare", "select"),
        *("and", "or", "xor", "not", "abs", "exponential", "log", "tanh", "rsqrt", "sqrt"),
    )
)
# The precision of a dot, and that of a library's product.
_EXACT = re.compile(
    r'operand_precision=\{highest,highest\}|"operand_precision":\["HIGHEST","HIGHEST"\]'
)
_BLOCK_BITS = 12  # of numbers that XLA's sort has in shared memory: 4,096
_RADIX_PASSES = 4 * 1.5  # read and written; half of one is read only
_SLICES = frozenset(("slice", "dynamic-slice", "gather"))
_IN_PLACE = {"dynamic-update-slice": 1, "scatter": 2}  # opcode → operand with the update


@dataclass(frozen=True)
class Collective:
    kind: str
    dtype: str
    devices: int  # of a group
    per_host: int  # of them on each host; as many as `devices` if there is one host


@dataclass
class Cost:
    """Cost of one execution on one device."""

    flops: Counter[str] = field(default_factory=Counter)  # by type of the factors
    ragged_flops: float = 0.0  # of them in products that stand for a ragged one
    num_bytes: float = 0.0  # of memory, read and written by kernels
    cached_bytes: float = 0.0  # the same of the cache
    kernels: float = 0.0  # launched
    sent: Counter[Collective] = field(default_factory=Counter)  # bytes
    collectives: Counter[Collective] = field(default_factory=Counter)  # number
    trips: Counter[str] = field(default_factory=Counter)  # the host reads a predicate, by op_name
    guessed: frozenset[str] = frozenset()  # loops that no assumption speaks of: counted once
    calls: Counter[str] = field(default_factory=Counter)  # custom calls by target

    def add(self, other: "Cost", times: float = 1.0) -> None:
        self.ragged_flops += times * other.ragged_flops
        self.num_bytes += times * other.num_bytes
        self.cached_bytes += times * other.cached_bytes
        self.kernels += times * other.kernels
        self.guessed |= other.guessed
        for name in ("flops", "sent", "collectives", "trips", "calls"):
            mine = getattr(self, name)
            for key, value in getattr(other, name).items():
                mine[key] += times * value


@dataclass(frozen=True)
class Call:
    """What a custom call takes that the compiler cannot look into."""

    pattern: str  # of its target, op_name and operands' shapes
    flops: float
    num_bytes: float | None = None  # read; None: each operand once
    written: float | None = None  # of results that it leaves unset where it has nothing to say


@dataclass(frozen=True)
class Assumptions:
    """What depends on data: the first pattern that is found in an op_name decides."""

    trips: tuple[tuple[str, float], ...] = ()  # of a loop, each time it is entered
    calls: tuple[Call, ...] = ()
    grouped_rows: float | None = None  # in groups, with what fills up tiles; None: all there are

    def trips_of(self, op_name: str) -> float | None:
        return next((trips for pattern, trips in self.trips if re.search(pattern, op_name)), None)

    def call_of(self, description: str) -> Call | None:
        return next((call for call in self.calls if re.search(call.pattern, description)), None)


def cost_of(
    module: Module,
    assumptions: Assumptions | None = None,
    *,
    host_devices: int = 8,
    cached: float = 0.0,
) -> Cost:
    """What a call of a module costs: its entry, with all that this calls.

    Args:
        host_devices: that are joined by the fast link; device ids run from host to host.
        cached: bytes of the largest array that stays in the cache.
    """
    reader = _Reader(module, assumptions or Assumptions(), host_devices, cached)
    return reader.computation(module.entry)


def largest(module: Module, count: int = 3) -> list[tuple[float, str]]:
    """The largest arrays that kernels make, as (bytes, description), the largest first."""
    found: dict[str, float] = {}
    for name, computation in module.computations.items():
        if name in module.fused:
            continue
        for instruction in computation.values():
            skipped = instruction.opcode.endswith("-done") or instruction.base in ("while", "call")
            if instruction.opcode in _FREE or skipped or not instruction.results:
                continue
            shape = max(instruction.results, key=lambda s: s.num_bytes)
            where = instruction.op_name.split("/")
            short = "/".join(where[-2:])
            found[f"{shape} {instruction.base} {short}".strip()] = shape.num_bytes
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return [(size, text) for text, size in ordered[:count]]


class _Reader:
    def __init__(
        self, module: Module, assumptions: Assumptions, host_devices: int, cached: float
    ) -> None:
        self._module, self._assumptions = module, assumptions
        self._host_devices, self._cached = host_devices, cached
        self._known: dict[str, Cost] = {}

    def computation(self, name: str) -> Cost:
        if name not in self._known:
            total, computation = Cost(), self._module.computations[name]
            for instruction in computation.values():
                self._add(total, instruction, computation)
            self._known[name] = total
        return self._known[name]

    def _add(self, total: Cost, instruction: Instruction, computation: Computation) -> None:
        base, opcode = instruction.base, instruction.opcode
        if opcode in _FREE or opcode.endswith("-done") or opcode == "async-update":
            return
        if opcode == "while":
            self._add_loop(total, instruction)
        elif opcode == "conditional":
            total.trips[instruction.op_name] += 1
            branches = [self.computation(name) for name in instruction.branches]
            total.add(max(branches, key=lambda c: (sum(c.flops.values()), c.num_bytes)))
        elif base in ("call", "async"):
            called = instruction.attribute("to_apply") or instruction.attribute("calls")
            total.add(self.computation(called))
        elif base in _RING:
            self._add_collective(total, instruction, computation)
        elif base == "custom-call":
            self._add_call(total, instruction, computation)
        elif base == "sort":
            _add_sort(total, instruction, self._cached)
        elif base == "fusion":
            inside = self._module.computations[instruction.attribute("calls")]
            total.kernels += 1
            self._add_traffic(total, _fusion_traffic(instruction, inside), computation)
            for part in inside.values():
                _add_product(total, part, inside)
        else:
            total.kernels += 1
            self._add_traffic(total, _kernel_traffic(instruction, computation), computation)
            _add_product(total, instruction, computation)

    def _add_traffic(
        self, total: Cost, traffic: Iterable["_Traffic"], computation: Computation
    ) -> None:
        for each in traffic:
            if each.whole <= self._cached and (not each.read or _is_made(each.read, computation)):
                total.cached_bytes += each.num_bytes
            else:
                total.num_bytes += each.num_bytes

    def _add_loop(self, total: Cost, instruction: Instruction) -> None:
        trips: float | None = instruction.known_trips
        if trips is None:
            trips = self._assumptions.trips_of(instruction.op_name)
            if trips is None:
                trips = 1.0
                total.guessed |= {instruction.op_name}
            total.trips[instruction.op_name] += trips
        total.add(self.computation(instruction.attribute("body")), trips)

    def _add_collective(
        self, total: Cost, instruction: Instruction, computation: Computation
    ) -> None:
        groups = groups_of(instruction.attributes, self._module.devices)
        # All at once, and the slowest counts: of a permutation's pairs one between two hosts.
        hosts = [Counter(device // self._host_devices for device in group) for group in groups]
        group, on_hosts = max(zip(groups, hosts, strict=True), key=lambda pair: len(pair[1]))
        # What is whole: the result of a gather, the operand of a reduction and its scattering.
        whole: Sequence[Shape] = instruction.results
        if instruction.base == "reduce-scatter":
            whole = [s for name in instruction.operands for s in computation[name].shapes]
        if not whole:
            return
        key = Collective(instruction.base, whole[0].dtype, len(group), max(on_hosts.values()))
        size = sum(shape.num_bytes for shape in whole)
        total.sent[key] += size * _RING[instruction.base](len(group))
        total.collectives[key] += 1
        total.kernels += 1

    def _add_call(self, total: Cost, instruction: Instruction, computation: Computation) -> None:
        target = instruction.target
        total.calls[target] += 1
        total.kernels += 1
        shapes = [computation[name].type for name in instruction.operands if name in computation]
        if call := self._assumptions.call_of(" ".join((target, instruction.op_name, *shapes))):
            total.flops["bf16"] += call.flops
            if call.num_bytes is not None:
                written = instruction.num_bytes if call.written is None else call.written
                total.num_bytes += call.num_bytes
                self._add_traffic(total, [_Traffic(written, written)], computation)
                return
        if target.startswith("mosaic_gpu") and "grouped_" in instruction.op_name:
            _add_grouped_product(total, instruction, computation, self._assumptions.grouped_rows)
            return
        self._add_traffic(total, _kernel_traffic(instruction, computation), computation)
        if "cublas" in target or "gemm" in target:
            _add_library_product(total, instruction, computation)


def groups_of(attributes: str, devices: int = 1) -> list[tuple[int, ...]]:
    """Devices of the first group of `replica_groups`, in any of its notations, or of all
    `source_target_pairs`.

    Groups are lists, {{0,1},{2,3}}; a reshaped and transposed range, [2,4]<=[4,2]T(1,0); some
    axes of a mesh, mesh['a'=2,'b'=4] {'b'}, whose devices may be a transposed range as well,
    mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}; or {}, all devices.

    Args:
        devices: that there are.

    Raises:
        ValueError: they are written in another way.
    """
    if found := re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)+)\}", attributes):
        return [(int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", found[1])]
    return [_first_group(attributes, devices)]


def _first_group(attributes: str, devices: int) -> tuple[int, ...]:
    if "replica_groups={}" in attributes:
        return tuple(range(devices))
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
        return tuple(int(device) for device in found[1].split(","))
    if found := re.search(
        r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes
    ):
        size, dims = int(found[2]), [int(d) for d in found[3].split(",")]
        order = [int(a) for a in found[4].split(",")] if found[4] else range(len(dims))
        return tuple(_transposed_range(dims, order)[:size])
    if found := re.search(
        r"replica_groups=mesh\[([^\]]*)\]"
        r"(?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?\s*\{([^}]*)\}",
        attributes,
    ):
        axes = [(name, int(size)) for name, size in re.findall(r"'([^']+)'=(\d+)", found[1])]
        chosen = set(re.findall(r"'([^']+)'", found[4]))
        places = product(*(range(size) if name in chosen else (0,) for name, size in axes))
        group = tuple(_flat(place, [size for _, size in axes]) for place in places)
        if not found[2]:
            return group
        dims = [int(d) for d in found[2].split(",")]
        order = [int(a) for a in found[3].split(",")] if found[3] else range(len(dims))
        ids = _transposed_range(dims, order)
        return tuple(ids[place] for place in group)
    raise ValueError(f"a collective whose groups are not understood: {attributes[:200]}")


def _transposed_range(dims: Sequence[int], order: Sequence[int]) -> list[int]:
    places = product(*(range(dims[axis]) for axis in order))
    back = [list(order).index(axis) for axis in range(len(dims))]
    return [_flat([place[axis] for axis in back], dims) for place in places]


def _flat(place: Sequence[int], dims: Sequence[int]) -> int:
    index = 0
    for position, size in zip(place, dims, strict=True):
        index = index * size + position
    return index


def _add_product(total: Cost, instruction: Instruction, computation: Computation) -> None:
    if instruction.opcode != "dot":
        return
    left = computation[instruction.operands[0]].shapes[0]
    over = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
    inner = math.prod(left.dims[int(axis)] for axis in over[1].split(",") if axis) if over else 1
    flops = 2 * instruction.shapes[0].size * inner
    total.flops[_factors(left.dtype, instruction.attributes)] += flops
    if "ragged_dot" in instruction.op_name:
        total.ragged_flops += flops


def _add_library_product(total: Cost, instruction: Instruction, computation: Computation) -> None:
    left = computation[instruction.operands[0]].shapes[0]
    over = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.attributes)
    axes = re.findall(r"\d+", over[1]) if over else []
    inner = math.prod(left.dims[int(axis)] for axis in axes)
    flops = 2 * instruction.shapes[0].size * inner
    total.flops[_factors(left.dtype, instruction.attributes)] += flops


def _add_sort(total: Cost, instruction: Instruction, cached: float) -> None:
    """Keys with one array beside them are for CUB: four digits of 8 bits, each read once more to be
    counted. XLA sorts whatever has more (Batcher 1968, doi:10.1145/1468075.1468121): in blocks,
    and then once through memory for each distance that is larger than a block.
    """
    steps = max(0, math.ceil(math.log2(max(1, instruction.shapes[0].size))) - _BLOCK_BITS)
    own = 1 + steps * (steps + 1) / 2 + steps
    passes = own if len(instruction.shapes) > 2 else _RADIX_PASSES
    total.kernels += passes
    for shape in instruction.shapes:
        moved = 2 * passes * shape.num_bytes
        if shape.num_bytes <= cached:
            total.cached_bytes += moved
        else:
            total.num_bytes += moved


def _factors(dtype: str, attributes: str) -> str:
    """The type that a product takes factors in."""
    exact = _EXACT.search(attributes)
    return "tf32" if dtype == "f32" and not exact else dtype


def _add_grouped_product(
    total: Cost, instruction: Instruction, computation: Computation, rows: float | None
) -> None:
    """Arrays [M, K] have the rows, arrays [G, K, N] the matrices; a result may be either."""
    operands = (s for name in instruction.operands for s in computation[name].shapes)
    for shape in (*operands, *instruction.results):
        if len(shape.dims) == 2:
            used = 1.0 if rows is None else min(1.0, rows / shape.dims[0])
            total.num_bytes += used * shape.num_bytes
        elif len(shape.dims) == 3:
            total.num_bytes += shape.num_bytes
            most = next(a.dims[0] for a in _row_arrays(instruction, computation))
            multiplied = most if rows is None else min(rows, most)
            total.flops[shape.dtype] += 2 * multiplied * shape.dims[1] * shape.dims[2]


def _row_arrays(instruction: Instruction, computation: Computation) -> Iterator[Shape]:
    for name in instruction.operands:
        yield from (shape for shape in computation[name].shapes if len(shape.dims) == 2)


class _Traffic(NamedTuple):
    """Memory traffic of one array, in or out of one kernel."""

    num_bytes: float
    whole: float  # bytes of all of the array
    read: str = ""  # the operand's name; "" for what is written


def _is_made(name: str, computation: Computation) -> bool:
    """Whether a kernel of the same computation made the array, rather than one before it."""
    origin = computation.get(name)
    while origin is not None and origin.operands:
        passes = origin.opcode in ("bitcast", "get-tuple-element")
        if not passes and not origin.opcode.endswith("-done"):
            return origin.opcode not in ("while", "conditional", "tuple")
        origin = computation.get(origin.operands[0])
    return origin is not None and origin.opcode not in ("parameter", "constant")


def _kernel_traffic(instruction: Instruction, computation: Computation) -> Iterator[_Traffic]:
    """Traffic of an instruction that is a kernel by itself."""
    operands = [name for name in dict.fromkeys(instruction.operands) if name in computation]
    if instruction.base in _IN_PLACE:
        update = computation[instruction.operands[_IN_PLACE[instruction.base]]]
        yield _Traffic(update.num_bytes, update.num_bytes, update.name)
        yield _Traffic(update.num_bytes, instruction.num_bytes)
        return
    for shape in instruction.results:
        yield _Traffic(shape.num_bytes, shape.num_bytes)
    result = sum(shape.num_bytes for shape in instruction.results)
    for name in operands[:1] if instruction.base in _SLICES else operands:
        whole = computation[name].num_bytes
        yield _Traffic(result if instruction.base in _SLICES else whole, whole, name)


def _fusion_traffic(fusion: Instruction, inside: Computation) -> Iterator[_Traffic]:
    """Traffic of a kernel made of several instructions: only slices where it reads nothing else."""
    users: dict[str, list[Instruction]] = {}
    for instruction in inside.values():
        for operand in set(instruction.operands):
            users.setdefault(operand, []).append(instruction)

    root = next(i for i in inside.values() if i.is_root)
    outputs = [inside[name] for name in root.operands] if root.opcode == "tuple" else [root]

    @cache
    def read(name: str) -> float:
        """Bytes that are read of an array inside, at most all of it."""
        whole, part = inside[name].num_bytes, 0.0
        if any(output.name == name for output in outputs):
            return whole
        for user in users.get(name, ()):
            if user.opcode in _SLICES and user.operands[0] == name:
                part += read(user.name)
            elif user.opcode in _IN_PLACE and user.operands[0] == name:
                part += 0.0  # written below
            elif user.opcode in _ENTRYWISE or user.opcode in _OF_SEVERAL:
                part += read(user.name) * _ratio(inside[name], user)
            else:
                return whole
        return min(whole, part)

    for instruction in inside.values():
        if instruction.opcode == "parameter":
            operand = fusion.operands[int(instruction.arguments)]
            yield _Traffic(read(instruction.name), instruction.num_bytes, operand)
    for output in outputs:
        yield _Traffic(_written(output, inside), output.num_bytes)


def _ratio(before: Instruction, after: Instruction) -> float:
    """Bytes of an entry before over bytes after a conversion."""
    return before.num_bytes / after.num_bytes if after.num_bytes else 1.0


def _written(output: Instruction, inside: Computation) -> float:
    origin = output
    while origin.opcode in _ENTRYWISE and origin.operands:
        origin = inside[origin.operands[0]]
    if origin.opcode in _IN_PLACE:
        return inside[origin.operands[_IN_PLACE[origin.opcode]]].num_bytes
    return output.num_bytes
