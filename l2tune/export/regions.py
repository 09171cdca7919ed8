"""Where an exported file differs from its kernel file, so that the kernel can be taken out again.

Every region lies between two marked lines. The first ones directly follow a fixed place and end at
the first end mark; the last ones start at the last begin mark; so nothing that a kernel's author
writes between them can be taken for one. What is put in a region is decided elsewhere.
"""

import dataclasses

from l2tune.errors import HeaderError
from l2tune.spec.header import Backend, parse, split
from l2tune.spec.kernel import KernelSource

_NOTE_BEGIN = "# ---- exported by l2tune ----\n"
_NOTE_END = "# ---- the contract ----\n"
_VERIFIED_BEGIN = "# ---- what was proven and measured ----\n"
_PICKS_BEGIN = "// ---- l2tune: what l2tune passes to the compiler ----\n"
_PICKS_END = "// ---- l2tune: the kernel ----\n"
_HOST_BEGIN = "\n// ---- l2tune: generated host launcher; the kernel ends here ----\n"
_OPENING: dict[Backend, str] = {"cuda": "/*---l2tune\n", "triton": "# /// l2tune\n"}
_CLOSING: dict[Backend, str] = {"cuda": "---*/", "triton": "# ///"}


@dataclasses.dataclass(frozen=True)
class Regions:
    """What an export adds to a kernel file.

    Attributes:
        note: TOML comment lines that open the contract.
        verified: The `[verified]` table that closes it.
        picks: C++ before the kernel's body; empty for Triton.
        host: C++ after it; empty for Triton.
    """

    note: str
    verified: str
    picks: str = ""
    host: str = ""


def insert(text: str, regions: Regions) -> str:
    """Add the regions to a kernel file.

    Raises:
        HeaderError: If it has a `[verified]` table already.
    """
    backend, header = parse(text)
    if header.verified is not None:
        raise HeaderError(
            f"{header.id}: found a [verified] table, which only exporting writes; remove it"
        )
    before, contract, closing, body = _parts(text, backend)
    note = _commented(_NOTE_BEGIN + regions.note + _NOTE_END, backend)
    verified = _commented(_VERIFIED_BEGIN + regions.verified, backend)
    if backend == "cuda":
        body = _PICKS_BEGIN + regions.picks + _PICKS_END + body + _HOST_BEGIN + regions.host
    return before + note + contract + verified + closing + body


def is_export(text: str) -> bool:
    """Whether a kernel file was written by `export`."""
    try:
        backend, _, _ = split(text)
    except HeaderError:
        return False
    _, contract, _, _ = _parts(text, backend)
    return contract.startswith(_commented(_NOTE_BEGIN, backend))


def parse_export(text: str) -> KernelSource:
    """Take the kernel that was exported out of an exported file.

    Returns:
        Exactly the source of the record that was exported.

    Raises:
        HeaderError: If a marked region is missing.
    """
    backend, header = parse(text)
    picked = header.verified
    if picked is None or not {"arch", "dtype", "layout"} <= picked.keys():
        raise _not_exported("a [verified] table with arch, dtype and layout")
    before, contract, closing, body = _parts(text, backend)
    contract = _after(contract, _commented(_NOTE_BEGIN, backend), _commented(_NOTE_END, backend))
    contract, found, _ = contract.rpartition(_commented(_VERIFIED_BEGIN, backend))
    if not found:
        raise _not_exported(_VERIFIED_BEGIN.strip())
    if backend == "cuda":
        body = _after(body, _PICKS_BEGIN, _PICKS_END)
        body, found, _ = body.rpartition(_HOST_BEGIN)
        if not found:
            raise _not_exported(_HOST_BEGIN.strip())
    return KernelSource(
        text=before + contract + closing + body,
        arch=picked["arch"],
        dtype=picked["dtype"],
        layout=picked["layout"],
    )


def _parts(text: str, backend: Backend) -> tuple[str, str, str, str]:
    """Up to and with the opening line; the contract; the closing line; the body."""
    body = split(text)[2]
    head = text[: len(text) - len(body)]
    start = head.index(_OPENING[backend]) + len(_OPENING[backend])
    end = head.rindex(_CLOSING[backend])
    return head[:start], head[start:end], head[end:], body


def _after(text: str, begin: str, end: str) -> str:
    """What follows a region that `text` must start with."""
    if not text.startswith(begin):
        raise _not_exported(begin.strip())
    _, found, rest = text.partition(end)
    if not found:
        raise _not_exported(end.strip())
    return rest


def _commented(toml: str, backend: Backend) -> str:
    """Lines of TOML as the backend's files carry them."""
    if backend == "cuda":
        return toml
    return "".join(f"# {line}" for line in toml.splitlines(keepends=True))


def _not_exported(what: str) -> HeaderError:
    return HeaderError(
        f"exported file: needed {what!r} and did not find it; export the record again, or remove"
        " what export added by hand"
    )
