"""Hypothesis strategies for cases inside a kernel's contract, edges first.

The only part of l2tune, with `checks`, that needs Hypothesis.
"""

from hypothesis import assume
from hypothesis import strategies as st

from l2tune.spec.gpu import Gpu
from l2tune.spec.kernel import KernelSource
from l2tune.verify.admitted import repair, tile_sizes
from l2tune.verify.case import Case

_EDGES = (
    1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 100, 127, 128, 129, 192, 255, 256, 257,
)  # fmt: skip
_LARGE = (320, 384, 511, 512, 513, 640, 1000, 1024, 1031)
_LONG_K = (1, 2, 8, 24, 64, 72, 192, 320, 448, 520, 576, 1024, 1096, 2048, 4104)


def cases(
    source: KernelSource, gpu: Gpu, values: tuple[str, ...], *, most_products: int | None = None
) -> st.SearchStrategy[Case]:
    """Cases that `source`'s contract admits on `gpu`, with one of the given classes of values.

    Those of more than `most_products` multiplications are scaled down.
    """
    tiles = tile_sizes(source)
    size = st.sampled_from(_EDGES + tiles) | st.integers(1, 300) | st.sampled_from(_LARGE)
    depth = st.sampled_from(_LONG_K + tiles) | st.integers(1, 600)
    pad, offset = st.sampled_from((0, 0, 0, 8, 16, 1, 3)), st.sampled_from((0, 0, 0, 8, 64, 1, 4))

    @st.composite
    def admitted_cases(draw: st.DrawFn) -> Case:
        batch = draw(st.sampled_from((1, 1, 1, 2, 3, 5)))
        case = Case(
            m=draw(size),
            n=draw(size),
            k=draw(depth),
            batch=batch,
            shared=draw(st.sampled_from(("", "", "a", "b", "ab"))) if batch > 1 else "",
            pad=(draw(pad), draw(pad), draw(pad)),
            offset=(draw(offset), draw(offset), draw(offset)),
            gap=draw(st.sampled_from((0, 0, 8, 1))) if batch > 1 else 0,
            values=draw(st.sampled_from(values)),
            seed=draw(st.integers(0, 2**31 - 1)),
        )
        admitted = repair(case, source, gpu, most_products=most_products)
        assume(admitted is not None)
        assert admitted is not None  # for the type checker; assume does not return on None
        return admitted

    return admitted_cases()
