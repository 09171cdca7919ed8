"""An export of what was never timed says so, and holds no time."""

import samples
import seeds
from hypothesis import given

from l2tune.export import describe, export, file_stem, parse_export
from l2tune.spec.header import parse
from l2tune.spec.outcome import Estimated
from l2tune.spec.record import EstimatedRecord, Record


def never_timed(record: Record) -> EstimatedRecord:
    """The same kernel, estimated."""
    outcome = Estimated(
        verified=record.verified, estimate_us=7.25, terms_us={"launch": 7.25}, floor_us=1.0
    )
    kept = {name: getattr(record, name) for name in ("key", "origin", "tools", "created")}
    return EstimatedRecord(outcome=outcome, **kept)


@given(record=samples.records())
def test_parsing_its_export_gives_the_estimate_s_source(record: Record) -> None:
    found = never_timed(record)
    assert parse_export(export(found)) == record.verified.compiled.source


def test_its_table_says_that_an_emulator_proved_it_and_nothing_timed_it() -> None:
    text = export(never_timed(seeds.hopper()))
    claims = parse(text)[1].verified
    assert claims["processor"] == "emulator"
    assert claims["timed"] is False
    assert claims["examples"] == 2
    assert claims["left_out"] == ""
    assert not [name for name in claims if name == "us" or "_us" in name or name == "speedup"]
    assert "7.25" not in text
    assert 'kTunedTime[] = "never timed"' in text
    assert 'kTunedTime[] = "1000.00 us"' in export(seeds.hopper())


def test_it_never_overwrites_the_export_of_a_record() -> None:
    record = seeds.hopper()
    assert file_stem(never_timed(record)) != file_stem(record)
    assert describe(record)["timed"] is True
    assert describe(never_timed(record))["timed"] is False
