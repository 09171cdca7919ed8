"""Reads from a compile result what the gate must know: resources, and mutable file-scope state."""

import io
import re

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from l2tune.spec.outcome import KernelResources

_PTXAS = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_SMEM = re.compile(r"(\d+) bytes smem")


def resources(log: str) -> dict[str, KernelResources]:
    """Parse the report of `ptxas -v`, one entry for each kernel."""
    found = {}
    for match in _PTXAS.finditer(log):
        smem = _SMEM.search(match["rest"])
        found[match["name"]] = KernelResources(
            registers=int(match["registers"]),
            smem_static_bytes=int(smem[1]) if smem else 0,
            spill_bytes=int(match["stores"]) + int(match["loads"]),
            stack_bytes=int(match["stack"]),
        )
    return found


def writable_globals(cubin: bytes, ptx: str) -> tuple[str, ...]:
    """Names of file-scope variables in global memory that the code can reach.

    CUDA's own headers define thousands of empty tag objects there; they are in the cubin but no
    instruction names them, so a variable counts only if the PTX names it outside its definition.
    """
    elf = ELFFile(io.BytesIO(cubin))
    names = []
    for table in elf.iter_sections():
        if not isinstance(table, SymbolTableSection):
            continue
        for symbol in table.iter_symbols():
            index = symbol["st_shndx"]
            if symbol["st_info"]["type"] != "STT_OBJECT" or not isinstance(index, int):
                continue
            if elf.get_section(index).name.startswith(".nv.global"):
                names.append(symbol.name)
    if not names:
        return ()
    words: dict[str, int] = {}
    for word in re.findall(r"[\w$%.]+", ptx):
        words[word] = words.get(word, 0) + 1
    return tuple(sorted(name for name in names if words.get(name, 0) != 1))
