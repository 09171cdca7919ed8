"""PTX text as tokens, with lines, for the parser."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from l2tune.errors import L2TuneError

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\f]+|//[^\n]*)
      |(?P<lines>\n|/\*.*?\*/)
      |(?P<string>"(?:[^"\\]|\\.)*")
      |(?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?
        |0[bB][01]+U?|\d+\.\d+(?:[eE][-+]?\d+)?|\d+U?)
      |(?P<word>\.\w+|[A-Za-z_$%][\w$.]*(?:::[\w$.]+)*)
      |(?P<mark>[{}()\[\],;:=<>+\-*!@|])""",
    re.VERBOSE | re.DOTALL,
)


class PtxSyntaxError(L2TuneError, ValueError):
    """PTX text that the parser cannot read; the message names the line."""


class Token(NamedTuple):
    """One token: its kind (`string`, `number`, `word`, `mark`, `end`), text, line and extent."""

    kind: str
    text: str
    line: int
    start: int
    end: int


def tokenize(text: str) -> list[Token]:
    """Split a PTX text; comments and blanks are dropped.

    Raises:
        PtxSyntaxError: If a character starts no token.
    """
    tokens, at, line = [], 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise PtxSyntaxError(f"PTX line {line}: {text[at]!r} starts no token of PTX")
        kind, part = str(match.lastgroup), match.group()
        if kind == "lines":
            line += part.count("\n")
        elif kind != "skip":
            tokens.append(Token(kind, part, line, at, match.end()))
        at = match.end()
    tokens.append(Token("end", "", line, len(text), len(text)))
    return tokens


class Cursor:
    """A place in a token list.

    Attributes:
        text: All of the PTX.
        tokens: Its tokens, the last of kind `end`.
        at: Index of the next token.
    """

    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.at = text, tokenize(text), 0

    @property
    def next(self) -> Token:
        """The next token, not taken."""
        return self.tokens[self.at]

    def after_next(self) -> Token:
        """The token after the next."""
        return self.tokens[min(self.at + 1, len(self.tokens) - 1)]

    def take(self) -> Token:
        """Take one token."""
        token = self.tokens[self.at]
        if token.kind == "end":
            self.fail("the text ends here, more was expected")
        self.at += 1
        return token

    def accept(self, mark: str) -> bool:
        """Take the next token if its text is `mark`."""
        if self.tokens[self.at].text != mark:
            return False
        self.at += 1
        return True

    def expect(self, mark: str) -> Token:
        """Take a token whose text must be `mark`."""
        if self.next.text != mark:
            self.fail(f"found {self.next.text!r}, expected {mark!r}")
        return self.take()

    def word(self) -> str:
        """Take a word."""
        if self.next.kind != "word":
            self.fail(f"found {self.next.text!r}, expected a name")
        return self.take().text

    def integer(self) -> int:
        """Take an integer, with any sign."""
        sign = 1
        while self.next.text in ("+", "-"):
            sign = -sign if self.take().text == "-" else sign
        if self.next.kind != "number":
            self.fail(f"found {self.next.text!r}, expected an integer")
        token = self.take()
        try:
            return sign * int(token.text.rstrip("U"), 0)
        except ValueError:
            self.fail(f"found {token.text!r}, expected an integer")

    def skip_line(self) -> list[Token]:
        """Take the rest of the next token's line."""
        line, start = self.next.line, self.at
        while self.next.kind != "end" and self.next.line == line:
            self.at += 1
        return self.tokens[start : self.at]

    def skip_past(self, mark: str) -> None:
        """Take tokens up to and with `mark`; braces that open before it are taken whole."""
        while (token := self.take()).text != mark:
            if token.text == "{":
                self.skip_past("}")

    def fail(self, message: str) -> NoReturn:
        """Raise a PtxSyntaxError at the next token."""
        raise PtxSyntaxError(f"PTX line {self.next.line}: {message}")
