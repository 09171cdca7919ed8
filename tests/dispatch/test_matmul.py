"""On tensors that no kernel serves, `l2tune.matmul` is `torch.matmul`, errors included."""

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

import l2tune
from l2tune import settings
from l2tune.dispatch.matmul import _is_dense, _is_plain, _is_plain_out

pytestmark = pytest.mark.usefixtures("path")  # every test runs on the native path too


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-4, 5, shape, generator=generator).to(dtype)


def outcome(function: Callable[..., torch.Tensor], *arguments: Any, **keywords: Any) -> Any:
    """The result, or the exception as its type and message; and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function(*arguments, **keywords)
            answer = (result.shape, result.dtype, result.stride(), result.requires_grad)
            return answer, result.detach().tolist(), [str(w.message) for w in caught]
        except Exception as error:  # noqa: BLE001  # whatever torch raises is what is compared
            return type(error), str(error)


def assert_same(make: Callable[[], tuple[Any, ...]], **keywords: Any) -> None:
    expected = outcome(torch.matmul, *make(), **keywords)
    assert outcome(l2tune.matmul, *make(), **keywords) == expected


SHAPES = [
    ((64,), (64,)), ((64,), (64, 8)), ((2, 3, 8, 64), (64,)), ((0,), (0,)), ((64,), (2, 64, 3)),
    ((3, 2, 0), (3, 0, 3)), ((0, 64), (64, 32)), ((5, 64), (64, 0)), ((2, 0, 3), (2, 3, 4)),
    ((0, 2, 3), (3, 4)), ((5, 7), (7, 9)), ((2, 5, 7), (7, 9)), ((2, 5, 7), (2, 7, 9)),
    ((2, 1, 5, 7), (3, 7, 9)), ((1, 1), (1, 1)), ((5, 7), (8, 9)), ((2, 5, 7), (3, 7, 9)),
    ((7,), (8,)), ((5, 7), (8,)), ((), (5,)), ((), ()), ((5, 7), ()),
]  # fmt: skip
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_shapes_and_dtypes_are_torchs(a, b, dtype):
    assert_same(lambda: (x(*a, dtype=dtype), x(*b, dtype=dtype)))


MIXED = [(torch.float16, torch.float32), (torch.bfloat16, torch.float16), (torch.bool, torch.bool),
         (torch.int32, torch.float32), (torch.float16, torch.int8)]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), MIXED, ids=str)
def test_mixed_dtypes_end_in_torchs_error(left, right):
    assert_same(lambda: (x(4, 5, dtype=left), x(5, 6, dtype=right)))


@pytest.mark.parametrize("bad", [None, [[1.0]], 3, "a"], ids=repr)
def test_what_is_no_tensor_ends_in_torchs_error(bad):
    assert_same(lambda: (x(4, 5), bad))
    assert_same(lambda: (bad, x(4, 5)))


def test_a_strided_out_is_written_and_what_lies_between_is_not():
    base = torch.full((128, 256), torch.nan, dtype=torch.float16)
    a, b = x(128, 64, dtype=torch.float16), x(64, 128, dtype=torch.float16)
    given = base[:, ::2]
    assert l2tune.matmul(a, b, out=given) is given
    assert torch.equal(given, torch.matmul(a, b))
    assert base[:, 1::2].isnan().all()


def test_an_out_that_is_an_operand_holds_the_product_of_the_old_values():
    a, b = x(128, 128), x(128, 128) + 1
    expected = torch.matmul(a.clone(), b)
    assert torch.equal(l2tune.matmul(a, b, out=a), expected)


def test_an_out_that_overlaps_an_operand_is_as_right_as_one_that_does_not():
    base = x(8, 4)
    expected = torch.matmul(base[:4].clone(), base[4:].clone())
    given = base[2:6]
    assert l2tune.matmul(base[:4], base[4:], out=given) is given
    assert torch.equal(given, expected)


def test_an_out_that_is_an_operand_of_another_shape_ends_as_it_does_in_torch():
    def run(multiply: Callable[..., torch.Tensor]) -> Any:
        a = x(4, 5)
        return outcome(multiply, a, x(5, 6), out=a)

    assert run(l2tune.matmul)[:1] == run(torch.matmul)[:1]


OUTS = {
    "other dtype": lambda: torch.empty(4, 6, dtype=torch.float64),
    "other shape": lambda: torch.ones(3, 3),
    "empty, resized without a word": lambda: torch.empty(0),
    "needs grad": lambda: torch.empty(4, 6, requires_grad=True),
    "rows share memory": lambda: torch.empty(6).expand(4, 6),
    "transposed": lambda: torch.empty(6, 4).mT,
}


@pytest.mark.parametrize("make_out", OUTS.values(), ids=OUTS)
def test_an_odd_out_ends_as_it_does_in_torch(make_out):
    expected = outcome(torch.matmul, x(4, 5), x(5, 6), out=make_out())
    assert outcome(l2tune.matmul, x(4, 5), x(5, 6), out=make_out()) == expected


def test_out_beside_an_operand_that_needs_grad_is_torchs_error():
    assert_same(lambda: (x(4, 5).requires_grad_(), x(5, 6)), out=torch.empty(4, 6))


def test_too_few_or_unknown_arguments_are_a_type_error():
    for arguments, keywords in (((), {}), ((x(4, 5),), {}), ((x(4, 5), x(5, 6)), {"in": 1})):
        with pytest.raises(TypeError, match=r"^matmul\(\)"):
            l2tune.matmul(*arguments, **keywords)


def test_operands_can_be_named():
    assert torch.equal(l2tune.matmul(b=x(5, 6), a=x(4, 5)), torch.matmul(x(4, 5), x(5, 6)))
    assert torch.equal(l2tune.matmul(x(4, 5), b=x(5, 6), out=None), x(4, 5) @ x(5, 6))


def test_a_mode_that_watches_functions_sees_torchs():
    class Watching(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            Watching.seen += function is torch.matmul
            return function(*args, **(kwargs or {}))

    with Watching():
        l2tune.matmul(x(4, 5), x(5, 6))
    assert Watching.seen == 1


def test_more_dimensions_than_the_native_table_takes_are_torchs():
    shape = (1, 2, 1, 1, 1, 2, 1, 1)
    assert_same(lambda: (x(*shape, 3, 4), x(*shape, 4, 5)))


def test_gradients_flow_as_through_torch():
    def gradients(multiply: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        a, b = x(2, 4, 5).requires_grad_(), x(5, 6).requires_grad_()
        multiply(a, b).square().sum().backward()
        return [a.grad, b.grad]

    for mine, torchs in zip(gradients(l2tune.matmul), gradients(torch.matmul), strict=True):
        assert torch.equal(mine, torchs)


class Counting(torch.Tensor):
    """A subclass that counts what is called on it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.calls += function is torch.matmul
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("side", [0, 1])
def test_a_subclass_is_asked_and_stays_itself(side):
    pair = [x(4, 5), x(5, 6)]
    pair[side] = pair[side].as_subclass(Counting)
    before = Counting.calls
    assert type(l2tune.matmul(*pair)) is Counting
    assert Counting.calls == before + 1


def test_vmap_equals_the_loop():
    a, b = x(8, 32, 64), x(64, 16)
    loop = torch.stack([l2tune.matmul(item, b) for item in a])
    assert torch.equal(torch.vmap(l2tune.matmul, in_dims=(0, None))(a, b), loop)


def test_fake_tensors_get_torchs_shape_and_dtype():
    with FakeTensorMode():
        result = l2tune.matmul(torch.empty(2, 4, 5).half(), torch.empty(5, 6).half())
    assert (tuple(result.shape), result.dtype) == ((2, 4, 6), torch.float16)


def test_sparse_operands_are_torchs():
    sparse = torch.eye(4).to_sparse()
    assert torch.equal(l2tune.matmul(sparse, x(4, 5)), x(4, 5))


def test_a_thread_that_did_nothing_else_gets_the_result():
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.append(l2tune.matmul(x(4, 5), x(5, 6))))
    thread.start()
    thread.join()
    assert torch.equal(results[0], torch.matmul(x(4, 5), x(5, 6)))


def test_nothing_on_the_cpu_touches_the_cache(cache_dir):
    l2tune.matmul(x(64, 64).half(), x(64, 64).half())
    assert not list(cache_dir.iterdir())


def test_disabled_is_torch():
    with settings.override(disable=True):
        assert_same(lambda: (x(4, 5), x(5, 6)))


def test_a_weight_counts_as_a_plain_tensor_and_a_subclass_does_not():
    assert _is_dense(torch.nn.Parameter(x(4, 5), requires_grad=False))
    assert not _is_dense(x(4, 5).as_subclass(Counting))


def test_operands_whose_memory_is_not_their_value_are_not_plain():
    plain = x(4, 4)
    assert _is_plain(plain, plain)
    negated = torch.complex(plain, plain).conj().imag
    assert negated.is_neg()
    assert not _is_plain(negated, plain)
    assert not _is_plain(plain, negated)
    assert not _is_plain_out(negated)
    with torch.inference_mode():
        sealed = plain.clone()
    assert not _is_plain_out(sealed)
    with forward_ad.dual_level():
        assert not _is_plain(forward_ad.make_dual(plain, plain), plain)
    with FakeTensorMode():
        assert not _is_plain(plain, plain)
