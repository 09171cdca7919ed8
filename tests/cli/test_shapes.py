"""Keys from a command's options."""

from pathlib import Path

import pytest
import typer

from l2tune.cli import keys
from l2tune.spec.gpu import H200


def csv_file(folder: Path, text: str) -> Path:
    path = folder / "shapes.csv"
    path.write_text(text)
    return path


def test_a_csv_s_columns_may_be_few_or_those_of_a_results_file(tmp_path: Path) -> None:
    few = keys.read_shapes(csv_file(tmp_path, "m,n,k\n1,2,3\n"), H200)
    assert [(key.m, key.n, key.k, key.batch, key.layout) for key in few] == [(1, 2, 3, 1, "nn")]
    text = "m,n,k,batch,layout,dtype,us\n64,32,16,4,nt,bfloat16,1.0\n8,8,8,,,,\n"
    full = keys.read_shapes(csv_file(tmp_path, text), H200)
    assert [key.label for key in full] == ["64x32x16 x4 nt bfloat16", "8x8x8 nn float16"]
    (half,) = keys.read_shapes(csv_file(tmp_path, "m,n,k,acc\n8,8,8,float16\n"), H200)
    assert (half.acc, half.label) == ("float16", "8x8x8 nn float16 acc float16")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found no shapes"),
        ("m,n\n1,2\n", "shape 1: found"),
        ("m,n,k\n1,2,3\n1,x,3\n", "shape 2: found"),
        ("m,n,k\n0,2,3\n", "shape 1: m: "),
        ("m,n,k,layout\n1,2,3,tx\n", "shape 1: layout: "),
        ("m,n,k,dtype,acc\n1,2,3,bfloat16,float16\n", "shape 1: acc float16: found dtype bf"),
    ],
)
def test_a_csv_that_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        keys.read_shapes(csv_file(tmp_path, text), H200)


def test_the_cuda_l2_grid_is_its_thousand_shapes() -> None:
    found = keys.asked_keys(H200, shape=None, shapes=None, grid="cuda-l2")
    assert len(found) == 1000
    assert {key.m for key in found} == set(keys.CUDA_L2_SIZES)


def test_exactly_one_source_of_shapes_is_needed(tmp_path: Path) -> None:
    for given in ({"shape": None, "grid": None}, {"shape": (1, 2, 3), "grid": "cuda-l2"}):
        with pytest.raises(typer.BadParameter, match="exactly one"):
            keys.asked_keys(H200, shapes=None, **given)


def test_a_shape_given_twice_is_one_key(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "m,n,k\n8,8,8\n8,8,8\n")
    assert len(keys.asked_keys(H200, shape=None, shapes=path, grid=None)) == 1
