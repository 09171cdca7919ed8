"""A cache may cost speed and never an answer."""

import pickle
import sqlite3
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import BODY, keys, record, records

from l2tune.errors import CacheError, CacheWarning
from l2tune.spec.gpu import A100, H200
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import CompileFailed, Finding, Refuted
from l2tune.spec.record import SCHEMA_VERSION
from l2tune.store import Registry

RECORD = f"record/{SCHEMA_VERSION}/"
KEY = GemmKey.dense(64, 64, 64, gpu=H200)
OTHER = GemmKey.dense(128, 64, 64, gpu=H200)
REFUTED = Refuted(
    stage="properties", check="values", finding=Finding.WRONG_VALUE, detail="é", case={"m": 1}
)
FAILED = CompileFailed(kind="time_limit", log="took longer than 3 s")


def sql(root: Path, statement: str, *values: object) -> list[tuple]:
    """Change the records' database behind the registry's back."""
    connection = sqlite3.connect(root / "records" / "cache.db", isolation_level=None)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def with_one_warning(act):
    """The result of `act`, and the text of the one CacheWarning it gave in two calls."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [act(), act()]
    assert results[0] == results[1]
    assert [warning.category for warning in caught] == [CacheWarning], [str(c) for c in caught]
    return results[0], str(caught[0].message)


@pytest.fixture(scope="module")
def two_views(tmp_path_factory):
    """Two registries of one directory, as two processes have them."""
    root = tmp_path_factory.mktemp("cache")
    return Registry(root), Registry(root)


@given(found=records())
def test_a_record_reads_back_equal_through_another_connection(two_views, found):
    writer, reader = two_views
    writer.put(found)
    assert reader.get(found.key) == found


def test_the_list_holds_every_record_of_every_gpu(cache_dir):
    registry = Registry(cache_dir)
    stored = [
        record(GemmKey.dense(64, 64, 64 * i, gpu=gpu)) for i in range(1, 80) for gpu in (H200, A100)
    ]
    for entry in stored:
        registry.put(entry)
    listed = list(Registry(cache_dir).records())
    assert sorted(str(entry.key) for entry in listed) == sorted(str(entry.key) for entry in stored)
    assert all(entry in stored for entry in listed)


@given(keys(), st.text("0123456789abcdef", min_size=1), st.sampled_from([REFUTED, FAILED]))
def test_a_refusal_is_remembered_for_its_key_and_kernel_alone(two_views, key, digest, value):
    writer, reader = two_views
    writer.remember_refusal(key, digest, value)
    assert reader.refusal(key, digest) == value
    assert reader.refusal(key, digest + "x") is None
    assert reader.refusal(key.model_copy(update={"k": key.k + 1}), "x" + digest) is None


def test_a_refusal_by_another_version_of_the_gate_does_not_count(cache_dir, monkeypatch):
    registry = Registry(cache_dir)
    registry.remember_refusal(KEY, "d", REFUTED)
    monkeypatch.setattr("l2tune.store.registry.__version__", "99")
    assert registry.refusal(KEY, "d") is None


def test_the_newest_record_for_a_key_replaces_the_one_before(cache_dir):
    registry = Registry(cache_dir)
    newer = record(KEY, BODY + "// newer")
    registry.put(record(KEY))
    registry.put(newer)
    assert registry.get(KEY) == newer
    assert list(registry.records()) == [newer]


def test_a_forgotten_record_is_gone_and_forgetting_again_is_no_error(cache_dir):
    registry = Registry(cache_dir)
    registry.put(record(KEY))
    registry.forget(KEY)
    registry.forget(KEY)
    assert registry.get(KEY) is None


def test_a_quarantined_kernel_is_no_record_but_stays_listed(cache_dir):
    registry = Registry(cache_dir)
    registry.put(record(KEY))
    digest = record(KEY).outcome.timing.verified.compiled.source.digest
    Registry(cache_dir).quarantine(digest)
    assert registry.get(KEY) is None
    assert registry.quarantined() == {digest}
    assert list(registry.records()) == [record(KEY)]


def test_a_damaged_quarantine_row_still_withdraws_the_kernel(cache_dir):
    registry = Registry(cache_dir)
    registry.put(record(KEY))
    digest = record(KEY).outcome.timing.verified.compiled.source.digest
    registry.quarantine(digest)
    sql(cache_dir, "UPDATE Cache SET value = x'80', mode = 4 WHERE key LIKE 'quarantine/%'")
    with pytest.warns(CacheWarning):
        assert registry.get(KEY) is None
    assert registry.quarantined() == {digest}


def test_misses_are_counted_and_the_most_wanted_key_comes_first(cache_dir):
    registry = Registry(cache_dir)
    registry.miss(KEY)
    registry.miss(OTHER, count=5)
    registry.miss(KEY)
    assert registry.wanted() == [(OTHER, 5), (KEY, 2)]
    registry.put(record(OTHER))
    assert Registry(cache_dir).wanted() == [(KEY, 2)]


def test_what_serves_a_missed_key_is_remembered_until_the_next_miss_or_a_record(cache_dir):
    registry = Registry(cache_dir)
    registry.miss(KEY, nearest="x/one")
    registry.miss(OTHER)
    registry.miss(OTHER, count=0, nearest="x/two")
    assert Registry(cache_dir).served_by_nearest() == {KEY: "x/one", OTHER: "x/two"}
    assert sorted(count for _, count in registry.wanted()) == [1, 1]
    registry.miss(KEY)
    registry.put(record(OTHER))
    assert Registry(cache_dir).served_by_nearest() == {}


def test_a_record_moved_to_another_key_or_gpu_is_a_miss(cache_dir):
    registry = Registry(cache_dir)
    registry.put(record(KEY))
    sql(cache_dir, "UPDATE Cache SET key = ?", f"{RECORD}{OTHER}")
    found, said = with_one_warning(lambda: registry.get(OTHER))
    assert found is None
    assert "does not hold what l2tune writes" in said


def test_a_row_relabelled_for_another_capability_is_a_miss(cache_dir):
    registry = Registry(cache_dir)
    registry.put(record(KEY))
    (text,) = sql(cache_dir, "SELECT value FROM Cache")[0]
    ampere = KEY.model_copy(update={"gpu": A100})
    forged = text.replace('"NVIDIA H200"', f'"{A100.name}"').replace("[9,0]", "[8,0]")
    forged = forged.replace('"sms":132', '"sms":108')
    sql(cache_dir, "UPDATE Cache SET key = ?, value = ?", f"{RECORD}{ampere}", forged)
    found, said = with_one_warning(lambda: registry.get(ampere))
    assert found is None
    assert "does not serve" in said


def test_saving_leaves_the_entries_of_other_gpus_as_they_are(cache_dir):
    registry = Registry(cache_dir)
    registry.put(record(KEY.model_copy(update={"gpu": A100})))
    before = sql(cache_dir, "SELECT key, value FROM Cache")
    registry.put(record(KEY))
    assert before[0] in sql(cache_dir, "SELECT key, value FROM Cache")
    assert registry.get(KEY.model_copy(update={"gpu": A100})).key.gpu == A100


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "{}", "[" * 100_000, '{"schema_version": 99}', "é"],
)
def test_a_row_of_other_text_is_a_miss_and_is_skipped_in_the_list(cache_dir, text):
    registry = Registry(cache_dir)
    registry.put(record(KEY))
    registry.put(record(OTHER))
    sql(cache_dir, "UPDATE Cache SET value = ? WHERE key = ?", text, f"{RECORD}{KEY}")
    found, said = with_one_warning(lambda: registry.get(KEY))
    assert found is None
    assert str(cache_dir) in said
    assert list(registry.records()) == [record(OTHER)]
    registry.put(record(KEY))
    assert registry.get(KEY) == record(KEY)


def test_a_record_that_contradicts_itself_is_not_stored(cache_dir):
    forged = record(KEY).model_copy(update={"key": OTHER})
    with pytest.raises(CacheError, match="is not stored"):
        Registry(cache_dir).put(forged)
    assert Registry(cache_dir).get(OTHER) is None


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


_WITH = "UPDATE Cache SET value = NULL, mode ="
POISONS = {
    "pickle in the row": "UPDATE Cache SET mode = 4, value = :pickle WHERE key = :key",
    "pickle in a side file": f"{_WITH} 4, filename = 'bomb' WHERE key = :key",
    "side file elsewhere": f"{_WITH} 4, filename = :path WHERE key = :key",
    "text in a file elsewhere": f"{_WITH} 3, filename = :path WHERE key = :key",
    "bytes": f"{_WITH} 2, filename = 'bomb' WHERE key = :key",
    "a number": "UPDATE Cache SET value = 7 WHERE key = :key",
    "a blob": "UPDATE Cache SET value = :pickle WHERE key = :key",
}


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS)
def test_a_poisoned_row_runs_nothing_and_is_a_miss_with_one_warning(cache_dir, tmp_path, poison):
    registry = Registry(cache_dir)
    registry.put(record(KEY))
    registry.put(record(OTHER))
    marker, outside = tmp_path / "marker", tmp_path / "outside"
    bomb = pickle.dumps(Bomb(marker))
    (cache_dir / "records" / "bomb").write_bytes(bomb)
    outside.write_bytes(bomb)
    connection = sqlite3.connect(cache_dir / "records" / "cache.db")
    with connection:
        names = {"key": f"{RECORD}{KEY}", "pickle": bomb, "path": "../outside"}
        connection.execute(poison, {n: v for n, v in names.items() if f":{n}" in poison})
    connection.close()
    found, said = with_one_warning(lambda: registry.get(KEY))
    assert (found, marker.exists()) == (None, False)
    assert "is not the plain text that l2tune writes" in said
    assert list(registry.records()) == [record(OTHER)]
    registry.put(record(KEY))  # overwriting a row must not remove the file that it names
    assert outside.exists()
    assert registry.get(KEY) == record(KEY)
    assert not marker.exists()


def test_a_pickled_key_is_passed_over_and_not_loaded(cache_dir, tmp_path):
    registry = Registry(cache_dir)
    registry.put(record(KEY))
    bomb = pickle.dumps(Bomb(tmp_path / "marker"))
    for raw, key in ((0, bomb), (0, f"{RECORD}a"), (1, f"{RECORD}b".encode()), (1, 7)):
        sql(cache_dir, "INSERT INTO Cache(key, raw, mode, value) VALUES (?, ?, 1, 'x')", key, raw)
    assert list(registry.records()) == [record(KEY)]
    assert not (tmp_path / "marker").exists()


def test_no_module_of_the_package_unpickles():
    package = Path(__file__, "../../../l2tune").resolve()
    for path in package.rglob("*.py"):
        text = path.read_text()
        assert "import pickle" not in text, path
        assert "from pickle" not in text, path


@pytest.mark.parametrize("setting", ["disk_fetch", "disk_x", "get", "sqlite_nonsense", "size"])
def test_settings_planted_in_the_database_never_reach_the_caller(cache_dir, setting):
    Registry(cache_dir).put(record(KEY))
    sql(cache_dir, "INSERT OR REPLACE INTO Settings VALUES (?, 'x')", setting)
    registry = Registry(cache_dir)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        assert registry.get(KEY) in (None, record(KEY))
        registry.miss(KEY)
        list(registry.records())
