"""What the cache is keyed by: everything that changes which kernel is right or best."""

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from l2tune.errors import KeyFormatError
from l2tune.spec.gpu import Gpu
from l2tune.spec.problem import Problem, aligned_problem, dense_align

Layout = Literal["nn", "nt", "tn", "tt"]
Dtype = Literal["float16", "bfloat16"]
Acc = Literal["float32", "float16"]
Shared = Literal["", "a", "b", "ab"]

_FORM = re.compile(
    r"gemm/(\w+)/(\w+)/(\w\w)/(\d+)x(\d+)x(\d+)/b(\d+)(?:~(a|b|ab))?/(\w+)/align(\d+)/(.+)"
)


class GemmKey(BaseModel):
    """One matrix product on one GPU.

    Attributes:
        m: Rows of a and of the result.
        n: Columns of b and of the result.
        k: The summed dimension.
        batch: Independent products.
        layout: Is each operand row-major as written (`n`) or stored transposed (`t`).
        shared: Which operands all batches share.
        dtype: Of a, b and the result.
        acc: What products are summed in.
        epilogue: What is applied to the sum; only `none` so far.
        align: Bytes that divide every pointer, leading dimension and batch stride.
        gpu: Where it runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    m: int = Field(ge=1)
    n: int = Field(ge=1)
    k: int = Field(ge=1)
    batch: int = Field(default=1, ge=1)
    layout: Layout = "nn"
    shared: Shared = ""
    dtype: Dtype = "float16"
    acc: Acc = "float32"
    epilogue: Literal["none"] = "none"
    align: Literal[2, 4, 8, 16] = 16
    gpu: Gpu

    def __str__(self) -> str:
        shared = f"~{self.shared}" if self.shared else ""
        return (
            f"gemm/{self.dtype}/{self.acc}/{self.layout}/{self.m}x{self.n}x{self.k}"
            f"/b{self.batch}{shared}/{self.epilogue}/align{self.align}/{self.gpu}"
        )

    @classmethod
    def parse(cls, text: str) -> "GemmKey":
        """Read back what `str(key)` wrote.

        Raises:
            KeyFormatError: If `text` is anything else.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise KeyFormatError(
                f"key {text!r}: needed"
                " gemm/DTYPE/ACC/LAYOUT/MxNxK/bBATCH[~SHARED]/EPILOGUE/alignBYTES/GPU"
            )
        dtype, acc, layout, m, n, k, batch, shared, epilogue, align, gpu = match.groups()
        try:
            fields = {
                "dtype": dtype, "acc": acc, "layout": layout, "m": int(m), "n": int(n),
                "k": int(k), "batch": int(batch), "shared": shared or "", "epilogue": epilogue,
                "align": int(align), "gpu": Gpu.parse(gpu),
            }  # fmt: skip
            key = cls.model_validate(fields)
        except ValueError as error:
            raise KeyFormatError(f"key {text!r}: {error}") from None
        if str(key) != text:
            raise KeyFormatError(f"key {text!r} is not canonical; needed {str(key)!r}")
        return key

    @classmethod
    def dense(
        cls, m: int, n: int, k: int, *, gpu: Gpu, batch: int = 1, layout: Layout = "nn",
        dtype: Dtype = "float16", acc: Acc = "float32",
    ) -> "GemmKey":  # fmt: skip
        """The key of fresh dense operands, whose sizes decide the alignment class."""
        align = dense_align(m=m, n=n, k=k, layout=layout)
        return cls.model_validate(
            {"m": m, "n": n, "k": k, "batch": batch, "layout": layout, "dtype": dtype,
             "acc": acc, "align": align, "gpu": gpu}
        )  # fmt: skip

    @property
    def label(self) -> str:
        """A short name for tables and progress bars."""
        batch = f" x{self.batch}" if self.batch > 1 else ""
        acc = " acc float16" if self.acc == "float16" else ""
        return f"{self.m}x{self.n}x{self.k}{batch} {self.layout} {self.dtype}{acc}"

    @property
    def flops(self) -> int:
        """Floating-point operations of the product."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def bytes_moved(self) -> int:
        """Fewest bytes through device memory: each operand read once, the result written once."""
        a_matrices = 1 if "a" in self.shared else self.batch
        b_matrices = 1 if "b" in self.shared else self.batch
        return 2 * (
            self.m * self.k * a_matrices
            + self.k * self.n * b_matrices
            + self.m * self.n * self.batch
        )

    def problem(self) -> Problem:
        """The product with operands dense up to this key's alignment."""
        return aligned_problem(
            m=self.m, n=self.n, k=self.k, batch=self.batch, layout=self.layout, align=self.align,
            a_batched="a" not in self.shared, b_batched="b" not in self.shared,
        )  # fmt: skip
