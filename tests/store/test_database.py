"""A database that is damaged, full, locked or fought over is a miss, or one clear sentence."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from samples import record

from l2tune.errors import CacheError, CacheWarning
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.store import Registry, database

KEY = GemmKey.dense(64, 64, 64, gpu=H200)
TESTS = Path(__file__).parents[1]
PREAMBLE = """
import resource, sys, time, warnings
from pathlib import Path
from samples import record
from l2tune.errors import CacheError
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.store import Registry
root = Path(sys.argv[1])
keys = [GemmKey.dense(64, 64, 64 * i, gpu=H200) for i in range(1, 5)]
warnings.simplefilter("always")
"""


def start(script: str, root: Path, **options: object) -> subprocess.Popen:
    """A process that runs `script`, with `samples` to import and `root` to fill."""
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + script, str(root)],
        env={**os.environ, "PYTHONPATH": str(TESTS)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def damage(kind: str, path: Path) -> None:
    size = path.stat().st_size
    if kind == "rubbish":
        path.write_bytes(random.Random(0).randbytes(size))
    elif kind == "cut":
        os.truncate(path, size // 2 + 100)
    elif kind == "pages":
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(random.Random(0).randbytes(size - 4096))
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize("kind", ["rubbish", "cut", "pages", "directory"])
def test_a_damaged_database_is_a_miss_with_one_warning_and_put_says_so(cache_dir, kind):
    before = Registry(cache_dir)
    before.put(record(KEY))
    before._records._cache.close()  # the last to close moves the log into the database
    damage(kind, cache_dir / "records" / "cache.db")
    registry = Registry(cache_dir)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [registry.get(KEY), registry.get(KEY)] == [None, None]
        assert (list(registry.records()), registry.wanted()) == ([], [])
        assert Registry(cache_dir).get(KEY) is None
        registry.miss(KEY)
    assert [warning.category for warning in caught] == [CacheWarning], [str(c) for c in caught]
    with pytest.raises(CacheError, match=str(cache_dir / "records")) as refused:
        registry.put(record(KEY))
    assert "\n" not in str(refused.value)


def test_a_locked_database_costs_one_wait_and_not_one_for_each_call(cache_dir, monkeypatch):
    monkeypatch.setattr(database, "_BUSY_LIMIT_S", 0.2)
    monkeypatch.setattr(database, "_OPEN_LIMIT_S", 0.5)
    Registry(cache_dir).put(record(KEY))
    holder = sqlite3.connect(cache_dir / "records" / "cache.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    registry = Registry(cache_dir)
    before = time.monotonic()
    with pytest.warns(CacheWarning, match="locked by another process"):
        assert [registry.get(KEY) for _ in range(50)] == [None] * 50
    assert time.monotonic() - before < 3
    holder.close()
    assert Registry(cache_dir).get(KEY) == record(KEY)


def test_an_open_database_is_read_while_another_process_writes(cache_dir):
    registry = Registry(cache_dir)
    registry.put(record(KEY))
    holder = sqlite3.connect(cache_dir / "records" / "cache.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert registry.get(KEY) == record(KEY)
    holder.close()


FULL_DISK = """
registry = Registry(root)
registry.put(record(keys[0]))
size = max(path.stat().st_size for path in (root / "records").iterdir())
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, size + 5000))
try:
    for count in range(100):
        registry.put(record(keys[1], "x" * 1000 + str(count)))
except CacheError as error:
    print(error)
assert registry.get(keys[0]) == record(keys[0])
for _ in range(100):
    registry.miss(keys[2])
"""


def test_a_full_disk_is_one_sentence_from_put_and_what_was_stored_stays(cache_dir):
    out, err = start(FULL_DISK, cache_dir).communicate()
    assert out.count("\n") == 1, out + err
    assert out.startswith(f"cache database {cache_dir / 'records'}: ")
    assert err.count("CacheWarning") <= 1, err
    assert "Traceback" not in err
    assert Registry(cache_dir).get(KEY) == record(KEY)


def test_a_database_at_its_size_limit_says_that_it_is_full(cache_dir):
    registry = Registry(cache_dir)
    registry.put(record(KEY))
    cache = registry._records._cache
    (pages,) = cache._sql("PRAGMA page_count").fetchone()
    cache._sql(f"PRAGMA max_page_count = {pages}").fetchall()
    with pytest.raises(CacheError, match="no space to write"):
        registry.put(record(GemmKey.dense(1, 1, 1, gpu=H200), "x" * 100_000))
    assert registry.get(KEY) == record(KEY)


def test_the_sentence_tells_the_first_cause_and_not_what_followed_from_it(cache_dir):
    registry = Registry(cache_dir)
    registry.put(record(KEY))
    registry._records._cache._sql(
        "CREATE TRIGGER planted BEFORE UPDATE ON Cache BEGIN SELECT RAISE(ROLLBACK, 'first'); END"
    )
    with pytest.raises(CacheError, match="first"):
        registry.put(record(KEY))


TRUNCATED_WHILE_OPEN = """
import os
registry = Registry(root)
registry.put(record(keys[0], "x" * 100_000))
registry._records._cache.close()
registry = Registry(root)
registry.get(keys[1])
os.truncate(root / "records" / "cache.db", 4096)
registry.get(keys[0])
"""


def test_a_database_cut_while_it_is_open_does_not_kill_its_reader(cache_dir):
    child = start(TRUNCATED_WHILE_OPEN, cache_dir)
    err = child.communicate()[1]
    assert child.returncode == 0, (child.returncode, err)
    assert err.count("CacheWarning:") == 1


OPEN_AT_ONCE = """
import os
import diskcache
go, release = os.pipe()
children = []
for number in range(16):
    if (child := os.fork()) == 0:
        os.close(release)
        os.read(go, 1)  # ends for all children at once, when the parent closes its end
        registry = Registry(root)
        for _ in range(5):
            for key in keys:
                found = registry.get(key)
                assert found is None or found.key == key
                registry.miss(key)
                registry.put(record(key, f"// {number}"))
                assert registry.get(key).key == key
        os._exit(0)
    children.append(child)
time.sleep(0.2)
os.close(release)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def test_sixteen_processes_open_and_write_one_empty_directory_at_once(cache_dir):
    parent = start(OPEN_AT_ONCE, cache_dir)
    out, err = parent.communicate(timeout=120)
    assert (parent.returncode, out, err) == (0, "", "")
    assert len(list(Registry(cache_dir).records())) == 4


WRITE_FOR_EVER = """
registry = Registry(root)
print("ready", flush=True)
for count in range(10**9):
    registry.put(record(keys[count % 4], f"// {count}" + "x" * (count * 997 % 50_000)))
    print(count, flush=True)
"""


@pytest.mark.parametrize("after_s", [0.05, 0.3])
def test_a_writer_killed_in_the_middle_loses_at_most_the_entry_it_wrote(cache_dir, after_s):
    child = start(WRITE_FOR_EVER, cache_dir)
    assert child.stdout.readline() == "ready\n"
    time.sleep(after_s)
    child.send_signal(signal.SIGKILL)
    counts = [int(line) for line in child.communicate()[0].split()]
    registry = Registry(cache_dir)
    stored = {found.key.k // 64 - 1: found for found in registry.records()}
    for slot in range(4):
        done = [count for count in counts if count % 4 == slot]
        if done:
            text = stored[slot].outcome.timing.verified.compiled.source.text
            kept = int(text.rsplit("// ", 1)[1].rstrip("x") or -1)
            assert kept >= done[-1], f"entry {done[-1]} was reported and is lost"
    before = time.monotonic()
    registry.put(record(KEY))
    assert registry.get(KEY) == record(KEY)
    assert time.monotonic() - before < 5, "what a killed process left behind must not be waited for"


def test_opening_imports_diskcache_only_when_something_is_asked():
    script = "import l2tune.store, sys; sys.exit('diskcache' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
