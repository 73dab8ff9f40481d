"""Formulas as MathML, which browsers draw themselves: `$...$` in a line, and blocks of `math`."""

from __future__ import annotations

import re

from website.gather import outside_code

BLOCK = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
UNKNOWN = re.compile(r"<mi>\\(\w+)</mi>")  # what the converter hands through as it is
INLINE = re.compile(r"(?<![\\$\w])\$(?=\S)([^$\n]+?)(?<=\S)\$(?![\w$])")


def with_maths(text: str) -> str:
    """Return a page with its formulas as MathML."""

    def block(found: re.Match[str]) -> str:
        return f'\n<div class="formula">{_mathml(found[1].strip(), "block")}</div>\n'

    def inline(found: re.Match[str]) -> str:
        return _mathml(found[1], "inline")

    return outside_code(BLOCK.sub(block, text), lambda part: INLINE.sub(inline, part))


def _mathml(formula: str, display: str) -> str:
    """Return a formula as MathML; raise for a command that would be shown as it is typed."""
    from latex2mathml.converter import convert

    found = convert(formula, display=display).replace("<mi>\\arg</mi>", "<mi>arg</mi>")
    if unknown := UNKNOWN.search(found):
        raise ValueError(f"the formula {formula} has a command that cannot be shown: {unknown[1]}")
    return found
