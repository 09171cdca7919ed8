"""The host half of an exported CUDA file: one problem's constants, the program, one launch.

The program itself is `host.cu`, the same for every export. The constants and the launch are
written here with every expression of the contract evaluated.
"""

import importlib.resources
import re

from l2tune.export import operands
from l2tune.spec import geometry
from l2tune.spec.kernel import KernelSource
from l2tune.spec.record import EstimatedRecord, Record

_UNIT_ROUNDOFF = {"float32": "0x1p-24", "float16": "0x1p-11", "bfloat16": "0x1p-8"}
_HALF_SMALLEST = {"float16": "0x1p-25", "bfloat16": "0x1p-134"}
_SMALLEST_SUM = {"float32": "0x1p-126", "float16": "0x1p-24"}
_ELEMENT = {"float16": "__half", "bfloat16": "__nv_bfloat16"}
_MAP_TYPE = {
    "float16": "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
    "bfloat16": "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
}
_CAPABILITY = {"sm_80": (8, -1), "sm_90a": (9, 0)}
"""Compute capabilities that run a target's code; -1 for every minor version from 0 on."""
_POINTERS = {
    "a": "const void* a = operands.a;",
    "b": "const void* b = operands.b;",
    "c": "void* c = operands.c;",
    "workspace": "void* workspace = operands.workspace;",
}
_ONLY_SM_90A = """\
// nvcc 13.0 compiles for compute_90 too when told -arch=sm_90a; nothing here is for that target.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
"""
_INCLUDES = """\
#ifndef __CUDACC_RTC__  // before the kernel's macros, which system headers must not see
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#pragma nv_diag_suppress 177  // a header's functions that this kernel does not call
#endif
"""


def build_command(source: KernelSource, stem: str) -> str:
    """The shell command that builds an exported file and runs it."""
    flags = "".join(f" {flag}" for flag in source.header.flags)
    return f"nvcc -std=c++17 -arch={source.arch}{flags} {stem}.cu -o {stem} && ./{stem}"


def picks(source: KernelSource) -> str:
    """Includes of the host half, and the macros that l2tune passes to the compiler."""
    defines = "".join(
        f"#ifndef {name}\n#define {name} {value}\n#endif\n"
        for name, value in source.defines.items()
    )
    return (_ONLY_SM_90A if source.arch == "sm_90a" else "") + _INCLUDES + defines


def program(record: Record | EstimatedRecord, stem: str) -> str:
    """Everything after the kernel."""
    source = record.verified.compiled.source
    macros = [*source.defines, *re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", source.text, re.M)]
    undefine = "".join(f"#undef {name}\n" for name in dict.fromkeys(macros))
    body = importlib.resources.files(__package__).joinpath("host.cu").read_text()
    return (
        f'#ifndef __CUDACC_RTC__\n{undefine}#define L2TUNE_ARCH "{source.arch}"\n\n'
        f"namespace l2tune_host {{\n\n{_constants(record, stem)}\n{body}\n{_maps(record)}\n"
        f"{_launch(record)}\n}}  // namespace l2tune_host\n\n"
        "int main() { return l2tune_host::run(); }\n#endif\n"
        + ("#endif\n" if source.arch == "sm_90a" else "")
    )


def _constants(record: Record | EstimatedRecord, stem: str) -> str:
    key, compiled = record.key, record.verified.compiled
    source = compiled.source
    major, minor = _CAPABILITY[source.arch]
    problem, gpu = key.problem(), key.gpu
    overlaps = _bool(geometry.overlaps_predecessor(compiled, problem, gpu))
    workspace = geometry.workspace_bytes(compiled, problem, gpu)
    lines = [
        f"using Element = {_ELEMENT[source.dtype]};",
        f"constexpr CUtensorMapDataType kMapType = {_MAP_TYPE[source.dtype]};",
        f"constexpr char kProgram[] = {_c_string(stem)};",
        f"constexpr char kTunedFor[] = {_c_string(key.gpu.name)};",
        f"constexpr int kTunedSms = {key.gpu.sms};",
        f"constexpr char kTunedTime[] = {_c_string(_time(record))};",
        f"constexpr int kMajor = {major}, kMinor = {minor};  // compute capability; -1 for any",
        *(f"constexpr long long k{name} = {value};" for name, value in _sizes(record).items()),
        f"constexpr bool kTransposedA = {_bool(source.layout[0] == 't')};",
        f"constexpr bool kTransposedB = {_bool(source.layout[1] == 't')};",
        f"constexpr size_t kWorkspaceBytes = {workspace};",
        f"constexpr bool kOverlaps = {overlaps};  // may start before what is ahead has ended",
        f"constexpr int kMaps = {len(source.header.tma)};",
        f"constexpr double kUnitAcc = {_UNIT_ROUNDOFF[source.acc]};",
        f"constexpr double kSmallestSum = {_SMALLEST_SUM[source.acc]};",
        f"constexpr double kUnitOut = {_UNIT_ROUNDOFF[source.dtype]};",
        f"constexpr double kHalfSmallest = {_HALF_SMALLEST[source.dtype]};",
    ]
    return "\n".join(lines) + "\n"


def _time(record: Record | EstimatedRecord) -> str:
    if isinstance(record, EstimatedRecord):
        return "never timed"
    return f"{record.outcome.timing.gpu.us:.2f} us"


def _sizes(record: Record | EstimatedRecord) -> dict[str, int]:
    """Elements, all of them, by the end of the constant's name."""
    problem, layout = record.key.problem(), record.key.layout
    spans = {
        f"Elements{operand.upper()}": operands.operand_elements(
            operand, problem, transposed=order == "t"
        )
        for operand, order in zip("abc", f"{layout}n", strict=True)
    }
    return {
        "M": problem.m, "N": problem.n, "K": problem.k, "Batch": problem.batch,
        "Lda": problem.lda, "Ldb": problem.ldb, "Ldc": problem.ldc,
        "StrideA": problem.stride_a, "StrideB": problem.stride_b, "StrideC": problem.stride_c,
        "Offset": operands.offset_elements(problem), **spans,
    }  # fmt: skip


def _tensor_maps(record: Record | EstimatedRecord) -> list[geometry.MapGeometry]:
    compiled, key = record.verified.compiled, record.key
    return list(geometry.tensor_maps(compiled, key.problem(), key.gpu).values())


def _maps(record: Record | EstimatedRecord) -> str:
    calls = []
    for index, found in enumerate(_tensor_maps(record)):
        swizzle = f"{found.swizzle}B" if found.swizzle else "NONE"
        promotion = f"L2_{found.l2_promotion}B" if found.l2_promotion else "NONE"
        calls.append(
            f"  operands.maps[{index}] =  // tma.{found.name}\n"
            f"      encode_map(operands.{found.operand}, {_braces(found.sizes)},"
            f" {_braces(found.strides_bytes)}, {_braces(found.box)},\n"
            f"                 CU_TENSOR_MAP_SWIZZLE_{swizzle},"
            f" CU_TENSOR_MAP_L2_PROMOTION_{promotion});\n"
        )
    argument = "Operands& operands" if calls else "Operands&"
    return f"void encode_maps({argument}) {{\n{''.join(calls)}}}\n"


def _launch(record: Record | EstimatedRecord) -> str:
    compiled, key = record.verified.compiled, record.key
    header = compiled.source.header
    names = compiled.source.names(key.problem(), key.gpu)
    launches = geometry.launches(compiled, key.problem(), key.gpu)
    used = dict.fromkeys(arg for launch in launches for arg in launch.args)
    positions = {f"tma.{name}": index for index, name in enumerate(header.tma)}
    lines = [f"  {_local(arg, names, positions)}\n" for arg in used]
    size_bytes = geometry.workspace_bytes(compiled, key.problem(), key.gpu)
    if header.workspace_zeroed and size_bytes:
        clear = f"cudaMemsetAsync(operands.workspace, 0, {size_bytes}, stream)"
        lines.append(f'  check({clear}, "clearing the workspace");\n')
    for index, launch in enumerate(launches):
        pointers = ", ".join(f"&{_variable(arg)}" for arg in launch.args)
        extents = ", ".join(f"dim3{_round(e)}" for e in (launch.grid, launch.block, launch.cluster))
        lines.append(
            f"  void* arguments_{index}[] = {{{pointers or 'nullptr'}}};\n"
            f"  launch_kernel(reinterpret_cast<const void*>(&::{launch.kernel}), {extents},\n"
            f"                {launch.smem_bytes}, {_bool(launch.pdl)}, arguments_{index},"
            " stream);\n"
        )
    return "void launch(const Operands& operands, cudaStream_t stream) {\n" + "".join(lines) + "}\n"


def _local(arg: str, names: dict[str, int], positions: dict[str, int]) -> str:
    if arg in _POINTERS:
        return _POINTERS[arg]
    if arg in positions:
        return f"CUtensorMap {_variable(arg)} = operands.maps[{positions[arg]}];"
    c_type = "long long" if arg.startswith("stride_") else "int"
    return f"{c_type} {arg} = {names[arg]};"


def _variable(arg: str) -> str:
    return arg.replace(".", "_")


def _braces(values: tuple[int, ...]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def _round(values: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, values)) + ")"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _c_string(text: str) -> str:
    """A C string literal of the text's UTF-8 bytes; octal escapes end after three digits."""
    plain = set(range(0x20, 0x7F)) - {ord('"'), ord("\\"), ord("?")}
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'
