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
