"""What waits for its re-check: apart from records, found by key, asked for by calls."""

from pathlib import Path

import pytest

from l2tune.errors import CacheError
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.store import Artifacts, Pending, Registry

KEY, OTHER = (GemmKey.dense(64, n, 64, gpu=H200) for n in (64, 128))


def test_a_kernel_waits_until_it_is_taken_out(cache_dir: Path) -> None:
    Pending(cache_dir).put(KEY, "text é")
    pending = Pending(cache_dir)
    assert (pending.get(KEY), pending.get(OTHER)) == ("text é", None)
    assert (pending.keys(), pending.asked()) == ([KEY], [])
    assert pending.ask(KEY)
    assert not pending.ask(OTHER)
    assert Pending(cache_dir).asked() == [KEY]
    pending.remove(KEY)
    assert (pending.get(KEY), pending.keys(), pending.asked()) == (None, [], [])


def test_it_is_no_record(cache_dir: Path) -> None:
    Pending(cache_dir).put(KEY, "text")
    assert Registry(cache_dir).get(KEY) is None
    assert list(Registry(cache_dir).records()) == []


def test_a_changed_text_is_missing(cache_dir: Path) -> None:
    pending = Pending(cache_dir)
    pending.put(KEY, "text")
    digest = Artifacts(cache_dir).put(b"text")
    (cache_dir / "artifacts" / digest[:2] / digest).write_text("Text")
    assert pending.get(KEY) is None


def test_a_damaged_database_is_one_warning_for_a_call_and_an_error_for_a_command(
    cache_dir: Path,
) -> None:
    Pending(cache_dir).put(KEY, "text")
    for path in (cache_dir / "packs").glob("cache.db*"):
        path.write_bytes(b"no database" * 1000)
    damaged = Pending(cache_dir)
    with pytest.warns(UserWarning, match="a pack's kernel is not asked for"):
        assert not damaged.ask(KEY)
    with pytest.warns(UserWarning, match="a pack's kernel is not found"):
        assert damaged.get(KEY) is None
    with pytest.raises(CacheError):
        damaged.put(KEY, "text")
