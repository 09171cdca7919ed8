"""Contract expressions mean what Python means by them, and nothing but arithmetic can be said."""

import re
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from l2tune.errors import ExpressionError
from l2tune.spec.expr import Expression, cdiv

VALUES = {"m": 1000, "n": 7, "k": 64, "batch": 1, "TILE_M": 128}

# Pairs: the expression, and Python that means the same. The language's truth values are 0 and 1.
leaves = st.integers(0, 10**6).map(lambda i: (str(i), str(i))) | st.sampled_from(
    [(name, name) for name in VALUES]
)


def _grow(children: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    def form(text: str, python: str, count: int) -> st.SearchStrategy[tuple[str, str]]:
        return st.tuples(*[children] * count).map(
            lambda parts: (
                text.format(*(ours for ours, _ in parts)),
                python.format(*(theirs for _, theirs in parts)),
            )
        )

    binary = [f"({{}} {op} {{}})" for op in ("+", "-", "*", "//", "%")]
    logic = [f"({{}} {op} {{}})" for op in ("and", "or", "<", "<=", ">", ">=", "==", "!=")]
    return st.one_of(
        *(form(text, text, 2) for text in binary),
        *(form(text, f"int(bool({text}))", 2) for text in logic),
        form("({} < {} <= {})", "int({} < {} <= {})", 3),
        form("({} if {} else {})", "({} if {} else {})", 3),
        form("(-{})", "(-{})", 1),
        form("(not {})", "int(not {})", 1),
        *(form(text, text, 2) for text in ("cdiv({}, {})", "min({}, {})", "max({}, {})")),
    )


trees = st.recursive(leaves, _grow, max_leaves=12)


@given(trees.filter(lambda tree: len(tree[0]) <= 500))
@example(("(0 < 0 <= (1 // 0))", "int(0 < 0 <= (1 // 0))"))
@example(("(0 <= 0 < (1 // 0))", "int(0 <= 0 < (1 // 0))"))
def test_an_expression_has_the_value_that_python_gives_it(tree):
    ours, python = tree
    try:
        expected = eval(python, {"cdiv": cdiv}, dict(VALUES))
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="divides by zero"):
            Expression(ours)(VALUES)
    else:
        assert Expression(ours)(VALUES) == expected, ours


@given(trees.filter(lambda tree: len(tree[0]) <= 500))
def test_the_names_of_an_expression_are_those_its_text_reads(tree):
    words = set(re.findall(r"\w+", tree[0]))
    assert Expression(tree[0]).names == words & VALUES.keys()


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**4))
def test_exact_division_divides_or_refuses(x, y):
    found = Expression("x / y")
    if x % y:
        with pytest.raises(ExpressionError, match="leaves a remainder"):
            found({"x": x, "y": y})
    else:
        assert found({"x": x, "y": y}) == x // y


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "m.__class__", "(lambda: 1)()", "[m for m in (1, 2)]",
        "m[0]", "m ** 2", "m << 40", "m & 1", "~m", "1.5 * m", "'m'", "True", "None", "m is n",
        "m in n", "(m := 1)", "m, n", "{m}", "f'{m}'", "abs(m)", "pow(2, 99)", "min(*m)",
        "min(m, n, key=n)", "cdiv(m)", "cdiv(m, n, k)", "min()", "max(m)", "await m", "...",
        "", " ", "m +", "m; n", "m\nn", "\0", "m" * 501, "(" * 250 + "m" + ")" * 249,
        "not " * 130, "-" * 499,
    ],
)  # fmt: skip
def test_what_the_language_lacks_is_refused_when_it_is_read(text):
    with pytest.raises(ExpressionError):
        Expression(text)


@given(st.text(max_size=60) | st.text("mnk0123456789()[]{}.,+-*/%<>=! '\"\\:\n", max_size=60))
def test_any_text_is_an_expression_or_an_expression_error(text):
    with suppress(ExpressionError):
        Expression(text)({})


@pytest.mark.parametrize("text", ["-" * 499 + "1", "1" + "+1" * 249, "not " * 120 + "m"])
def test_the_deepest_text_allowed_is_read_or_refused_but_never_overflows_the_stack(text):
    with suppress(ExpressionError):
        Expression(text)(VALUES)


def test_a_name_without_a_value_is_named():
    with pytest.raises(ExpressionError, match="unknown name 'q'"):
        Expression("m + q")(VALUES)
