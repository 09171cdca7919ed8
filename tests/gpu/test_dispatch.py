"""`l2tune.matmul` on a GPU: what a record serves, and what torch must answer (cases a, b)."""

import datetime

import pytest
import torch

import l2tune
from l2tune import dispatch, settings, verify
from l2tune.dispatch import native, nearest
from l2tune.dispatch.plan import Plan
from l2tune.runtime.reference import error_ratio
from l2tune.runtime.versions import tools
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, Interval, Timing, Verified
from l2tune.spec.record import Record

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("path")]  # every test on both paths

FAST, SLOW = Interval(us=1, lo=1, hi=1), Interval(us=9, lo=9, hi=9)


@pytest.fixture
def admit(bench, gpu, compiled, path):
    """Store a proven kernel for a key as if it had won its timing."""

    def make(
        seed_id: str, key: GemmKey, *, eager: str = "kernel", host_path: str = path, **changes: int
    ) -> None:  # fmt: skip
        proof = verify.verify(
            bench.worker, compiled(seed_id, key, **changes), key,
            cache_dir=bench.cache_dir, seed=0, checks=verify.QUICK_CHECKS,
        )  # fmt: skip
        assert isinstance(proof, Verified), proof
        timing = Timing(
            verified=proof, gpu=FAST, host=FAST, host_path=host_path,
            baselines={"torch": SLOW}, torch_host=SLOW, floor_us=1, samples=1, run_id="test",
        )  # fmt: skip
        record = Record(
            key=key, outcome=Admitted(timing=timing, eager=eager, graph="kernel"),
            origin=proof.compiled.source.header.origin, tools=tools(),
            created=datetime.datetime.now(datetime.UTC).isoformat(),
        )  # fmt: skip
        bench.registry.put(record)
        dispatch.reset()

    yield make
    for record in list(bench.registry.records()):
        bench.registry.forget(record.key)
    dispatch.reset()


@pytest.fixture
def served(monkeypatch, path):
    """Which calls ran a kernel of ours: a function that tells whether `function()` did."""
    runs = []
    original = Plan.run

    def run(self, *arguments):
        runs.append(self)
        return original(self, *arguments)

    monkeypatch.setattr(Plan, "run", run)

    def count() -> int:
        return len(runs) if path == "python" else native.loaded.served()

    def by_a_kernel(function) -> bool:
        before = count()
        function()
        return count() > before

    return by_a_kernel


def randn(*shape: int, dtype=torch.float16):
    return torch.randn(*shape, device="cuda").to(dtype)


def test_a_record_is_served_and_nothing_else_is(admit, gpu, served):
    admit("sm80/mma_multistage", GemmKey.dense(128, 128, 64, gpu=gpu))
    a, b = randn(128, 64), randn(64, 128)
    l2tune.matmul(a, b)
    assert served(lambda: l2tune.matmul(a, b))
    assert error_ratio(a, b, l2tune.matmul(a, b)).item() <= 1
    other = randn(64, 136)
    assert not served(lambda: l2tune.matmul(a, other))


def test_sums_in_float16_serve_where_torch_allows_them(admit, gpu, served, allow_half_sums):
    key = GemmKey.dense(512, 256, 320, gpu=gpu, acc="float16")
    admit("sm90a/wgmma_half", key)
    a, b = randn(512, 320), randn(320, 256)
    for allowed in (True, False):
        allow_half_sums(allowed)
        assert served(lambda: l2tune.matmul(a, b)) is allowed
        acc = "float16" if allowed else "float32"
        assert error_ratio(a, b, l2tune.matmul(a, b), acc=acc).item() <= 1.0


def test_disabling_restores_torch(admit, gpu, served):
    admit("sm80/mma_multistage", GemmKey.dense(128, 128, 64, gpu=gpu))
    a, b = randn(128, 64), randn(64, 128)
    with settings.override(disable=True):
        dispatch.reset()
        assert not served(lambda: l2tune.matmul(a, b))
    dispatch.reset()


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "result"),
    [((3, 2, 0), (3, 0, 3), (3, 2, 3)), ((0, 64), (64, 32), (0, 32)), ((5, 64), (64, 0), (5, 0)),
     ((64,), (64,), ()), ((64,), (64, 8), (8,)), ((2, 3, 8, 64), (64,), (2, 3, 8))],
)  # fmt: skip
def test_empty_and_one_dimensional_operands_are_torchs(shape_a, shape_b, result):
    torch.full((1 << 20,), torch.nan, device="cuda")  # freed at once: garbage for what is allocated
    c = l2tune.matmul(randn(*shape_a), randn(*shape_b))
    assert tuple(c.shape) == result
    if 0 in shape_a:
        assert not c.any()


def test_unaligned_operands_do_not_reach_a_kernel_for_aligned_ones(admit, gpu):
    admit("sm90a/wgmma_persistent", GemmKey.dense(128, 128, 64, gpu=gpu))
    a, b = randn(128, 64), randn(64, 128)
    l2tune.matmul(a, b)
    base = randn(128 * 65 + 8)
    shifted = base[1 : 1 + 128 * 64].view(128, 64)
    odd_rows = base.as_strided((128, 64), (65, 1))
    for x, y in ((shifted, b), (odd_rows, b), (a, randn(128, 64).t())):
        assert error_ratio(x, y, l2tune.matmul(x, y)).item() <= 1
    torch.cuda.synchronize()


def test_batches_broadcast_without_copies(admit, gpu):
    key = GemmKey(m=256, n=104, k=104, batch=64, shared="b", gpu=gpu)
    admit("sm90a/wgmma_persistent", key)
    a, b = randn(64, 256, 104), randn(1, 104, 104)
    expanded = b.expand(64, 104, 104)
    l2tune.matmul(a, expanded)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    c = l2tune.matmul(a, expanded)
    assert torch.cuda.max_memory_allocated() - before <= c.numel() * 2 + (1 << 20)
    assert error_ratio(a, expanded, c).item() <= 1
    wide, many = randn(512, 64, 1, 100), randn(64, 100, 100)
    assert l2tune.matmul(wide, many).shape == (512, 64, 1, 100)


def test_out_is_written_in_place_whatever_its_strides(admit, gpu):
    admit("sm80/mma_multistage", GemmKey.dense(128, 128, 128, gpu=gpu))
    a, b = randn(128, 128), randn(128, 128)
    base = torch.full((128, 256), torch.nan, device="cuda", dtype=torch.float16)
    out = base[:, ::2]
    assert l2tune.matmul(a, b, out=out) is out
    assert error_ratio(a, b, out).item() <= 1
    assert base[:, 1::2].isnan().all()
    padded = torch.full((128, 256), torch.nan, device="cuda", dtype=torch.float16)
    assert error_ratio(a, b, l2tune.matmul(a, b, out=padded[:, :128])).item() <= 1
    assert padded[:, 128:].isnan().all()
    x, old = a.clone(), a.clone()
    l2tune.matmul(x, b, out=x)
    assert error_ratio(old, b, x).item() <= 1
    with pytest.raises(RuntimeError):
        l2tune.matmul(a, b, out=torch.empty(128, 128, device="cuda"))


def test_what_needs_gradients_is_torchs(admit, gpu, served):
    admit("sm80/mma_multistage", GemmKey.dense(128, 128, 64, gpu=gpu))
    a, b = randn(128, 64).requires_grad_(), randn(64, 128)
    l2tune.matmul(a, b).sum().backward()
    assert a.grad is not None
    with torch.no_grad():
        assert served(lambda: l2tune.matmul(a, b))


def test_mixed_dtypes_raise_as_torch_does():
    for function in (torch.matmul, l2tune.matmul):
        with pytest.raises(RuntimeError, match="same dtype"):
            function(randn(8, 8), torch.randn(8, 8, device="cuda"))


def test_an_operands_new_address_is_what_a_kernel_reads(admit, gpu, served):
    admit("sm90a/wgmma_persistent", GemmKey.dense(256, 128, 64, gpu=gpu))
    kept = []
    for _ in range(20):
        a, b = randn(256, 64), randn(64, 128)
        kept.append((a, b))
        assert served(lambda a=a, b=b: kept.append((a, b, l2tune.matmul(a, b))))
        assert error_ratio(*kept[-1]).item() <= 1


def test_autocast_is_torchs(admit, gpu, served):
    admit("sm80/mma_multistage", GemmKey.dense(128, 128, 64, gpu=gpu))
    a, b = randn(128, 64), randn(64, 128)
    assert served(lambda: l2tune.matmul(a, b))
    with torch.autocast("cuda"):
        assert not served(lambda: l2tune.matmul(a, b))


def test_an_unseen_shape_can_be_captured(admit, gpu, served):
    admit("sm90a/wgmma_persistent", GemmKey.dense(256, 128, 64, gpu=gpu))
    a, b = randn(256, 64), randn(64, 128)
    torch.matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = l2tune.matmul(a, b)
    a.normal_()
    graph.replay()
    assert error_ratio(a, b, c).item() <= 1
    assert served(lambda: l2tune.matmul(a, b))


def test_a_verdict_for_graphs_alone_leaves_eager_calls_to_torch(admit, gpu, served):
    admit("sm80/mma_multistage", GemmKey.dense(128, 128, 64, gpu=gpu), eager="torch")
    a, b = randn(128, 64), randn(64, 128)
    assert not served(lambda: l2tune.matmul(a, b))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert served(lambda: l2tune.matmul(a, b))


def test_an_eager_win_of_the_native_path_is_none_in_python(admit, gpu, served, path):
    admit("sm80/mma_multistage", GemmKey.dense(128, 128, 64, gpu=gpu), host_path="native")
    a, b = randn(128, 64), randn(64, 128)
    assert served(lambda: l2tune.matmul(a, b)) == (path == "native")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert served(lambda: l2tune.matmul(a, b))


class First:
    """A model that takes the first record's kernel for everything."""

    serves = True

    def __init__(self, records):
        self.record = next(iter(records))

    def choose(self, key, problem):
        return self


def test_the_policy_nearest_serves_an_untuned_product(
    admit, gpu, served, path, bench, monkeypatch
):  # fmt: skip
    admit("sm80/mma_multistage", GemmKey.dense(128, 128, 64, gpu=gpu))
    monkeypatch.setattr(nearest, "fit", First)
    a, b = randn(136, 64), randn(64, 120)
    with settings.override(policy="nearest"):
        assert error_ratio(a, b, l2tune.matmul(a, b)).item() <= 1
        assert served(lambda: l2tune.matmul(a, b)) == (path == "native")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert served(lambda: l2tune.matmul(a, b))
        unseen = randn(72, 64)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            assert not served(lambda: l2tune.matmul(unseen, b))
    names = bench.registry.served_by_nearest()
    assert names[GemmKey.dense(136, 120, 64, gpu=gpu)].startswith("sm80/mma_multistage")


def test_a_flipped_byte_in_a_cubin_ends_in_torch_with_one_warning(admit, gpu, bench):
    key = GemmKey.dense(128, 128, 64, gpu=gpu)
    admit("sm80/naive", key)
    record = bench.registry.get(key)
    (digest,) = record.outcome.timing.verified.compiled.cubins
    path = bench.cache_dir / "artifacts" / digest[:2] / digest
    whole = path.read_bytes()
    path.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    try:
        a, b = randn(128, 64), randn(64, 128)
        with pytest.warns(dispatch.DispatchWarning, match="torch.matmul answers"):
            c = l2tune.matmul(a, b)
        assert torch.equal(c, torch.matmul(a, b))
    finally:
        path.write_bytes(whole)
