"""A PTX module as data: kernels, registers, shared variables and instructions.

`parser` makes these from text, and the files under `ops/` give each instruction its meaning.
"""

import dataclasses

WARP_LANES = 32


@dataclasses.dataclass(frozen=True)
class Register:
    """A register operand.

    Attributes:
        name: As in the text, `%r12`.
        slot: Index into a warp's registers.
        type: Declared type: `pred`, `b16`, `b32`, `b64`, `f32`, ...
    """

    name: str
    slot: int
    type: str


@dataclasses.dataclass(frozen=True)
class Immediate:
    """A constant.

    Attributes:
        bits: Its value; floats as the bits of `width`, integers possibly negative.
        is_float: Written as `0fXXXXXXXX` or `0dXXXXXXXXXXXXXXXX`.
        width: Bits of a float constant, 0 for an integer.
    """

    bits: int
    is_float: bool = False
    width: int = 0


@dataclasses.dataclass(frozen=True)
class Special:
    """A special register, as `%tid.x` or `%cluster_ctarank`."""

    name: str


@dataclasses.dataclass(frozen=True)
class Symbol:
    """The address of a variable, plus bytes."""

    name: str
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class Address:
    """A memory operand in brackets: a base and bytes; `extra` is the coordinates of tensor copies.

    `[%rd1+16]`, `[shared_variable+8]`, `[%rd1, {%r1, %r2, %r3}]`.
    """

    base: Register | Symbol | Immediate
    offset: int = 0
    extra: tuple["Operand", ...] = ()


@dataclasses.dataclass(frozen=True)
class Vector:
    """Operands in braces; `None` stands for `_`."""

    items: tuple["Operand | None", ...]


@dataclasses.dataclass(frozen=True)
class Label:
    """A branch target, or a list of them for `brx.idx`."""

    name: str


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two destinations, as in `setp.eq.s32 p|q, ...` or `shfl.sync.up.b32 d|p, ...`."""

    first: "Operand | None"
    second: "Operand | None"


@dataclasses.dataclass(frozen=True)
class Negated:
    """A predicate operand with `!`."""

    register: Register


Operand = Register | Immediate | Special | Symbol | Address | Vector | Label | Pair | Negated


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: The first part, as `mma` or `cp`.
        modifiers: The parts after it, as `("async", "cg", "shared", "global")`; a `::` stays inside
            its part, as `shared::cta`.
        operands: In order, as written.
        guard: Predicate register, and whether it is negated; None if unconditional.
        line: In the PTX text, from 1.
        source_line: File and line of the source where the PTX has `.loc`, else None.
        text: As written, without the guard.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None
    line: int
    source_line: tuple[str, int] | None
    text: str

    @property
    def name(self) -> str:
        """Opcode and modifiers joined by dots."""
        return ".".join((self.opcode, *self.modifiers))


@dataclasses.dataclass(frozen=True)
class Variable:
    """A `.shared`, `.local`, `.const`, `.global` or `.param` variable.

    Attributes:
        name: Unique in its scope.
        space: Without the dot.
        size_bytes: 0 for `extern` dynamic shared memory.
        align_bytes: Its alignment.
        initial: Its first bytes, for `.const` and `.global`.
    """

    name: str
    space: str
    size_bytes: int
    align_bytes: int
    initial: bytes = b""


@dataclasses.dataclass(frozen=True)
class Function:
    """A `.func`.

    Attributes:
        name: As calls name it.
        params: In order, each with a name that is unique in the module.
        results: Likewise.
        registers: Its own; no other function of the module has the same slots.
        variables: Of its scope; those in local and parameter space lie in its frame.
        instructions: In order.
        labels: Index of the instruction after each label, in these instructions.
        start: Index of its first instruction among those of a kernel that it is linked to.
    """

    name: str
    params: tuple[Variable, ...]
    results: tuple[Variable, ...]
    registers: tuple[Register, ...]
    variables: tuple[Variable, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    start: int = 0

    @property
    def in_frame(self) -> tuple[Variable, ...]:
        """What each of its calls has of its own."""
        own = [v for v in self.variables if v.space in ("local", "param")]
        return (*self.params, *self.results, *own)


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """An `.entry` function, with the functions that it calls (`linker`); equal to itself alone.

    Attributes:
        name: Entry name.
        params: In order; `.b8 x[128]` parameters are tensor maps.
        registers: Every register by slot.
        variables: Shared and local variables of its scope; module variables are in `Module`.
        instructions: In order, those of functions first; a branch target is an index.
        labels: Index of the instruction after each label.
        max_threads: `.maxntid`, product, or 0.
        cluster: `.reqnctapercluster`, or None.
        start: Index of its own first instruction.
        functions: That it calls, directly or not, by name.
    """

    name: str
    params: tuple[Variable, ...]
    registers: tuple[Register, ...]
    variables: tuple[Variable, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    max_threads: int = 0
    cluster: tuple[int, int, int] | None = None
    start: int = 0
    functions: dict[str, Function] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Module:
    """A PTX text.

    Attributes:
        target: As `sm_90a`.
        kernels: By name.
        variables: Module-scope variables of any space, by name.
    """

    target: str
    kernels: dict[str, Kernel]
    variables: dict[str, Variable]


class UnsupportedInstructionError(Exception):
    """The emulator does not know an instruction; never skipped.

    Attributes:
        instruction: What it is.
    """

    def __init__(self, instruction: Instruction, why: str = "") -> None:
        super().__init__(
            f"PTX line {instruction.line}: {instruction.text!r} is not known to the emulator"
            + (f": {why}" if why else "")
        )
        self.instruction = instruction
