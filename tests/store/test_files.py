"""Files are written whole or not at all, in a directory that nobody else can write to."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2tune.errors import CacheError
from l2tune.store.artifacts import Artifacts
from l2tune.store.files import private_directory, write_whole

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")


def outcome_as_another_user(path: Path) -> str:
    """What `private_directory(path)` says to a process of the user `nobody`."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        try:
            private_directory(path)
            os.write(writer, b"accepted")
        except CacheError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(reader, 10_000).decode()


def test_a_new_directory_is_its_owners_alone(tmp_path):
    made = private_directory(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o700
    assert private_directory(made) == made


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722, 0o720])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(CacheError, match="can be written by others; run chmod 700"):
        private_directory(tmp_path)


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(CacheError, match="L2TUNE_CACHE_DIR"):
        private_directory(tmp_path / "cache")


@as_root
def test_a_foreign_directory_is_refused(tmp_path):
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(CacheError, match="belongs to user 65534, needed 0"):
        private_directory(tmp_path)


@as_root
def test_a_read_only_directory_is_refused():
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o755)
        folder = Path(open_to_all, "cache")
        folder.mkdir(0o500)
        os.chown(folder, NOBODY, NOBODY)
        assert "is read-only; set L2TUNE_CACHE_DIR" in outcome_as_another_user(folder)
        assert "Permission denied" in outcome_as_another_user(Path(open_to_all, "other"))


@given(st.binary(max_size=1000))
def test_an_artifact_reads_back_under_the_hash_of_its_content(data):
    with tempfile.TemporaryDirectory() as root:
        artifacts = Artifacts(Path(root))
        digest = artifacts.put(data)
        assert artifacts.get(digest) == data
        assert Artifacts(Path(root)).put(data) == digest


@given(st.binary(min_size=1, max_size=100), st.data())
def test_a_flipped_bit_is_a_missing_artifact_until_it_is_put_again(data, draw):
    with tempfile.TemporaryDirectory() as root:
        artifacts = Artifacts(Path(root))
        digest = artifacts.put(data)
        (path,) = (path for path in Path(root).rglob("*") if path.is_file())
        damaged = bytearray(data)
        damaged[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
        path.write_bytes(damaged)
        assert artifacts.get(digest) is None
        assert artifacts.put(data) == digest
        assert artifacts.get(digest) == data


@pytest.mark.parametrize("digest", ["", "..", "../../etc/passwd", "\0", "f" * 64, "f" * 5000])
def test_a_name_that_is_no_digest_is_a_missing_artifact(tmp_path, digest):
    assert Artifacts(tmp_path).get(digest) is None


# The file size limit makes the kernel refuse a write in the middle, as a full disk does.
FULL_DISK = """
import resource, sys
from pathlib import Path
from l2tune.errors import CacheError
from l2tune.store.files import write_whole
path = Path(sys.argv[1], "file")
write_whole(path, b"old")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_whole(path, b"new" * 10000)
except CacheError as error:
    print(error)
"""


def test_a_write_that_the_disk_refuses_leaves_the_old_file_and_no_rubbish(tmp_path):
    script = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert done.stdout == f"cannot write {tmp_path}/file: File too large\n"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_directory_that_went_away_is_a_cache_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot write"):
        write_whole(tmp_path / "file" / "below", b"")
