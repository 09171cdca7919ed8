"""Peers on the CPU: how they are named, loaded and called. tests/gpu times some."""

import subprocess
from pathlib import Path

import pytest
import torch

from l2tune.errors import UnsupportedProblemError
from l2tune.measure import operands
from l2tune.measure.operands import OperandSets
from l2tune.measure.peer_check import wrong_form, wrong_values
from l2tune.measure.peers import Peer, PeerFailedError, peer_contestant
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey

FILE = """
import torch
def returns(a, b): return torch.matmul(a, b)
def writes(a, b, c): c.copy_(a @ b)
def optional(a, b, scale=1.0): return (a @ b) * scale
def half_of_it(a, b): return (a @ b) * 0.5
def no_tensor(a, b): return 1
def other_shape(a, b): return (a @ b).T.contiguous()
def raises(a, b): raise ValueError("not this shape")
"""
RIGHT = ("returns", "writes", "optional")
C_FILE = """
int records(const void* a, const void* b, void* c, int m, int n, int k, int lda, int ldb, int ldc,
            void* stream) {
  int* out = c;
  out[0] = m, out[1] = n, out[2] = k, out[3] = lda, out[4] = ldb, out[5] = ldc;
  out[6] = (int)(long)stream;
  return 0;
}
int refuses(const void* a, const void* b, void* c, int m, int n, int k, int lda, int ldb, int ldc,
            void* stream) { return 7; }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "peers.py"
    path.write_text(FILE)
    return path


def sets(**changes: object) -> OperandSets:
    key = GemmKey.model_validate({"m": 24, "n": 16, "k": 40, "gpu": H200, **changes})
    return operands.build(key, count=2, seed=1, device="cpu")


def results(peer: Peer, on: OperandSets) -> list[torch.Tensor]:
    contestant, result = peer_contestant(peer, on)
    assert contestant.name == contestant.group == peer.name
    for index in range(on.count):
        contestant.launch(index, 0)
    return [result(index) for index in range(on.count)]


def test_a_peer_is_named_with_its_file_or_module(tmp_path: Path) -> None:
    assert Peer.parse("them=torch:matmul") == Peer("peer_them", "torch", "matmul")
    path = tmp_path / "lib:x.so"
    assert Peer.parse(f"l2={path}:gemm") == Peer("peer_l2", str(path), "gemm")


@pytest.mark.parametrize("text", ["torch:matmul", "a=torch", "a b=torch:matmul", "a=torch:", ""])
def test_other_forms_are_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UnsupportedProblemError, match="needed NAME=MODULE:FUNCTION"):
        Peer.parse(text)


@pytest.mark.parametrize("function", RIGHT)
@pytest.mark.parametrize("changes", [{}, {"batch": 3, "layout": "tn"}])
def test_a_python_peer_returns_its_product_or_writes_it(
    file: Path, function: str, changes: dict[str, object]
) -> None:
    on = sets(**changes)
    made = results(Peer.parse(f"x={file}:{function}"), on)
    assert wrong_form(made, on.c) is None
    assert wrong_values(made, on) is None
    assert len({tensor.data_ptr() for tensor in made}) == 2


def test_a_builtin_is_a_peer_too() -> None:
    on = sets()
    assert wrong_values(results(Peer.parse("x=torch:matmul"), on), on) is None


def test_what_is_no_product_is_told(file: Path) -> None:
    on = sets()
    made = {
        name: results(Peer.parse(f"x={file}:{name}"), on) for name in ("no_tensor", "other_shape")
    }
    assert wrong_form(made["no_tensor"], on.c) == "it returned int, needed a tensor"
    assert "[16, 24] of torch.float16, needed [24, 16]" in (
        wrong_form(made["other_shape"], on.c) or ""
    )
    fault = wrong_values(results(Peer.parse(f"x={file}:half_of_it"), on), on)
    assert fault is not None
    assert "times its error bound off" in fault
    assert (wrong_values(on.c, on) or "").startswith("it left a result unwritten")
    on.a[1][0, 0] += 1
    assert wrong_values(on.c, on) == "it changed a or b"


def test_what_cannot_be_loaded_or_raises_is_the_peer_s_fault(file: Path) -> None:
    for text in (f"x={file}:missing", "x=no_such_module:f", f"x={file}.so:f"):
        with pytest.raises(PeerFailedError, match="cannot load it"):
            peer_contestant(Peer.parse(text), sets())
    with pytest.raises(PeerFailedError, match="ValueError: not this shape"):
        results(Peer.parse(f"x={file}:raises"), sets())


@pytest.mark.cc
def test_a_c_function_gets_sizes_leading_dimensions_and_the_stream(tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text(C_FILE)
    library = tmp_path / "x.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "x.c"], check=True)
    on = sets()
    contestant, result = peer_contestant(Peer.parse(f"x={library}:records"), on)
    contestant.launch(1, 5)
    assert result(1).view(torch.int32).flatten()[:7].tolist() == [24, 16, 40, 40, 16, 16, 5]
    with pytest.raises(PeerFailedError, match="^it returned 7$"):
        results(Peer.parse(f"x={library}:refuses"), on)
    with pytest.raises(PeerFailedError, match="neither batches nor transposed"):
        peer_contestant(Peer.parse(f"x={library}:records"), sets(layout="nt"))
