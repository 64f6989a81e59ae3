"""Where a program rounds: the arithmetic on floating-point numbers in each of its kernels.

Two programs that have to give a row equal bits must do the same arithmetic in the same kernels. The
compiler joins each operation with what surrounds it, which differs between programs, and a sum that
is joined with something else may be added up in another order.
"""

import hashlib
import re
from collections import Counter

from benchmarks.h100.hlo import Computation, Instruction, Module, Shape

_FLOATS = ("bf16", "f16", "f32", "f64", "f8")  # how their names begin
_MOVES = frozenset({
    "bitcast", "bitcast-convert", "broadcast", "call", "concatenate", "conditional", "constant",
    "copy", "dynamic-slice", "dynamic-update-slice", "gather", "get-tuple-element", "iota",
    "opt-barrier", "pad", "parameter", "reshape", "reverse", "select", "slice", "transpose",
    "tuple", "while",
})  # fmt: skip
# Attributes that say what is computed.
_SAID = re.compile(r"(dimensions|slice|lhs_\w+|rhs_\w+|window|slice_sizes)=(\{[^}]*\}|\w+)")
# Those that say by which emitter, in which tiles or by which algorithm of a library; without what
# says when and where.
_EMITTED = re.compile(r"\b(?:kind=(\w+)|backend_config=(\{.*\}))")
_SCHEDULED = re.compile(
    r'"(?:operation_queue_id|wait_on_operation_queues|force_earliest_schedule|reification_cost'
    r'|device_type)":(?:\[[^]]*\]|"[^"]*"|\w+),?'
)
_KERNELS = ("mosaic_gpu_v2", "__gpu$xla.gpu.triton")  # our own: the same whatever is around them


def rounding(module: Module) -> dict[str, int]:
    """How often a program has each kernel that rounds, by a digest of its arithmetic.

    Left out are our own kernels, integers, and what only moves numbers.
    """
    found: Counter[str] = Counter()
    for name, computation in module.computations.items():
        if name in module.fused:
            continue
        for instruction in computation.values():
            if text := arithmetic(module, instruction):
                found[_digest(text)] += 1
    return dict(sorted(found.items()))


def arithmetic(module: Module, instruction: Instruction) -> str:
    """What a kernel does with floating-point numbers, a line each; "" if it rounds none.

    Each line begins with a digest of what is computed, by which the lines that use it name it.
    Their order says nothing: a kernel may do several things.
    """
    if instruction.opcode == "fusion":
        inside = module.computations[instruction.attribute("calls")]
    elif instruction.target in _KERNELS:
        return ""
    else:
        inside = {instruction.name: instruction}
    lines = _lines(module, inside)
    return "\n".join([_emission(instruction), *sorted(lines)]) if lines else ""


def _emission(instruction: Instruction) -> str:
    """How the order of sums is decided in a kernel."""
    found = "".join(map("".join, _EMITTED.findall(instruction.attributes)))
    return _SCHEDULED.sub("", found).replace(",}", "}").replace("{}", "")


def _lines(module: Module, inside: Computation) -> list[str]:
    """Lines of the instructions that round and of their inputs; other names become a dot."""
    counts: set[str] = set()
    for one in reversed(list(inside.values())):  # operands come before their use
        if _rounds(one) or one.name in counts:
            counts.update((one.name, *one.operands))
    digests: dict[str, str] = {}
    types: dict[str, str] = {}
    lines = []
    for one in inside.values():
        if one.name not in counts or not _is_float(one.shapes) or one.opcode == "tuple":
            continue
        operands = [digests.get(name, "·") for name in one.operands]
        types[one.name] = ",".join(_without_ones(shape) for shape in one.shapes)
        if one.opcode in ("bitcast", "reshape") and types.get(one.operands[0]) == types[one.name]:
            digests[one.name] = operands[0]
            continue
        what = one.arguments if one.opcode == "constant" else ",".join(operands)
        said = [f"{key}={value}" for key, value in _SAID.findall(one.attributes)]
        reducer = module.computations.get(one.attribute("to_apply"), {})
        said += [part.opcode for part in reducer.values() if part.is_root]
        said += [_emission(one)] if one.opcode == "fusion" else []  # a tile of a product
        text = f"{types[one.name]} {one.opcode}{one.target}({what}) {' '.join(said)}".strip()
        if one.opcode == "parameter":
            text = f"{types[one.name]} parameter"
        digests[one.name] = _digest(text)
        lines.append(f"{digests[one.name]} {text}")
    return lines


def _without_ones(shape: Shape) -> str:
    return f"{shape.dtype}[{','.join(str(size) for size in shape.dims if size != 1)}]"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _rounds(one: Instruction) -> bool:
    return one.opcode not in _MOVES and _is_float(one.shapes)


def _is_float(shapes: tuple[Shape, ...]) -> bool:
    return any(shape.dtype.startswith(_FLOATS) for shape in shapes)
