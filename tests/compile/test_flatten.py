"""A kernel becomes one file: each of our headers stands in it once, and nothing else is read."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2tune.compile.flatten import flatten, origins
from l2tune.errors import HeaderError

HEADERS = Path(__file__, "../../../kernels_seed/include").resolve()
SEEDS = sorted(Path(__file__, "../../../kernels_seed").resolve().glob("*/*.cu"))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "l2").mkdir()
    texts = {
        "inner": "#pragma once\nint inner;\n",
        "outer": '#include "l2/inner.cuh"\n # include "l2/inner.cuh" // again\nint outer;\n',
        "loop": '#include "l2/loop.cuh"\nint loop;\n',
    }
    for name, text in texts.items():
        (tmp_path / "l2" / f"{name}.cuh").write_text(text)
    (tmp_path / "secret.cuh").write_text("int secret;\n")
    return tmp_path


def test_nested_headers_are_inlined_where_first_met_and_only_once(folder):
    flat = flatten('#include "l2/outer.cuh"\n#include "l2/inner.cuh"\nint end;\n', folder)
    assert [line for line in flat.splitlines() if line.startswith("int")] == [
        "int inner;", "int outer;", "int end;",
    ]  # fmt: skip
    assert "#" not in flat


def test_a_header_that_includes_itself_ends(folder):
    assert flatten('#include "l2/loop.cuh"\n', folder).count("int loop;") == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("l2/none.cuh", "no such header; there are ['l2/inner.cuh'"),
        ("l2/../secret.cuh", "may be included"),
        ("secret.cuh", "may be included"),
        ("/etc/passwd", "may be included"),
        ("../secret.cuh", "may be included"),
        ("l2/inner.h", "may be included"),
    ],
)
def test_any_other_quoted_include_is_refused(folder, name, said):
    with pytest.raises(HeaderError) as caught:
        flatten(f'#include "{name}"\n', folder)
    assert said in str(caught.value)


@given(st.text(st.characters(exclude_characters='"', exclude_categories=["Cs"]), max_size=200))
def test_a_text_without_quoted_includes_comes_back_unchanged(text):
    assert flatten(text, HEADERS) == text


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_a_flattened_seed_needs_no_header_of_ours_and_stays_as_it_is(path):
    flat = flatten(path.read_text(), HEADERS)
    assert '#include "' not in flat
    assert flatten(flat, HEADERS) == flat
    assert flat.startswith("/*---l2tune")


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_every_line_of_a_flattened_seed_is_found_where_its_origin_says(path):
    text = path.read_text()
    flat = flatten(text, HEADERS).split("\n")
    found = origins(text, HEADERS, name=path.name)
    assert len(found) == len(flat)
    for line, (name, number) in zip(flat, found, strict=True):
        original = (path if name == path.name else HEADERS / name).read_text().split("\n")
        assert line in ("", original[number - 1]) or line.startswith("// ---- "), (name, number)
