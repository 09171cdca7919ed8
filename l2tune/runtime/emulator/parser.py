"""Reads the PTX that NVRTC, nvcc and Triton emit into a `Module`.

Debug sections are passed over. What cannot be read is an error that names its line.
"""

from __future__ import annotations

import dataclasses
import math

from l2tune.runtime.emulator import declarations
from l2tune.runtime.emulator.linker import link
from l2tune.runtime.emulator.operand_syntax import operands
from l2tune.runtime.emulator.program import (
    Function,
    Instruction,
    Kernel,
    Label,
    Module,
    Register,
    Symbol,
    Variable,
    Vector,
)
from l2tune.runtime.emulator.tokens import Cursor, PtxSyntaxError

__all__ = ["PtxSyntaxError", "parse"]


def parse(text: str) -> Module:
    """Read a PTX module.

    Raises:
        PtxSyntaxError: If the text is not PTX as this parser knows it; names the line.
    """
    cursor = Cursor(text)
    files, target = _files(cursor), ""
    entries: list[int] = []  # kernels are read last: their registers follow those of functions
    functions: dict[str, Function] = {}
    variables: dict[str, Variable] = {}
    slots = 0
    while cursor.next.kind != "end":
        while cursor.next.text in declarations.LINKAGE:
            cursor.take()
        word = cursor.next.text
        if word in (".version", ".address_size", ".file", ".loc"):
            cursor.skip_line()
        elif word == ".target":
            target = cursor.skip_line()[1].text
        elif word in declarations.SPACES:
            variable = declarations.variable(cursor)
            variables[variable.name] = variable
            cursor.expect(";")
        elif word == ".entry":
            entries.append(cursor.at)
            _skip_body(cursor)
        elif word == ".func":
            function = _BodyParser(cursor, files, variables, slots).function()
            if function is not None:
                functions[function.name] = function
                slots += len(function.registers)
        elif word == ".section":
            cursor.skip_past("{")
            cursor.skip_past("}")
        elif word in (".alias", ".pragma"):
            cursor.skip_past(";")
        else:
            cursor.fail(f"{word!r} starts no declaration of a module")
    kernels: dict[str, Kernel] = {}
    for cursor.at in entries:
        kernel = _BodyParser(cursor, files, variables, slots).entry()
        kernels[kernel.name] = link(kernel, functions)
    return Module(target, kernels, variables)


def _files(cursor: Cursor) -> dict[int, str]:
    """Names by number; `.file` may follow the kernels that use it."""
    tokens = cursor.tokens
    return {
        int(tokens[i + 1].text): tokens[i + 2].text[1:-1]
        for i, token in enumerate(tokens)
        if token.text == ".file" and tokens[i + 2].kind == "string"
    }


def _skip_body(cursor: Cursor) -> None:
    while cursor.take().text != "{":
        pass
    cursor.skip_past("}")


@dataclasses.dataclass
class _Scope:
    """Names declared between two braces; inner scopes give theirs a suffix to keep them apart."""

    suffix: str
    found: dict[str, Register | Symbol | Label | Vector]


class _BodyParser:
    """Reads one `.entry` or `.func`, whose registers get the slots from `first_slot` on."""

    def __init__(
        self, cursor: Cursor, files: dict[int, str], variables: dict[str, Variable], first_slot: int
    ) -> None:
        self.cursor, self.files, self.first_slot = cursor, files, first_slot
        self.named_plainly = True  # whether names in the outermost braces get no suffix
        self.scopes = [_Scope("", {name: Symbol(name) for name in variables})]
        self.registers: list[Register] = []
        self.variables: list[Variable] = []
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.source_line: tuple[str, int] | None = None

    def find(self, name: str) -> Register | Symbol | Label | Vector | None:
        """What a name means here (`operand_syntax.Names`)."""
        for scope in reversed(self.scopes):
            if name in scope.found:
                return scope.found[name]
        return None

    def entry(self) -> Kernel:
        """Take the kernel, from `.entry` to its closing brace."""
        self.cursor.expect(".entry")
        name = self.cursor.word()
        params = self._parameters("")
        limits = self._directives()
        self._body()
        x, y, z, *_ = (*limits.get(".reqnctapercluster", ()), 1, 1, 1)
        cluster = (x, y, z)
        return Kernel(
            name=name,
            params=params,
            registers=tuple(self.registers),
            variables=tuple(self.variables),
            instructions=tuple(self.instructions),
            labels=self.labels,
            max_threads=math.prod(limits.get(".maxntid") or limits.get(".reqntid") or (0,)),
            cluster=cluster if ".reqnctapercluster" in limits else None,
        )

    def function(self) -> Function | None:
        """Take a function, from `.func` to its closing brace; None if it is declared only."""
        start = self.cursor.expect(".func")
        suffix = f"@{start.line}.{start.start}"
        results = self._parameters(suffix)
        name = self.cursor.word()
        params = self._parameters(suffix)
        self._directives()
        if self.cursor.accept(";"):
            return None
        self.named_plainly = False
        self._body()
        return Function(
            name=name,
            params=params,
            results=results,
            registers=tuple(self.registers),
            variables=tuple(self.variables),
            instructions=tuple(self.instructions),
            labels=self.labels,
        )

    def _parameters(self, suffix: str) -> tuple[Variable, ...]:
        """Take a list in parentheses, if there is one; names get a suffix."""
        found: list[Variable] = []
        if self.cursor.accept("("):
            while not self.cursor.accept(")"):
                if self.cursor.next.text != ".param":
                    self.cursor.fail(f"{self.cursor.next.text!r} where a '.param' is expected")
                variable = declarations.variable(self.cursor)
                unique = variable.name + suffix
                self.scopes[0].found[variable.name] = Symbol(unique)
                found.append(dataclasses.replace(variable, name=unique))
                self.cursor.accept(",")
        return tuple(found)

    def _body(self) -> None:
        """Take all between two braces."""
        self._open()
        while len(self.scopes) > 1:
            self._statement()
        for label in self.labels:
            self.labels[label] = min(self.labels[label], len(self.instructions))

    def _directives(self) -> dict[str, tuple[int, ...]]:
        limits: dict[str, tuple[int, ...]] = {}
        while self.cursor.next.text not in ("{", ";"):
            name, values = self.cursor.word(), []
            while self.cursor.next.kind in ("number", "string") or self.cursor.next.text == ",":
                token = self.cursor.take()
                values += [int(token.text, 0)] if token.kind == "number" else []
            limits[name] = tuple(values)
        return limits

    def _open(self) -> None:
        """Enter a scope: its labels are known from its start, as branches may go forward."""
        opening = self.cursor.expect("{")
        suffix = (
            ""
            if self.named_plainly and len(self.scopes) == 1
            else f"@{opening.line}.{opening.start}"
        )
        scope, depth, at, tokens = _Scope(suffix, {}), 1, self.cursor.at, self.cursor.tokens
        while depth and at < len(tokens):
            text = tokens[at].text
            depth += (text == "{") - (text == "}")
            if depth == 1 and tokens[at].kind == "word" and tokens[at + 1].text == ":":
                scope.found[text] = Label(text + suffix)
            at += 1
        self.scopes.append(scope)
        for index in range(self.cursor.at, at):
            if tokens[index].text == ".branchtargets":
                self._targets(index)

    def _targets(self, index: int) -> None:
        """Make the name of a `.branchtargets` list stand for its labels."""
        tokens, labels = self.cursor.tokens, []
        name, at = tokens[index - 2].text, index + 1
        while tokens[at].text != ";":
            found = self.find(tokens[at].text)
            labels += [found] if isinstance(found, Label) else []
            at += 1
        if name in self.scopes[-1].found:
            self.scopes[-1].found[name] = Vector(tuple(labels))

    def _statement(self) -> None:
        cursor = self.cursor
        word = cursor.next.text
        if word == "{":
            self._open()
        elif word in ("}", ";"):
            cursor.take()
            if word == "}":
                self.scopes.pop()
        elif word == ".loc":
            tokens = cursor.skip_line()
            number = int(tokens[1].text)
            self.source_line = (self.files.get(number, f"file {number}"), int(tokens[2].text))
        elif word == ".file":
            cursor.skip_line()
        elif word in (".pragma", ".branchtargets", ".callprototype", ".calltargets"):
            cursor.skip_past(";")
        elif word == ".reg":
            self._declare(*declarations.registers(cursor))
        elif word in declarations.SPACES:
            self._variable()
        elif cursor.after_next().text == ":":
            label = self.find(cursor.take().text)
            cursor.expect(":")
            if isinstance(label, Label):
                self.labels[label.name] = len(self.instructions)
        else:
            self._instruction()

    def _declare(self, ptx_type: str, names: list[str]) -> None:
        for name in names:
            register = Register(name, self.first_slot + len(self.registers), ptx_type)
            self.registers.append(register)
            self.scopes[-1].found[name] = register

    def _variable(self) -> None:
        variable = declarations.variable(self.cursor)
        self.cursor.expect(";")
        scope = self.scopes[-1]
        scope.found[variable.name] = Symbol(variable.name + scope.suffix)
        self.variables.append(dataclasses.replace(variable, name=variable.name + scope.suffix))

    def _instruction(self) -> None:
        cursor, guard = self.cursor, None
        if cursor.accept("@"):
            negated = cursor.accept("!")
            register = self.find(cursor.word())
            if not isinstance(register, Register):
                cursor.fail("the guard is no predicate register declared here")
            guard = (register, negated)
        start = cursor.next
        opcode, *modifiers = cursor.word().split(".")
        if not opcode:
            cursor.fail(f"{start.text!r} is no directive that is known inside a kernel")
        parts = operands(cursor, self)
        text = cursor.text[start.start : cursor.tokens[cursor.at - 1].end]
        self.instructions.append(
            Instruction(
                opcode=opcode,
                modifiers=tuple(modifiers),
                operands=parts,
                guard=guard,
                line=start.line,
                source_line=self.source_line,
                text=" ".join(text.split()),
            )
        )
