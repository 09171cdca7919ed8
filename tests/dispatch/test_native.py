"""Building and loading the native path: never half, never from others, never needed."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import l2tune
from l2tune.dispatch import NativeWarning, native
from l2tune.errors import CacheError, InfrastructureError
from l2tune.settings import override

BUILD = "from l2tune.dispatch import native; native.build()"


@pytest.fixture(autouse=True)
def native_is_wanted() -> Iterator[None]:
    """Whatever the environment of the tests says."""
    with override(native="auto"):
        yield


@pytest.fixture
def fresh(cache_dir, monkeypatch):
    """A process that has loaded and started nothing, with an empty cache."""
    monkeypatch.setattr(native, "loaded", None)
    monkeypatch.setattr(native, "_building", None)
    return cache_dir


@pytest.fixture
def built(fresh, native_cache):
    """The same, with the library in its place."""
    with override(cache_dir=native_cache):
        data = native.library_path().read_bytes()
    native._private(native.library_path())
    native.library_path().write_bytes(data)
    native.library_path().chmod(0o600)
    return native.library_path()


@pytest.fixture
def compiler(tmp_path_factory, monkeypatch):
    """Put a shell script in the compiler's place; `$made` is what it is to write."""

    def use(body: str) -> None:
        script = tmp_path_factory.mktemp("compiler") / "cxx"
        script.write_text(f"#!/bin/sh\nfor made; do :; done\n{body}\n")
        script.chmod(0o700)
        monkeypatch.setenv("CXX", str(script))

    return use


def serve():
    return native.serve(lambda a, b, *, out=None: None, lambda *_: ())


def run(program: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | variables, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_build_that_is_killed_leaves_the_next_one_free(fresh, compiler):
    compiler('echo half > "$made"; echo $$ > "$(dirname "$made")/started"; exec sleep 100')
    environment = os.environ | {"L2TUNE_CACHE_DIR": str(fresh)}
    child = subprocess.Popen([sys.executable, "-c", BUILD], env=environment, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list(fresh.glob("native/*/.partial-*/started")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    (left,) = native.library_path().parent.iterdir()
    assert left.name.startswith(".partial-")
    compiler('echo whole > "$made"')
    assert native.build().read_bytes().startswith(b"whole\n")
    os.utime(left, (0, 0))
    native.build()
    assert not left.exists()


def test_a_failed_build_is_told_and_not_tried_again_unasked(fresh, compiler):
    compiler("echo no such header; exit 1")
    with pytest.raises(InfrastructureError, match="no such header"):
        native.build()
    assert "no such header" in native.log_path().read_text()
    native.build_in_background()
    assert native._building is None
    compiler('echo whole > "$made"')
    native.build()
    assert not native.log_path().exists()


def test_tuning_builds_it_first_and_goes_on_without(fresh, compiler):
    compiler("exit 1")
    with pytest.warns(NativeWarning, match="does not build"):
        native.build_if_missing()
    compiler('echo whole > "$made"')
    native.build_if_missing()
    assert not native.library_path().exists()  # it failed once, and nobody has asked since
    native.log_path().unlink()
    native.build_if_missing()
    built = native.library_path().stat().st_mtime_ns
    native.build_if_missing()
    assert native.library_path().stat().st_mtime_ns == built


def test_the_first_plan_starts_one_build_beside_the_caller(fresh, compiler):
    compiler('echo whole > "$made"')
    native.build_in_background()
    child = native._building
    assert child is not None
    native.build_in_background()
    assert native._building is child
    assert child.wait(timeout=100) == 0
    assert native.library_path().is_file()


@pytest.mark.parametrize("why", ["off", "built", "under way"])
def test_no_build_is_started_where_none_is_needed(why, fresh, compiler):
    compiler('echo whole > "$made"')
    native._private(native.library_path())
    if why == "built":
        native.library_path().touch()
    if why == "under way":
        (native.library_path().parent / ".partial-x").mkdir()
    with override(native="off" if why == "off" else "auto"):
        native.build_in_background()
    assert native._building is None


def test_nothing_built_is_no_warning(fresh, recwarn):
    assert serve() is None
    assert not recwarn


def test_off_is_python(built):
    with override(native="off"):
        assert serve() is None


def spoil(path: Path, how: str) -> None:
    whole = path.read_bytes()
    other = whole[:-32].replace(b"PyInit_l2tune", b"PyInit_l2tuna")
    spoilt = {
        "a flipped byte": whole[:9000] + bytes([whole[9000] ^ 1]) + whole[9001:],
        "half of it": whole[: len(whole) // 2],
        "empty": b"",
        "another library": other + hashlib.sha256(other).digest(),
        "no library": b"text" + hashlib.sha256(b"text").digest(),
    }
    path.write_bytes(spoilt.get(how, whole))
    if how == "writable by others":
        path.chmod(0o666)
    if how == "in a folder of others":
        path.parent.chmod(0o777)


@pytest.mark.parametrize(
    "how", ["a flipped byte", "half of it", "empty", "another library", "no library",
            "writable by others", "in a folder of others"],
)  # fmt: skip
def test_a_library_that_cannot_be_trusted_is_one_warning_and_python(how, built):
    spoil(built, how)
    with pytest.warns(NativeWarning, match="doctor --build") as caught:
        assert serve() is None
    assert len(caught) == 1


def test_nothing_is_built_where_others_can_write(fresh):
    fresh.chmod(0o777)
    with pytest.raises(CacheError, match="chmod 700"):
        native.build()


LOADED = """
if FIRST:
    import torch._dynamo
import inspect, json, pickle, sys, torch, l2tune
from l2tune.dispatch.matmul import matmul
found = {
    "kind": type(l2tune.matmul).__name__, "cuda": torch.cuda.is_initialized(),
    "tracer": "torch._dynamo" in sys.modules and not FIRST, "name": l2tune.matmul.__name__,
    "pickled": pickle.loads(pickle.dumps(l2tune.matmul)) is l2tune.matmul,
    "doc": inspect.getdoc(l2tune.matmul) == inspect.getdoc(matmul),
    "parameters": str(inspect.signature(l2tune.matmul)),
}
graphs = []
def backend(graph, inputs):
    graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
    return graph.forward
a, b, out = torch.ones(4, 5), torch.ones(5, 6), torch.empty(4, 6)
compiled = torch.compile(lambda a, b: l2tune.matmul(a, b) + 1, fullgraph=True, backend=backend)
into = torch.compile(
    lambda a, b, out: l2tune.matmul(a, b, out=out), fullgraph=True, backend="eager"
)
found["compiled"] = torch.equal(compiled(a, b), a @ b + 1) and torch.equal(into(a, b, out), a @ b)
found["traced"] = graphs[0][0] is torch.matmul
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("setting", "tracer_first"), [("auto", False), ("auto", True), ("off", False)]
)
def test_a_process_with_the_library_has_one_function_that_is_also_traced(
    setting, tracer_first, native_cache
):
    program = f"FIRST = {tracer_first}{LOADED}"
    found = json.loads(run(program, L2TUNE_CACHE_DIR=str(native_cache), L2TUNE_NATIVE=setting))
    assert found.pop("kind") == {"auto": "builtin_function_or_method", "off": "function"}[setting]
    if setting == "auto":
        assert found.pop("parameters") == "(a, b, *, out=None)"
    found.pop("parameters", None)
    assert found == {"cuda": False, "tracer": False, "name": "matmul", "pickled": True,
                     "doc": True, "compiled": True, "traced": True}  # fmt: skip


def test_forgetting_plans_works_on_both_paths(path):
    l2tune.dispatch.reset()
    assert l2tune.matmul(torch.ones(2, 2), torch.ones(2, 2)).sum() == 8
