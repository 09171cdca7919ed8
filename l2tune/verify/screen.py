"""What a kernel file's text alone gives away, before anything compiles it."""

import re

from l2tune.spec.header import split
from l2tune.spec.kernel import KernelSource
from l2tune.spec.outcome import Finding, Refuted

_MAX_BYTES = 400_000
_MAX_LINES = 6000
_ALLOWED_INCLUDE = re.compile(r"<(cuda_fp16\.h|cuda_bf16\.h|mma\.h|cuda/(?!.*\.\.)[\w/.]+)>")
_SPLICE = re.compile(r"\\[ \t\f\v\r]*\n")
_NUMBER = re.compile(r"(?<![\w'])\d(?:'?\w)*")
_COMMENT_OR_STRING = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL
)
_PREFIXED = re.compile(r"""\b(u8|[uULR]|u8R|[uUL]R)["']""")
_ESCAPE = re.compile(r"\\[xuUN0-7]")
_DIRECTIVE = re.compile(r"^\s*(?:#|%:)[^\S\n]*(\w*)[^\S\n]*([^\n]*)", re.MULTILINE)
_ALLOWED_DIRECTIVES = frozenset(
    [
        "include",
        "define",
        "undef",
        "if",
        "ifdef",
        "ifndef",
        "elif",
        "else",
        "endif",
        "pragma",
        "error",
    ]
)
_FORBIDDEN = {
    r"\b__host__\b": "host function",
    r"\bstd\s*::": "the host's standard library",
    r"\bprintf\s*\(": "printf",
    r"\b(malloc|free)\s*\(|\b(new|delete)\b": "dynamic memory",
    r"<<<": "a launch of its own",
    r"\bcuda(Malloc|Free|Memcpy|Stream|Device|Launch|Event)\w*\s*\(": "the CUDA runtime",
    r"\bmain\s*\(": "a main function",
    r"__has_include|__FILE__|__DATE__|__TIME__": "a directive that reads its surroundings",
    r"\bextern\s+(?!\"\"|__shared__)": "an external symbol",
}
_FORBIDDEN_ASM = re.compile(r"\.(global|visible|extern|func|entry)\s+\.?[a-z]|\.(incbin|include)\b")
_FORBIDDEN_PYTHON = re.compile(
    r"\b(eval|exec|open|compile|__import__|getattr|setattr|globals|locals|vars)\s*\(|__\w+__|"
    r"\b(os|sys|subprocess|socket|ctypes|pathlib|importlib|builtins|inspect)\b"
)
_ALLOWED_IMPORTS = re.compile(r"import triton|import triton\.language as tl")


def screen(source: KernelSource) -> Refuted | None:
    """Refuse text that is not a device-only kernel file.

    Returns:
        What is wrong with it, or None.
    """
    text = source.text
    if len(text) > _MAX_BYTES or text.count("\n") > _MAX_LINES:
        found = f"{len(text)} bytes in {text.count(chr(10))} lines"
        return _refuted(Finding.SIZE, f"{found}, at most {_MAX_BYTES} in {_MAX_LINES} are taken")
    _, _, body = split(text)
    return _screen_triton(body) if source.backend == "triton" else _screen_cuda(body)


def _screen_cuda(body: str) -> Refuted | None:
    """Look at the text as the preprocessor would: lines joined, then comments out.

    What could make the two disagree on where a comment or a string ends is refused.
    """
    joined = _NUMBER.sub(lambda m: m[0].replace("'", ""), _SPLICE.sub("", body))
    if match := _PREFIXED.search(joined):
        return _refuted(Finding.HOST_CODE, f"a literal {match[0]}... is not allowed")
    literals = [m[0] for m in _COMMENT_OR_STRING.finditer(joined) if m[0][0] in "\"'"]
    text = _COMMENT_OR_STRING.sub(lambda m: " " if m[0][0] == "/" else m[0], joined)
    code = _COMMENT_OR_STRING.sub(lambda m: m[0][0] * 2 if m[0][0] in "\"'" else " ", joined)
    for match in _DIRECTIVE.finditer(text):
        name, rest = match[1], match[2].strip()
        if name not in _ALLOWED_DIRECTIVES:
            return _refuted(Finding.INCLUDE, f"directive #{name} is not allowed")
        if name == "include" and not _ALLOWED_INCLUDE.fullmatch(rest):
            return _refuted(Finding.INCLUDE, f"#include {rest} is not allowed")
    for pattern, what in _FORBIDDEN.items():
        if match := re.search(pattern, code):
            return _refuted(Finding.HOST_CODE, f"{match[0].strip()!r}: {what} is not allowed")
    adjacent = "".join(literal[1:-1] for literal in literals)
    for strings in ("\n".join(literals), adjacent):
        if match := _FORBIDDEN_ASM.search(strings) or _ESCAPE.search(strings):
            return _refuted(Finding.HOST_CODE, f"{match[0]!r} in a string is not allowed")
    return None


def _screen_triton(body: str) -> Refuted | None:
    code = re.sub(r'""".*?"""|#[^\n]*', "", body, flags=re.DOTALL)
    for line in code.splitlines():
        stripped = line.strip()
        if re.match(r"(import|from)\b", stripped) and not _ALLOWED_IMPORTS.fullmatch(stripped):
            return _refuted(Finding.INCLUDE, f"{stripped!r} is not allowed")
    if match := _FORBIDDEN_PYTHON.search(code):
        return _refuted(Finding.HOST_CODE, f"{match[0]!r} is not allowed in a Triton kernel")
    return None


def _refuted(finding: Finding, detail: str) -> Refuted:
    return Refuted(stage="screen", check="source", finding=finding, detail=detail)
