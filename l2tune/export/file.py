"""Assembles an exported file from its kernel and what `host` and `verified` write."""

from l2tune.export import host, regions, sidefile, verified
from l2tune.spec.record import EstimatedRecord, Record


def export(record: Record | EstimatedRecord) -> str:
    """Write the kernel of `record` as one self-contained file.

    A CUDA kernel becomes a program: its first lines hold the command that builds and runs it, and
    running it checks and times the kernel on the record's problem. A Triton kernel stays a kernel
    file, which l2tune runs.

    Returns:
        The file's text; `parse_export` of it is the record's source.

    Raises:
        HeaderError: If the kernel file holds a `[verified]` table already.
    """
    source = record.verified.compiled.source
    stem = sidefile.file_stem(record)
    table = verified.verified_table(record)
    if source.backend == "triton":
        sizes = f"{record.key.m} {record.key.n} {record.key.k}"
        note = f"# Check and time it:\n#   l2tune verify {stem}.py --shape {sizes}\n"
        return regions.insert(source.text, regions.Regions(note, table))
    note = f"# Build and run, to check and time it:\n#   {host.build_command(source, stem)}\n"
    return regions.insert(
        source.text, regions.Regions(note, table, host.picks(source), host.program(record, stem))
    )
