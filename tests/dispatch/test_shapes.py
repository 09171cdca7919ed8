"""A `Product` read by its own numbers gives torch's result, whatever the tensors looked like."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from l2tune.dispatch.shapes import Product, product

sizes = st.sampled_from((1, 1, 2, 3, 4, 7, 8))


@st.composite
def strided(draw: st.DrawFn, shape: tuple[int, ...]) -> torch.Tensor:
    """An int64 view of that shape: permuted in memory, stepped over, offset, expanded."""
    repeated = [size > 1 and draw(st.integers(0, 4)) == 0 for size in shape]
    order = draw(st.permutations(range(len(shape))) | st.just(tuple(range(len(shape)))))
    steps = [draw(st.sampled_from((1, 1, 1, 1, 2))) for _ in shape]
    pads = [draw(st.sampled_from((0, 0, 0, 1, 5))) for _ in shape]
    own = [1 if many else size for many, size in zip(repeated, shape, strict=True)]
    extents = [own[d] * steps[d] + pads[d] for d in order]
    offset = draw(st.integers(0, 9))
    count = torch.Size(extents).numel()
    storage = (torch.arange(offset + count) * 2654435761) % 97 - 48
    stored = storage[offset:].view(extents)
    view = stored.permute([order.index(d) for d in range(len(shape))])
    for dim, (size, step) in enumerate(zip(own, steps, strict=True)):
        view = view[(slice(None),) * dim + (slice(0, size * step, step),)]
    return view.expand(shape)


@st.composite
def operands(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors up to 4-D whose batches broadcast."""
    m, n, k = draw(sizes), draw(sizes), draw(sizes)
    batch = draw(st.lists(sizes, max_size=2))
    dims_a, dims_b = draw(st.integers(0, len(batch))), draw(st.integers(0, len(batch)))
    batch_a = [draw(st.sampled_from((size, size, 1))) for size in batch[len(batch) - dims_a :]]
    batch_b = [draw(st.sampled_from((size, size, 1))) for size in batch[len(batch) - dims_b :]]
    return draw(strided((*batch_a, m, k))), draw(strided((*batch_b, k, n)))


def reduced(
    a: torch.Tensor, b: torch.Tensor, c_stride: tuple[int, ...] | None = None
) -> Product | None:
    return product(a.shape, a.stride(), b.shape, b.stride(), address_bits=0, c_stride=c_stride)


def read(x: torch.Tensor, rows: int, columns: int, transposed: bool, leading: int, step: int,
         batch: int) -> torch.Tensor:  # fmt: skip
    """What a kernel reads: `[batch, rows, columns]` by leading dimension and batch stride alone."""
    strides = (step, 1, leading) if transposed else (step, leading, 1)
    return x.as_strided((batch, rows, columns), strides)


def multiply(found: Product, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    p, (a_order, b_order) = found.problem, found.layout
    left = read(a, p.m, p.k, a_order == "t", p.lda, p.stride_a, p.batch)
    right = read(b, p.k, p.n, b_order == "t", p.ldb, p.stride_b, p.batch)
    return left @ right


@settings(max_examples=400)
@given(pair=operands())
def test_a_product_read_by_its_strides_is_torchs_result(pair):
    a, b = pair
    found = reduced(a, b)
    if found is None:
        return
    expected = torch.matmul(a, b)
    assert found.shape == expected.shape
    assert found.problem.a_batched == int(found.problem.stride_a != 0)
    assert found.problem.b_batched == int(found.problem.stride_b != 0)
    assert torch.equal(multiply(found, a, b).view(expected.shape), expected)


@st.composite
def any_output(draw: st.DrawFn, shape: tuple[int, ...]) -> torch.Tensor:
    """A given result: any view, also one whose elements share memory."""
    if draw(st.booleans()):
        return draw(strided(shape)).clone(memory_format=torch.preserve_format)
    near = [shape[-1], shape[-1] * shape[-2], 1, 0]
    strides = [max(0, draw(st.sampled_from(near)) + draw(st.integers(-1, 1))) for _ in shape[1:]]
    strides.append(1)
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return torch.zeros(span, dtype=torch.int64).as_strided(shape, strides)


@settings(max_examples=400)
@given(pair=operands(), data=st.data())
def test_a_given_result_is_written_in_place_and_never_where_elements_overlap(pair, data):
    a, b = pair
    expected = torch.matmul(a, b)
    out = data.draw(any_output(tuple(expected.shape)) | strided(tuple(expected.shape)))
    found = reduced(a, b, c_stride=out.stride())
    if found is None:
        return
    span = 1 + sum((n - 1) * s for n, s in zip(out.shape, out.stride(), strict=True))
    places = torch.arange(span).as_strided(out.shape, out.stride())
    assert places.unique().numel() == out.numel(), f"{out.shape} {out.stride()} overlaps"
    p = found.problem
    storage = torch.zeros(span, dtype=torch.int64)
    storage.as_strided((p.batch, p.m, p.n), (p.stride_c, p.ldc, 1)).copy_(multiply(found, a, b))
    assert torch.equal(storage.as_strided(out.shape, out.stride()), expected)


DENSE = [((5, 7), (7, 9)), ((2, 5, 7), (2, 7, 9)), ((2, 3, 5, 7), (7, 9)), ((5, 7), (3, 7, 9)),
         ((2, 3, 5, 7), (2, 3, 7, 9)), ((1, 5, 7), (4, 7, 9)), ((2, 1, 1, 7), (7, 9))]  # fmt: skip


@pytest.mark.parametrize(("a_shape", "b_shape"), DENSE)
def test_every_dense_product_has_a_problem(a_shape, b_shape):
    a, b = torch.ones(a_shape), torch.ones(b_shape)
    found = reduced(a, b)
    assert found is not None
    assert found.problem.contiguous


@pytest.mark.parametrize(("a_t", "b_t"), list(itertools.product((False, True), repeat=2)))
def test_a_transposed_view_becomes_the_layout_of_its_storage(a_t, b_t):
    a = torch.ones(7, 5).mT if a_t else torch.ones(5, 7)
    b = torch.ones(9, 7).mT if b_t else torch.ones(7, 9)
    found = reduced(a, b)
    assert found is not None
    assert found.layout == "nt"[a_t] + "nt"[b_t]


def test_matrices_of_a_result_that_share_rows_are_left_to_torch():
    a, b = torch.ones(2, 5, 7), torch.ones(2, 7, 9)
    assert reduced(a, b, c_stride=(9, 9, 1)) is None
    assert reduced(a, b, c_stride=(45, 9, 1)) is not None
    assert reduced(a, b, c_stride=(9, 18, 1)) is not None  # rows of the two matrices take turns


def test_an_expanded_batch_is_shared_and_not_copied():
    found = reduced(torch.ones(1, 64, 64).expand(512, 64, 64), torch.ones(512, 64, 64))
    assert found is not None
    assert (found.shared, found.problem.batch, found.problem.stride_a) == ("a", 512, 0)


def test_a_batch_against_one_matrix_is_one_tall_product():
    found = reduced(torch.ones(4, 6, 5, 7), torch.ones(7, 9))
    assert found is not None
    assert (found.problem.m, found.problem.batch) == (120, 1)


REFUSED = {
    "1-D a": ((7,), (1,), (7, 9), (9, 1)),
    "1-D b": ((5, 7), (7, 1), (7,), (1,)),
    "inner sizes differ": ((5, 7), (7, 1), (8, 9), (9, 1)),
    "batches do not broadcast": ((2, 5, 7), (35, 7, 1), (3, 7, 9), (63, 9, 1)),
    "empty inner dimension": ((5, 0), (1, 1), (0, 9), (9, 1)),
    "empty rows": ((0, 7), (7, 1), (7, 9), (9, 1)),
    "both strides above one": ((5, 7), (14, 2), (7, 9), (9, 1)),
    "overlapping rows": ((5, 7), (3, 1), (7, 9), (9, 1)),
}


@pytest.mark.parametrize("arguments", REFUSED.values(), ids=REFUSED)
def test_what_has_no_strided_form_is_left_to_torch(arguments):
    assert product(*arguments, address_bits=0) is None


@given(address=st.integers(0, 1 << 20).map(lambda x: 2 * x), leading=st.integers(7, 80))
def test_the_alignment_divides_the_address_and_every_row(address, leading):
    found = product((5, 7), (leading, 1), (7, 8), (8, 1), address_bits=address)
    assert found is not None
    align = found.problem.align
    assert align in (2, 4, 8, 16)
    assert address % align == 0
    assert 2 * leading % align == 0
