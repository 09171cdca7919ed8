"""One trial of a kernel, as data: sizes, strides, offsets, values and seed decide everything."""

import dataclasses
from typing import Any

from l2tune.spec.problem import Problem, alignment_bytes

_BASE_ALIGN_BYTES = 256


@dataclasses.dataclass(frozen=True)
class Case:
    """What to multiply.

    Attributes:
        m: Rows of a and c.
        n: Columns of b and c.
        k: The summed dimension.
        batch: Independent products.
        shared: Operands that all batches share: "", "a", "b" or "ab".
        pad: Extra elements at the end of each row of a, b, c.
        offset: Elements between a 256-byte boundary and the start of a, b, c.
        gap: Extra elements between the matrices of a batch.
        values: Class of values; `l2tune.verify.values` has them.
        seed: What the values are drawn from.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    shared: str = ""
    pad: tuple[int, int, int] = (0, 0, 0)
    offset: tuple[int, int, int] = (0, 0, 0)
    gap: int = 0
    values: str = "integers"
    seed: int = 0

    def problem(self, layout: str) -> Problem:
        """The problem that a kernel is offered for this case."""
        (rows_a, inner_a), (rows_b, inner_b) = self.stored(layout)
        lda, ldb, ldc = inner_a + self.pad[0], inner_b + self.pad[1], self.n + self.pad[2]
        many = int(self.batch > 1)
        a_batched, b_batched = many * ("a" not in self.shared), many * ("b" not in self.shared)
        stride_a = (rows_a * lda + self.gap) * a_batched
        stride_b = (rows_b * ldb + self.gap) * b_batched
        stride_c = (self.m * ldc + self.gap) * many
        quantities = (*self.offset, lda, ldb, ldc, stride_a, stride_b, stride_c)
        return Problem(
            m=self.m,
            n=self.n,
            k=self.k,
            batch=self.batch,
            lda=lda,
            ldb=ldb,
            ldc=ldc,
            stride_a=stride_a,
            stride_b=stride_b,
            stride_c=stride_c,
            a_batched=a_batched,
            b_batched=b_batched,
            align=alignment_bytes(_BASE_ALIGN_BYTES, *(2 * q for q in quantities)),
            contiguous=int(not any((*self.pad, self.gap))),
        )

    @property
    def products(self) -> int:
        """Multiplications that it takes."""
        return self.m * self.n * self.k * self.batch

    def stored(self, layout: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows and columns of a and of b as they lie in memory."""
        a = (self.m, self.k) if layout[0] == "n" else (self.k, self.m)
        b = (self.k, self.n) if layout[1] == "n" else (self.n, self.k)
        return a, b

    def as_data(self) -> dict[str, Any]:
        """The fields that differ from their defaults, for a counterexample."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.default is dataclasses.MISSING or getattr(self, field.name) != field.default
        }


def case_of(problem: Problem, layout: str, **changes: Any) -> Case:
    """The case whose problem is `problem`, a key's own shape."""
    plain = Case(problem.m, problem.n, problem.k, problem.batch)
    (_, inner_a), (_, inner_b) = plain.stored(layout)
    many = problem.batch > 1
    shared = "a" * (many and not problem.a_batched) + "b" * (many and not problem.b_batched)
    offset = problem.align // 2 if problem.align < 16 else 0
    return dataclasses.replace(
        plain,
        shared=shared,
        pad=(problem.lda - inner_a, problem.ldb - inner_b, problem.ldc - problem.n),
        offset=(offset, offset, offset),
        **changes,
    )
