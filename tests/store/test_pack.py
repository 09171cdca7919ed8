"""Packs: text that reads back as itself, and is refused where anything else stands in it."""

import functools
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import seeds
from hypothesis import given
from hypothesis import strategies as st
from samples import TOOLS, record, records, timing

from l2tune import compile, generate  # noqa: A004
from l2tune.errors import PackError
from l2tune.spec.gpu import A100, H200, Gpu
from l2tune.spec.header import Origin, parse
from l2tune.spec.kernel import KernelSource, instantiate
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import KEY_CHECKS, Admitted, CheckPassed, Declined, Interval
from l2tune.spec.record import Record
from l2tune.store.entry import Entry
from l2tune.store.pack import Pack, find, shipped_folder, write
from l2tune.store.packed import PackedKernel, file_name, reopened

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


@functools.cache
def templates() -> dict[str, str]:
    """Every seed, its headers flattened and its tunables open."""
    headers = generate.include_dir()
    return {name: compile.flatten(text, headers) for name, text in generate.seed_texts().items()}


@given(records())
def test_an_entry_reads_back_from_its_line(found: Record) -> None:
    entry = Entry.of(found, "0" * 12)
    assert Entry.read(entry.line, "here", found.key.gpu) == entry
    assert "\n" not in entry.line
    assert str(found.key.gpu) not in entry.line
    assert entry.key == found.key
    shown, measured = entry.times.gpu.us, found.outcome.timing.gpu.us
    assert math.isclose(shown, measured, rel_tol=1e-5)
    if isinstance(found.outcome, Admitted):
        runs = {side for side in ("eager", "graph") if getattr(found.outcome, side) == "kernel"}
        said = {"both": {"eager", "graph"}, "neither": set()}.get(entry.serves, {entry.serves})
        assert said == runs
    else:
        assert (entry.serves, entry.reason) == ("neither", found.outcome.reason)


checks = st.builds(
    CheckPassed, check=st.text(max_size=5), examples=st.integers(0, 99), seed=st.integers(0, 3),
    worst_ratio=st.sampled_from([0.0, 0.5]), note=st.text(max_size=3),
)  # fmt: skip


@given(st.lists(checks, max_size=3), st.dictionaries(st.text(max_size=3), st.integers()))
def test_a_kernel_reads_back_from_its_line(passed: list[CheckPassed], values: dict[str, int]):
    made = PackedKernel(
        file="0" * 16 + ".cu", tunables=values, cubins=("1" * 64,), checks=tuple(passed),
        origin=Origin(), tools=TOOLS,
    )  # fmt: skip
    again = PackedKernel.read(made.line, "here", H200)
    assert (again, again.id) == (made, made.id)


def test_checks_lie_where_they_belong(tmp_path: Path) -> None:
    names = ("emulator", *KEY_CHECKS, "rerun")
    passed = tuple(CheckPassed(check=name, examples=1, seed=0) for name in names)
    verified = record(KEYS[0]).verified.model_copy(update={"checks": passed})
    outcome = Admitted(timing=timing(KEYS[0], verified=verified), eager="kernel", graph="torch")
    found = record(KEYS[0]).model_copy(update={"outcome": outcome})
    pack = write(tmp_path / "p", H200, [found])
    (entry,), (kernel,) = pack.entries, pack.kernels.values()
    assert tuple(check.check for check in entry.checks) == KEY_CHECKS
    assert [check.check for check in kernel.checks] == ["emulator", "rerun"]
    assert entry.serves == "eager"


@pytest.mark.parametrize("name", generate.seed_texts())
@given(data=st.data())
def test_an_instance_of_a_seed_is_the_seed_and_its_values(name: str, data: st.DataObject) -> None:
    template = templates()[name]
    header = parse(template)[1]
    values = {t: data.draw(st.sampled_from(header.tune[t])) for t in header.open_tunables}
    source = KernelSource(text=instantiate(template, values), arch=header.arch[0])
    assert reopened(source, [template]) == (template, values)


def test_instances_of_a_seed_share_its_file_and_come_back_byte_for_byte(tmp_path: Path) -> None:
    found = [seeds.split_k(4), seeds.split_k(8), seeds.hopper(1), seeds.hopper(2), seeds.naive()]
    keys = [f.key.model_copy(update={"batch": 2 + i}) for i, f in enumerate(found)]
    moved = [f.model_copy(update={"key": key}) for f, key in zip(found, keys, strict=True)]
    pack = write(tmp_path / "p", H200, moved, templates().values())
    assert len(pack.kernels) == 5
    stored = {path.read_text() for path in (tmp_path / "p" / "kernels").iterdir()}
    names = ("sm80/mma_multistage", "sm90a/wgmma_persistent", "sm80/naive")
    assert stored == {templates()[name] for name in names}
    by_key = {entry.key: entry for entry in pack.entries}
    for one in moved:
        compiled, entry = one.verified.compiled, by_key[one.key]
        assert pack.source(entry) == compiled.source
        assert pack.kernels[entry.kernel].tunables == compiled.source.tunables
        assert pack.kernels[entry.kernel].cubins == compiled.cubins


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("#pragma unroll", "#pragma unroll 2"),
        ("SPLIT ", "PARTS "),
        ("SPLIT   = [1, 2, 4,", "SPLIT   = [1, 2,"),
    ],
    ids=["body", "another tunable", "another choice"],
)
def test_an_instance_of_what_a_seed_was_is_kept_whole(old: str, new: str, tmp_path: Path) -> None:
    found = seeds.split_k(4)
    text = templates()["sm80/mma_multistage"]
    assert old in text
    changed = [text.replace(old, new)]
    pack = write(tmp_path / "p", H200, [found], changed)
    (kernel,) = pack.kernels.values()
    assert kernel.tunables == {}
    assert pack.source(pack.entries[0]) == found.verified.compiled.source


def test_what_a_seed_was_stays_a_file_of_its_instances_where_the_pack_has_it(
    tmp_path: Path,
) -> None:
    found = [seeds.split_k(4), seeds.split_k(8)]
    keys = [f.key.model_copy(update={"batch": 2 + i}) for i, f in enumerate(found)]
    moved = [f.model_copy(update={"key": key}) for f, key in zip(found, keys, strict=True)]
    write(tmp_path / "p", H200, moved, templates().values())
    before = contents(tmp_path / "p")
    changed = [templates()["sm80/mma_multistage"].replace("#pragma unroll", "#pragma unroll 2")]
    write(tmp_path / "p", H200, moved, changed)
    assert contents(tmp_path / "p") == before


def test_keys_of_one_kernel_share_its_line_and_its_source(folder: Path) -> None:
    pack = Pack.read(folder)
    first, second, third = (pack.source(entry) for entry in pack.entries)
    assert len(pack.kernels) == 2
    assert len({id(first), id(second), id(third)}) == 2


def test_each_kernel_is_there_once_and_comes_back_whole(folder: Path) -> None:
    pack = Pack.read(folder)
    assert [entry.key for entry in pack.entries] == sorted(KEYS, key=str)
    assert len(list((folder / "kernels").iterdir())) == 2
    for entry in pack.entries:
        expected = record(entry.key, "// another\n") if entry.key == KEYS[2] else record(entry.key)
        assert pack.source(entry) == expected.verified.compiled.source
        assert entry == Entry.of(expected, entry.kernel)
    assert pack.unused() == []


def test_the_same_records_make_the_same_bytes_and_fewer_leave_nothing_behind(folder: Path) -> None:
    before = contents(folder)
    write(folder, H200, [record(KEYS[2], "// another\n"), record(KEYS[0]), record(KEYS[1])])
    assert contents(folder) == before
    write(folder, H200, [record(KEYS[0])])
    assert len(contents(folder)) == 4
    assert Pack.read(folder).unused() == []


def test_a_verdict_for_torch_is_kept_with_its_reason(tmp_path: Path) -> None:
    declined = Declined(timing=timing(KEYS[0]), reason="not faster")
    pack = write(tmp_path / "p", H200, [record(KEYS[0]).model_copy(update={"outcome": declined})])
    (entry,) = pack.entries
    assert (entry.serves, entry.reason) == ("neither", "not faster")


def test_it_is_text_without_machine_code_or_places_of_this_machine(folder: Path) -> None:
    for data in contents(folder).values():
        text = data.decode()
        assert str(folder) not in text
        assert "ptx" not in text


def edit(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


def _kernel(folder: Path) -> Path:
    pack = Pack.read(folder)
    return folder / "kernels" / pack.kernels[pack.entries[0].kernel].file


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


def _in_first_kernel(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: edit(folder, "kernels.jsonl", old, new)


def _swapped_kernels(folder: Path) -> None:
    path = folder / "kernels.jsonl"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))


def _without_a_kernel(folder: Path) -> None:
    path = folder / "kernels.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])


def _without_a_key(folder: Path) -> None:
    path = folder / "records.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))


TAMPERED: dict[str, tuple[Callable[[Path], None], str]] = {
    "unknown field": (_in_first_line('"created"', '"run":"rm -rf","created"'), "unknown key 'run'"),
    "path": (_in_first_kernel('"file":"', '"file":"../../'), "no kernel's file name"),
    "absolute path": (_in_first_kernel('"file":"', '"file":"/etc/'), "no kernel's file name"),
    "newline in a path": (_in_first_kernel('.cu"', '.cu\\n"'), "no kernel's file name"),
    "id": (_in_first_kernel('"id":"', '"id":"0'), "not written as"),
    "another kernel's claims": (_in_first_kernel('"cubins":["0', '"cubins":["1'), "not written as"),
    "no such kernel": (_without_a_kernel, "lacks"),
    "path as kernel": (_in_first_line('"kernel":"', '"kernel":"../../'), "lacks"),
    "nobody's kernel": (_without_a_key, "no key names"),
    "order of kernels": (_swapped_kernels, "not sorted"),
    "unknown field of a kernel": (_in_first_kernel('"file"', '"run":"x","file"'), "unknown key"),
    "flag for a value": (_in_first_kernel('"cubins"', '"tunables":{"A":true},"cubins"'), "written"),
    "interval of four": (_in_first_line(",1010.0]", ",1010.0,1.0]"), "not written as"),
    "interval of two": (_in_first_line('"gpu":[1000.0,', '"gpu":['), "line 1"),
    "interval with names": (
        _in_first_line("[1000.0,990.0,1010.0]", '{"us":1000.0,"lo":990.0,"hi":1010.0}'),
        "not written as",
    ),
    "infinite": (_in_first_line('"gpu":[1000.0', '"gpu":[1e999'), "line 1"),
    "not a number": (_in_first_line('"gpu":[1000.0', '"gpu":[NaN'), "line 1"),
    "negative": (_in_first_line('"gpu":[1000.0', '"gpu":[-1.0'), "is no time"),
    "digits without end": (_in_first_line("x64/", "x" + "9" * 5000 + "/"), "line 1"),
    "size beyond count": (_in_first_line('"samples":30', f'"samples":{"9" * 5000}'), "line 1"),
    "text for a number": (_in_first_line('"gpu":[1000.0', '"gpu":["1000.0"'), "not written as"),
    "a field twice": (_in_first_line('{"key"', '{"created":"x","key"'), "not written as"),
    "spaces": (_in_first_line('{"key":', '{"key": '), "not written as"),
    "GPU in a key": (_in_first_line("/align16", f"/align16/{H200}"), "records.jsonl, line 1"),
    "a key twice": (_twice, "twice"),
    "order": (_swapped, "not sorted"),
    "cut off": (_cut_off, "cut off"),
    "schema": (lambda f: edit(f, "pack.toml", "version = 3", "version = 2"), "schema 2, needed 3"),
    "more in the head": (lambda f: edit(f, "pack.toml", "gpu", "x = 1\ngpu"), "holds more than"),
    "no TOML": (lambda f: edit(f, "pack.toml", "gpu", "gpu ="), "pack.toml"),
    "no text": (lambda f: (f / "records.jsonl").write_bytes(b"\xff\n"), "records.jsonl"),
    "no records": (lambda f: (f / "records.jsonl").unlink(), "no such file"),
    "no kernels": (lambda f: (f / "kernels.jsonl").unlink(), "no such file"),
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
    edit(
        tmp_path / "p",
        "records.jsonl",
        *(str(k).partition("/NVIDIA")[0] for k in (found.key, other)),
    )
    pack = Pack.read(tmp_path / "p")
    with pytest.raises(PackError, match="does not serve"):
        pack.source(pack.entries[0])


def _with_kernel(folder: Path, **changes: object) -> Pack:
    """A pack of one instance whose kernel's line says something else, and is written well."""
    pack = write(folder, H200, [seeds.hopper()], templates().values())
    (kernel,) = pack.kernels.values()
    changed = PackedKernel.model_validate({**kernel.model_dump(), **changes})
    edit(folder, "kernels.jsonl", kernel.line, changed.line)
    edit(folder, "records.jsonl", kernel.id, changed.id)
    return Pack.read(folder)


def test_values_that_the_file_does_not_offer_are_refused(tmp_path: Path) -> None:
    values = seeds.hopper().verified.compiled.source.tunables
    for changed, said in (
        ({**values, "STAGES": 99}, "STAGES=99 is not allowed"),
        ({**values, "OTHER": 1}, "needed values of"),
        ({k: v for k, v in values.items() if k != "STAGES"}, "needed values of"),
        (dict(reversed(values.items())), "needed values of"),
        ({}, "needed values of"),
    ):
        pack = _with_kernel(tmp_path / "p", tunables=changed)
        with pytest.raises(PackError, match=said):
            pack.source(pack.entries[0])


def test_a_file_of_another_backend_than_its_name_says_is_refused(tmp_path: Path) -> None:
    name = file_name(templates()["sm90a/wgmma_persistent"], "triton")
    pack = _with_kernel(tmp_path / "p", file=name)
    (stored,) = (tmp_path / "p" / "kernels").iterdir()
    stored.rename(stored.with_name(name))
    with pytest.raises(PackError, match="a kernel of cuda"):
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
    (damaged,) = [pack.kernels[e.kernel].file for e in pack.entries if e.key == split.key]
    (pack.folder / "kernels" / damaged).write_text("")
    pack = Pack.read(pack.folder)
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
