"""Replaces `#include "l2/..."` by the header's text, so that a kernel is one self-contained file.

A kernel's identity is its flattened text: a change in a header makes another kernel.
"""

import re
from pathlib import Path

from l2tune.errors import HeaderError

_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*"(?P<name>[^"\n]+)"[ \t]*(?://[^\n]*)?$', re.MULTILINE
)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[ \t]*\n", re.MULTILINE)
_NAME = re.compile(r"l2/\w+\.cuh")

Origin = tuple[str, int]
"""A file and a line of it, from 1."""


def flatten(text: str, include_dir: Path) -> str:
    """Inline each of l2tune's own headers where it is first included.

    Args:
        text: A CUDA kernel file; one that includes nothing of ours comes back unchanged.
        include_dir: The folder that holds `l2/`.

    Raises:
        HeaderError: If a quoted include is not one of `l2/*.cuh`, or does not exist.
    """
    seen: set[str] = set()

    def inline(match: re.Match[str]) -> str:
        name = match["name"]
        if not _NAME.fullmatch(name):
            raise HeaderError(f'#include "{name}": only "l2/*.cuh" may be included by quotes')
        if name in seen:
            return ""
        seen.add(name)
        try:
            found = (include_dir / name).read_text()
        except OSError:
            available = sorted(f"l2/{path.name}" for path in (include_dir / "l2").glob("*.cuh"))
            raise HeaderError(f'#include "{name}": no such header; there are {available}') from None
        body = _INCLUDE.sub(inline, _ONCE.sub("", found))
        return f"// ---- {name}\n{body.strip()}\n// ---- end of {name}"

    return _INCLUDE.sub(inline, text)


def origins(text: str, include_dir: Path, *, name: str) -> list[Origin]:
    """Where each line of `flatten(text, include_dir)` comes from.

    Args:
        text: What was flattened.
        include_dir: The folder that holds `l2/`.
        name: What to call the file that `text` was read from.

    Returns:
        One entry for each line; the lines that mark a header's begin and end count as the line
        that includes it.
    """
    return [origin for _, origin in _traced(text, name, include_dir, set())]


def _traced(text: str, name: str, include_dir: Path, seen: set[str]) -> list[tuple[str, Origin]]:
    """The flattened lines of one file, each with its origin."""
    lines: list[tuple[str, Origin]] = []
    for number, line in enumerate(text.split("\n"), 1):
        here = (name, number)
        match = _INCLUDE.fullmatch(line)
        if match is None:
            if not (_NAME.fullmatch(name) and _ONCE.fullmatch(line + "\n")):
                lines.append((line, here))
        elif match["name"] in seen:
            lines.append(("", here))
        else:
            header = match["name"]
            seen.add(header)
            body = _traced((include_dir / header).read_text(), header, include_dir, seen)
            while body and not body[0][0].strip():
                body.pop(0)
            while body and not body[-1][0].strip():
                body.pop()
            lines += [(f"// ---- {header}", here), *body, (f"// ---- end of {header}", here)]
    return lines
