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
