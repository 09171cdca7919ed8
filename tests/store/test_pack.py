"""Packs: text that reads back as itself, and is refused where anything else stands in it."""

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import seeds
from hypothesis import given
from samples import record, records, timing

from l2tune.errors import PackError
from l2tune.spec.gpu import A100, H200, Gpu
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, Declined, Interval
from l2tune.spec.record import Record
from l2tune.store.entry import Entry
from l2tune.store.pack import Pack, find, shipped_folder, write

KEYS = [GemmKey.dense(64, n, 64, gpu=H200) for n in (64, 128, 256)]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three keys, two kernels."""
    made = tmp_path / "pack"
    write(made, H200, [record(KEYS[1]), record(KEYS[0]), record(KEYS[2], "// another\n")])
    return made


@given(records())
def test_an_entry_reads_back_from_its_line(found: Record) -> None:
    entry = Entry.of(found)
    assert Entry.model_validate_json(entry.line) == entry
    assert "\n" not in entry.line
    assert entry.key == found.key
    shown, measured = entry.times.gpu.us, found.outcome.timing.gpu.us
    assert math.isclose(shown, measured, rel_tol=1e-5)
    if isinstance(found.outcome, Admitted):
        assert (entry.eager, entry.graph) == (found.outcome.eager, found.outcome.graph)
    else:
        assert (entry.eager, entry.graph, entry.reason) == ("torch", "torch", found.outcome.reason)


def test_each_kernel_is_there_once_and_comes_back_whole(folder: Path) -> None:
    pack = Pack.read(folder)
    assert [entry.key for entry in pack.entries] == sorted(KEYS, key=str)
    assert len(list((folder / "kernels").iterdir())) == 2
    for entry in pack.entries:
        body = "// another\n" if entry.key == KEYS[2] else None
        expected = record(entry.key) if body is None else record(entry.key, body)
        assert pack.source(entry) == expected.verified.compiled.source
        assert entry == Entry.of(expected)
    assert pack.unused() == []


def test_the_same_records_make_the_same_bytes_and_fewer_leave_nothing_behind(folder: Path) -> None:
    before = contents(folder)
    write(folder, H200, [record(KEYS[2], "// another\n"), record(KEYS[0]), record(KEYS[1])])
    assert contents(folder) == before
    write(folder, H200, [record(KEYS[0])])
    assert len(contents(folder)) == 3
    assert Pack.read(folder).unused() == []


def test_a_verdict_for_torch_is_kept_with_its_reason(tmp_path: Path) -> None:
    declined = Declined(timing=timing(KEYS[0]), reason="not faster")
    pack = write(tmp_path / "p", H200, [record(KEYS[0]).model_copy(update={"outcome": declined})])
    (entry,) = pack.entries
    assert (entry.eager, entry.graph, entry.reason) == ("torch", "torch", "not faster")


def test_it_is_text_without_machine_code_or_places_of_this_machine(folder: Path) -> None:
    for data in contents(folder).values():
        text = data.decode()
        assert str(folder) not in text
    (line, *_) = (folder / "records.jsonl").read_text().splitlines()
    assert "ptx" not in json.loads(line)


def edit(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


def _kernel(folder: Path) -> Path:
    return folder / "kernels" / Pack.read(folder).entries[0].kernel


def _in_first_line(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: edit(folder, "records.jsonl", old, new)


def _twice(folder: Path) -> None:
    path = folder / "records.jsonl"
    first = path.read_text().splitlines(keepends=True)[0]
    path.write_text(first + path.read_text())


def _swapped(folder: Path) -> None:
    path = folder / "records.jsonl"
    first, second, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]))


def _cut_off(folder: Path) -> None:
    path = folder / "records.jsonl"
    path.write_text(path.read_text()[:-2])


def _other_gpu(folder: Path) -> None:
    edit(folder, "pack.toml", str(H200), str(A100))


MIG = Gpu(name=H200.name, capability=(9, 0), sms=16)
TAMPERED: dict[str, tuple[Callable[[Path], None], str]] = {
    "unknown field": (_in_first_line('"created"', '"run":"rm -rf","created"'), "unknown key 'run'"),
    "path": (_in_first_line('"kernel":"', '"kernel":"../../'), "no kernel's file name"),
    "absolute path": (_in_first_line('"kernel":"', '"kernel":"/etc/'), "no kernel's file name"),
    "newline in a path": (_in_first_line('.cu"', '.cu\\n"'), "no kernel's file name"),
    "infinite": (_in_first_line('"us":1000.0', '"us":1e999'), "line 1"),
    "not a number": (_in_first_line('"us":1000.0', '"us":NaN'), "line 1"),
    "negative": (_in_first_line('"us":1000.0', '"us":-1.0'), "is no time"),
    "digits without end": (_in_first_line("x64/", "x" + "9" * 5000 + "/"), "line 1"),
    "size beyond count": (_in_first_line('"samples":30', f'"samples":{"9" * 5000}'), "line 1"),
    "text for a number": (_in_first_line('"us":1000.0', '"us":"1000.0"'), "not written as"),
    "a field twice": (_in_first_line('{"key"', '{"created":"x","key"'), "not written as"),
    "spaces": (_in_first_line('{"key":', '{"key": '), "not written as"),
    "other GPU in a key": (_in_first_line(str(H200), str(MIG)), "holds gemm/"),
    "other GPU": (_other_gpu, "holds gemm/"),
    "a key twice": (_twice, "twice"),
    "order": (_swapped, "not sorted"),
    "cut off": (_cut_off, "cut off"),
    "schema": (lambda f: edit(f, "pack.toml", "version = 2", "version = 3"), "schema 3, needed 2"),
    "more in the head": (lambda f: edit(f, "pack.toml", "gpu", "x = 1\ngpu"), "holds more than"),
    "no TOML": (lambda f: edit(f, "pack.toml", "gpu", "gpu ="), "pack.toml"),
    "no text": (lambda f: (f / "records.jsonl").write_bytes(b"\xff\n"), "records.jsonl"),
    "no records": (lambda f: (f / "records.jsonl").unlink(), "no such file"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_l2tune_did_not_write_is_refused(name: str, folder: Path) -> None:
    tamper, said = TAMPERED[name]
    tamper(folder)
    with pytest.raises(PackError, match=said) as caught:
        Pack.read(folder)
    assert len(str(caught.value)) < 1000


def _flip(path: Path) -> None:
    path.write_text(path.read_text().replace("c[threadIdx.x] = 1", "c[threadIdx.x] = 2"))


def _grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" " * 400_001)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [(_flip, "does not match its name"), (_grow, "larger than"), (Path.unlink, "no such file"),
     (_fifo, "no such file")],
    ids=["byte", "size", "missing", "fifo"],
)  # fmt: skip
def test_a_changed_kernel_is_refused(change: Callable[[Path], None], said: str, folder: Path):
    change(_kernel(folder))
    pack = Pack.read(folder)
    with pytest.raises(PackError, match=said):
        pack.source(pack.entries[0])


def test_a_kernel_that_is_not_one_for_its_key_is_refused(tmp_path: Path) -> None:
    found = seeds.hopper()
    other = GemmKey.dense(500, 768, 512, gpu=H200, batch=4, layout="tn")  # rows are not aligned
    write(tmp_path / "p", H200, [found])
    edit(tmp_path / "p", "records.jsonl", str(found.key), str(other))
    pack = Pack.read(tmp_path / "p")
    with pytest.raises(PackError, match="does not serve"):
        pack.source(pack.entries[0])


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(PackError, match="something else"):
        write(tmp_path, H200, [record(KEYS[0])])
    assert contents(tmp_path) == {"precious.txt": b"mine"}


def test_a_record_with_an_impossible_time_is_not_packed(tmp_path: Path) -> None:
    wrong = timing(KEYS[0], gpu=Interval(us=math.inf, lo=1.0, hi=math.inf))
    outcome = Admitted(timing=wrong, eager="kernel", graph="kernel")
    found = record(KEYS[0]).model_copy(update={"outcome": outcome})
    with pytest.raises(PackError, match="is no time"):
        write(tmp_path / "p", H200, [found])
    assert not (tmp_path / "p").exists()


def test_a_record_of_another_gpu_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="cannot hold"):
        write(tmp_path / "p", A100, [record(KEYS[0])])
    assert not (tmp_path / "p").exists()


def test_a_kernel_is_a_candidate_where_its_contract_names_the_target(tmp_path: Path) -> None:
    h100 = Gpu(name="NVIDIA H100 80GB HBM3", capability=(9, 0), sms=132)
    split, hopper = seeds.split_k(), seeds.hopper()
    pack = write(tmp_path / "p", H200, [split, hopper])

    def on(found: Record, gpu: Gpu) -> list[str]:
        key = found.key.model_copy(update={"gpu": gpu})
        return [source.arch for source in pack.candidates(key)]

    assert on(hopper, h100) == ["sm_90a"]
    assert on(hopper, A100) == []
    assert on(split, A100) == ["sm_80"]
    assert pack.candidates(KEYS[0]) == []
    assert pack.keys_on(A100)[0].gpu == A100
    (damaged,) = [e.kernel for e in pack.entries if e.key == split.key]
    (pack.folder / "kernels" / damaged).write_text("")
    with pytest.raises(PackError, match="does not match its name"):
        on(split, A100)


def test_every_shipped_pack_is_whole() -> None:
    names = [path.parent.name for path in shipped_folder().glob("*/pack.toml")]
    assert "nvidia-h200" in names
    for name in names:
        pack = Pack.read(find(name))
        assert pack.gpu.slug == name
        assert pack.entries
        assert pack.unused() == []
        for entry in pack.entries:
            assert pack.source(entry).serves(entry.key)


def test_a_pack_is_found_by_folder_or_by_name(folder: Path, tmp_path: Path) -> None:
    assert find(str(folder)) == folder
    assert find("nvidia-h200") == shipped_folder() / "nvidia-h200"
    for wrong in ("nvidia-b200", str(tmp_path), "../cache/nvidia-h200x"):
        with pytest.raises(PackError, match="needed a folder with"):
            find(wrong)
    shutil.rmtree(folder / "kernels")
    with pytest.raises(PackError, match="no such file"):
        Pack.read(folder).source(Pack.read(folder).entries[0])
