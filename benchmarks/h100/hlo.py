"""Reads the text of an optimized HLO module: computations, instructions and their shapes.

Only the text is read, so that nothing here needs jax. Source of the grammar:
https://openxla.org/xla/operation_semantics and the printer in xla/hlo/ir/hlo_instruction.cc.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

ITEM_BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16,
    "f8e4m3fn": 1, "f8e5m2": 1, "f8e4m3": 1, "f8e4m3b11fnuz": 1, "token": 0, "opaque": 0,
}  # fmt: skip

_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,]*)\]")
_NAME = re.compile(r"%([\w.\-]+)")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(|=)")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True)
class Shape:
    """An array's; tuples are sequences of these."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.dims)

    @property
    def num_bytes(self) -> float:
        return self.size * ITEM_BYTES.get(self.dtype, 0)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class Instruction:
    """One line: `name = type opcode(arguments), attributes`."""

    name: str
    type: str
    opcode: str
    arguments: str
    attributes: str
    is_root: bool

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of instructions of the same computation."""
        return tuple(_NAME.findall(self.arguments))

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of all arrays of the result, those of nested tuples included."""
        return shapes_of(self.type)

    @property
    def num_bytes(self) -> float:
        return sum(shape.num_bytes for shape in self.shapes)

    @property
    def base(self) -> str:
        """The opcode without "-start" or "-done"."""
        return self.opcode.removesuffix("-start").removesuffix("-done")

    @cached_property
    def results(self) -> tuple[Shape, ...]:
        """What is computed. The result of an asynchronous start is (operands, results, …), but
        for an all-reduce of jax 0.10 its results; that of a library's product ends with its
        workspace.
        """
        if not self.type.startswith("("):
            return self.shapes
        parts = elements_of(self.type)
        if self.opcode.endswith("-start") and len(parts) > 1:
            flat = not parts[0].startswith("(") and len(parts) == len(self.operands)
            return self.shapes if self.base == "all-reduce" and flat else shapes_of(parts[1])
        if "cublas" in self.target and parts[-1].startswith("s8["):
            return self.shapes[:-1]
        return self.shapes

    @property
    def op_name(self) -> str:
        """Where it was traced: the path of jax's names."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return found[1] if found else ""

    def attribute(self, name: str) -> str:
        """The computation or word that an attribute names; "" if there is none."""
        found = re.search(rf"\b{name}=%?([\w.\-]+)", self.attributes)
        return found[1] if found else ""

    @property
    def known_trips(self) -> int | None:
        """Iterations of a while loop, where the compiler found out their number."""
        found = re.search(r'"known_trip_count":\{"n":"(\d+)"', self.attributes)
        return int(found[1]) if found else None

    @property
    def branches(self) -> tuple[str, ...]:
        """Computations of a conditional."""
        listed = re.search(r"branch_computations=\{([^}]*)\}", self.attributes)
        if listed:
            return tuple(_NAME.findall(listed[1]))
        return tuple(re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", self.attributes))

    @property
    def target(self) -> str:
        """Target of a custom call."""
        found = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return found[1] if found else ""


Computation = Mapping[str, Instruction]


@dataclass(frozen=True)
class Module:
    """
    Attributes:
        devices: that run it together.
    """

    computations: Mapping[str, Computation]
    entry: str
    devices: int = 1

    @cached_property
    def fused(self) -> frozenset[str]:
        """Computations that are the inside of one kernel or the operator of a reduction."""
        names = set()
        for instruction in self.instructions():
            if instruction.base == "fusion":
                names.add(instruction.attribute("calls"))
            elif instruction.base not in ("call", "async"):
                names.add(instruction.attribute("to_apply"))
        return frozenset(names)

    def instructions(self) -> Iterator[Instruction]:
        for computation in self.computations.values():
            yield from computation.values()


def parse(text: str) -> Module:
    """Raises ValueError where there is no entry computation."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    counts = re.search(r"^HloModule [^\n]*", text, re.MULTILINE)
    named = re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", counts[0] if counts else "")
    for line in text.splitlines():
        if not line or line.startswith("//"):
            continue
        if line[0] not in " }" and line.endswith("{"):
            header = _HEADER.match(line)
            if header and not line.startswith("HloModule"):
                current = computations.setdefault(header[2], {})
                entry = header[2] if header[1] else entry
        elif line[0] == "}":
            current = None
        elif current is not None and " = " in line:
            instruction = _instruction(line.strip())
            current[instruction.name] = instruction
    if not entry:
        raise ValueError("no ENTRY computation; give the text of a whole HLO module")
    return Module(computations, entry, math.prod(map(int, named)))


def shapes_of(type_text: str) -> tuple[Shape, ...]:
    return tuple(
        Shape(dtype, tuple(int(size) for size in dims.split(",") if size))
        for dtype, dims in _SHAPE.findall(type_text)
        if dtype in ITEM_BYTES
    )


def elements_of(type_text: str) -> list[str]:
    """The texts of a tuple type's elements."""
    inner, parts, depth, start = type_text[1:-1], [], 0, 0
    for place, character in enumerate(inner):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(inner[start:place].strip())
            start = place + 1
    return [*parts, inner[start:].strip()]


def _instruction(line: str) -> Instruction:
    is_root = line.startswith("ROOT ")
    name, rest = line.removeprefix("ROOT ").split(" = ", 1)
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opcode, _, _ = rest[end + 1 :].partition("(")
    begin = end + 1 + len(opcode)
    close = _closing(rest, begin)
    return Instruction(
        name=name.lstrip("%"),
        type=_COMMENT.sub("", rest[:end]),
        opcode=opcode,
        arguments=_COMMENT.sub("", rest[begin + 1 : close]),
        attributes=rest[close + 1 :],
        is_root=is_root,
    )


_PARENTHESIS = re.compile(r'[()]|"(?:[^"\\]|\\.)*"')


def _closing(text: str, begin: int) -> int:
    """Index of the parenthesis that closes the one at `begin`; strings are passed over."""
    depth = 0
    for found in _PARENTHESIS.finditer(text, begin):
        if found[0] == "(":
            depth += 1
        elif found[0] == ")":
            depth -= 1
            if depth == 0:
                return found.start()
    raise ValueError(f"a parenthesis that is never closed: {text[:120]}")
