"""Record -> one self-contained file that builds, checks and times itself, and back again.

It also describes a record for other programs: a side file for each export, rows of a table. Nothing
here compiles, launches or measures.
"""

from l2tune.export.file import export
from l2tune.export.regions import is_export, parse_export
from l2tune.export.sidefile import describe, file_stem

__all__ = ["describe", "export", "file_stem", "is_export", "parse_export"]
