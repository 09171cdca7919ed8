"""From lines of PTX to lines of the kernel file, for diagnostics.

A file is flattened before it is compiled and its contract is settled, so what a compiler calls a
line is mapped back. Exported and Triton files have no such mapping, and diagnostics name PTX lines.
"""

from collections.abc import Iterable
from pathlib import Path

from l2tune import compile, generate  # noqa: A004
from l2tune.compile import Origin
from l2tune.export import is_export
from l2tune.runtime.emulator.parser import parse

_CONTRACT_END = "---*/"
_COMPILED_AS = "kernel.cu"


class Listing:
    """A kernel file beside what was compiled of it.

    Attributes:
        file: Where it was read.
    """

    def __init__(self, file: Path, text: str, compiled: str) -> None:
        """Align a file with its flattened and settled text.

        Args:
            file: Where it was read.
            text: As its author wrote it.
            compiled: What the compiler was given.
        """
        self.file = file
        self._origins: list[Origin] = []
        self._moved_lines = 0
        self._of_ptx: dict[int, Origin | None] = {}
        if file.suffix != ".py" and not is_export(text):
            self._origins = compile.origins(text, generate.include_dir(), name=str(file))
            self._moved_lines = _contract_lines(text) - _contract_lines(compiled)

    def read(self, texts: Iterable[str]) -> None:
        """Note the source lines of every instruction of some PTX."""
        for text in texts:
            for kernel in parse(text).kernels.values():
                self._of_ptx |= {i.line: self.origin(i.source_line) for i in kernel.instructions}

    def origin(self, compiled: Origin | None) -> Origin | None:
        """A file that its author knows and a line of it; None where that is unknown."""
        if compiled is None or not self._origins:
            return None
        name, line = Path(compiled[0]).name, compiled[1]
        if name != _COMPILED_AS:
            return name, line
        place = line - 1 + self._moved_lines
        return self._origins[place] if 0 <= place < len(self._origins) else None

    def where(self, ptx_line: int) -> str:
        """An instruction's place in words."""
        found = self._of_ptx.get(ptx_line)
        return f"ptx:{ptx_line}" if found is None else f"{Path(found[0]).name}:{found[1]}"

    def line(self, name: str, number: int) -> str:
        """A line of the file, or of one of l2tune's headers; empty for other files."""
        known = self.file if name == str(self.file) else generate.include_dir() / name
        if not known.is_file():
            return ""
        lines = known.read_text().split("\n")
        return lines[number - 1] if 0 < number <= len(lines) else ""


def _contract_lines(text: str) -> int:
    return text.partition(_CONTRACT_END)[0].count("\n")
