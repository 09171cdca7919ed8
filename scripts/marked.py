"""What a script writes into a document, between two marks that stand there."""

import sys
from pathlib import Path


def replaced(document: Path, name: str, new: str) -> str:
    """The text of a document with `new` between `<!-- name:begin -->` and `<!-- name:end -->`.

    Raises:
        SystemExit: If the marks are not there.
    """
    opening, closing = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, begin, rest = document.read_text().partition(opening)
    _, end, after = rest.partition(closing)
    if not begin or not end:
        sys.exit(
            f"{document}: needed the lines {opening} and {closing}; add them where the table goes"
        )
    return f"{before}{opening}\n{new}\n{closing}{after}"


def put(document: Path, name: str, new: str, *, check: bool, stale: str) -> int:
    """Write what `replaced` gives or, with `check`, only say that it is not there yet.

    Args:
        document: As for `replaced`.
        name: Likewise.
        new: Likewise.
        check: Whether to leave the document as it is.
        stale: What is said, behind the document's name, where it would change.

    Returns:
        An exit status: 1 for a document that is checked and would change.
    """
    wanted = replaced(document, name, new)
    if not check:
        document.write_text(wanted)
        return 0
    if document.read_text() == wanted:
        return 0
    print(f"{document}: {stale}", file=sys.stderr)
    return 1
