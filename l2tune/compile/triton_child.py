"""Compiles one Triton file to cubins. Run as a script, `python -I`, in a process of its own.

Reads one JSON request on standard input and writes one JSON reply on standard output (docs of both
in `serve`). It imports nothing of l2tune, and needs neither a GPU nor a driver. Triton reads source
files and imports them, so the text is first held to an allow-list of syntax and names: importing
what passes runs nothing of the author's, and compiling it calls nothing but Triton's own language.
"""

import ast
import base64
import contextlib
import importlib.util
import io
import json
import os
import re
import resource
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

POINTEES = {"f16": "fp16", "bf16": "bf16"}
WIDE = ("stride_a", "stride_b", "stride_c")
IMPORTS = ("import triton", "import triton.language as tl")
BUILTINS = frozenset({"range", "min", "max", "int", "float", "len"})
CHAINS = frozenset({"tl.extra.cuda.gdc_wait", "tl.extra.cuda.gdc_launch_dependents"})
VALUE_ATTRIBUTES = frozenset({"to", "dtype", "element_ty", "shape", "T", "type"})
LANGUAGE = frozenset((
    "abs", "advance", "arange", "associative_scan", "assume", "atomic_add", "atomic_and",
    "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor",
    "bfloat16", "broadcast", "broadcast_to", "cast", "cdiv", "clamp", "constexpr",
    "debug_barrier", "dot", "exp", "exp2", "expand_dims", "fdiv", "flip", "float16", "float32",
    "float64", "fma", "full", "int1", "int16", "int32", "int64", "int8", "interleave", "join",
    "load", "log", "log2", "make_block_ptr", "max", "max_constancy", "max_contiguous",
    "maximum", "min", "minimum", "multiple_of", "num_programs", "permute", "pointer_type",
    "program_id", "range", "reduce", "reshape", "rsqrt", "sigmoid", "split", "sqrt",
    "static_assert", "static_range", "store", "sum", "swizzle2d", "trans", "uint16", "uint32",
    "uint64", "uint8", "umulhi", "view", "where", "xor_sum", "zeros", "zeros_like",
))  # fmt: skip
SYNTAX = (
    ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For,
    ast.While, ast.If, ast.Expr, ast.Pass, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp,
    ast.Compare, ast.Call, ast.keyword, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice,
    ast.Name, ast.Tuple, ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop,
)  # fmt: skip


class Refused(Exception):  # noqa: N818  # the reply's word for it
    """The text is outside the allow-list, or does not fit its own contract."""


def screen(text: str) -> None:
    """Refuse a text that could run anything on the host.

    Raises:
        Refused: One sentence with the line.
    """
    if odd := sorted({c for c in text if c < " " and c not in "\n\t"}):
        raise Refused(f"the file holds control characters {odd}; needed none but newline and tab")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refused(f"the file does not parse as Python: {error}") from None
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            _screen_function(statement, functions)
        elif not _is_docstring(statement) and ast.unparse(statement) not in IMPORTS:
            allowed = "`@triton.jit` functions, `" + "`, `".join(IMPORTS) + "`"
            raise _refusal(statement, f"stands at file scope; needed {allowed}")


def _is_docstring(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _screen_function(function: ast.FunctionDef, functions: set[str]) -> None:
    if [ast.unparse(decorator) for decorator in function.decorator_list] != ["triton.jit"]:
        raise _refusal(function, "needs `@triton.jit` as its only decorator")
    given = function.args
    odd = (given.vararg, given.kwarg, function.returns, *given.kwonlyargs)
    if any(odd) or getattr(function, "type_params", None):
        raise _refusal(function, "may have plain parameters only, and no return annotation")
    if not all(isinstance(default, ast.Constant) for default in given.defaults):
        raise _refusal(function, "has a default that is no constant")
    bound = {node.arg for node in ast.walk(given) if isinstance(node, ast.arg)} | {function.name}
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and node.annotation:
            if ast.unparse(node.annotation) != "tl.constexpr":
                raise _refusal(node, "may be annotated `tl.constexpr` only")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    if clash := bound & ((functions - {function.name}) | BUILTINS | {"tl", "triton"}):
        raise _refusal(function, f"binds {sorted(clash)}, which already mean something else")
    for part in (given, *function.body):
        _screen_node(part, bound | functions | BUILTINS)


def _screen_node(node: ast.AST, known: set[str] | frozenset[str]) -> None:
    if not isinstance(node, SYNTAX):
        raise _refusal(node, f"is {type(node).__name__}, which kernels may not use")
    if isinstance(node, ast.Attribute):
        chain = _dotted(node)
        if chain in CHAINS or (chain.startswith("tl.") and chain[3:] in LANGUAGE):
            return
        if chain.startswith("tl.") or node.attr not in VALUE_ATTRIBUTES:
            raise _refusal(node, "is not among the names of Triton that kernels may use")
    elif isinstance(node, ast.Name) and node.id not in known:
        raise _refusal(node, "is a name that kernels may not use")
    for child in ast.iter_child_nodes(node):
        _screen_node(child, known)


def _dotted(node: ast.expr) -> str:
    """`x.y.z` as text; with anything but a name at its root, the root is left out."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _refusal(node: ast.AST, why: str) -> Refused:
    found = ast.unparse(node).split("\n")
    shown = next((line for line in found if not line.startswith("@")), found[0])
    return Refused(f"line {getattr(node, 'lineno', 0)}: `{shown[:60]}` {why}")


def serve(request: dict[str, Any], folder: str) -> dict[str, Any]:
    """Answer one request, with every file in `folder`.

    Args:
        request: `text`; `dtype` (`f16` or `bf16`); `capability` (80, 90); `constexprs` (name to
            integer); `divisible` (argument to a divisor the contract proves: bytes for pointers, a
            count for integers); `launches`: `kernel`, `args`, `num_warps`, `num_stages` and `pdl`
            of each. `main` takes `path` (sys.path to use), `memory_bytes`, `cpu_seconds` as well.
        folder: An empty folder that the caller removes.

    Returns:
        `ok` true: `triton`, `log`, and `launches`, in order: `kernel` (entry symbol), `cubin_b64`,
        `ptx`, `block` (threads), `smem` (dynamic bytes), `args_tail` (pointers that must follow the
        arguments; null will do), `log` (ptxas on registers and spills). `ok` false: `kind`
        (`refused`, `error`, `memory_limit`, `infrastructure`) and `log`.
    """
    printed = io.StringIO()
    try:
        screen(request["text"])
        import triton

        module = _load(request["text"], Path(folder, "kernel.py"))
        with contextlib.redirect_stdout(printed):
            done = [_compile(module, launch, request, printed) for launch in request["launches"]]
    except Refused as refused:
        return {"ok": False, "kind": "refused", "log": str(refused)}
    except MemoryError:
        return {"ok": False, "kind": "memory_limit", "log": printed.getvalue()}
    except (ImportError, OSError) as error:
        return {"ok": False, "kind": "infrastructure", "log": repr(error)}
    except Exception as error:  # noqa: BLE001  # Triton raises many types for a kernel's fault
        return {"ok": False, "kind": "error", "log": _explain(error) + printed.getvalue()}
    return {"ok": True, "triton": triton.__version__, "launches": done, "log": ""}


def _explain(error: BaseException | None) -> str:
    """Say what went wrong, outermost call first: Triton chains one error for each inlined call."""
    lines = []
    while error is not None:
        lines.append(f"{type(error).__name__}: {error}\n")
        error = error.__cause__
    return "".join(lines)


def _prepare_environment(folder: str) -> None:
    """Let no setting of the user's change the code, and keep every file in `folder`."""
    for name in [name for name in os.environ if name.startswith("TRITON_")]:
        del os.environ[name]
    tempfile.tempdir = folder
    os.environ["TRITON_HOME"] = os.environ["TRITON_CACHE_DIR"] = folder
    os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
    # Line tables hold the path of the file; without them the same text gives the same cubin.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"


def _load(text: str, path: Path) -> ModuleType:
    # The byte order mark makes Python refuse an encoding declared in the file: what is imported
    # must be what was screened.
    path.write_text(text, encoding="utf-8-sig")
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(
    module: ModuleType, launch: dict[str, Any], request: dict[str, Any], printed: io.StringIO
) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    printed.seek(0)
    printed.truncate()
    function = getattr(module, launch["kernel"], None)
    if function is None:
        raise Refused(f"the contract launches {launch['kernel']!r}, which the file does not define")
    capability = request["capability"]
    values = {**request["constexprs"], "L2_PDL": int(launch["pdl"] and capability >= 90)}
    signature, constants = _signature(function, launch, values, POINTEES[request["dtype"]])
    hints = {
        (index,): [["tt.divisibility", request["divisible"][name]]]
        for index, name in enumerate(signature)
        if signature[name] != "constexpr" and request["divisible"].get(name, 1) > 1
    }
    kernel = triton.compile(
        ASTSource(function, signature, constants, hints),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": launch["num_warps"], "num_stages": launch["num_stages"]},
    )
    return _describe(kernel, len(launch["args"]), printed.getvalue())


def _signature(
    function: Any, launch: dict[str, Any], values: dict[str, int], pointee: str
) -> tuple[dict[str, str], dict[str, int]]:
    """Types of all parameters in order, and the values of the constexpr ones."""
    types = {"a": f"*{pointee}", "b": f"*{pointee}", "c": f"*{pointee}", "workspace": "*fp32"}
    types |= dict.fromkeys(WIDE, "i64")
    signature = {
        p.name: "constexpr" if p.is_constexpr else types.get(p.name, "i32") for p in function.params
    }
    plain = [name for name, kind in signature.items() if kind != "constexpr"]
    if plain != launch["args"]:
        raise Refused(
            f"{launch['kernel']}: its parameters without tl.constexpr are {plain}, the contract's"
            f" args are {launch['args']}; they must be the same, in the same order"
        )
    constants = {name for name, kind in signature.items() if kind == "constexpr"}
    if missing := sorted(constants - values.keys()):
        raise Refused(
            f"{launch['kernel']}: tl.constexpr parameters {missing} are neither tunables nor"
            " L2_A_T, L2_B_T, L2_PDL"
        )
    return signature, {name: values[name] for name in signature if name in constants}


def _describe(kernel: Any, arg_count: int, log: str) -> dict[str, Any]:
    """What a launch needs; raises if the kernel needs more than a launch contract can give."""
    meta, ptx = kernel.metadata, kernel.asm["ptx"]
    if meta.global_scratch_size or meta.profile_scratch_size:
        raise Refused(f"{meta.name}: needs scratch memory of Triton's own; use the workspace")
    entry = re.search(r"\.visible \.entry \w+\((.*?)\)\s*\.reqntid (\d+)", ptx, re.DOTALL)
    block = 32 * meta.num_warps
    if entry is None or int(entry[2]) != block:
        raise RuntimeError(f"{meta.name}: block of {block} threads is not what its PTX declares")
    return {
        "kernel": meta.name,
        "cubin_b64": base64.b64encode(kernel.asm["cubin"]).decode(),
        "ptx": ptx,
        "block": block,
        "smem": meta.shared,
        "args_tail": entry[1].count(".param") - arg_count,
        "log": log,
    }


def main() -> None:
    """Serve one request; nothing but the reply reaches standard output."""
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        request = json.load(sys.stdin)
        sys.path[:] = request["path"]
        memory, seconds = request["memory_bytes"], request["cpu_seconds"]
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            _prepare_environment(folder)
            json.dump(serve(request, folder), output)


if __name__ == "__main__":
    main()
