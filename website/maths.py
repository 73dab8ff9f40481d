"""Formulas as MathML, which browsers draw themselves: `$...$` in a line, and blocks of `math`."""

from __future__ import annotations

import re

from website.gather import outside_code

BLOCK = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<![\\$\w])\$(?=\S)([^$\n]+?)(?<=\S)\$(?![\w$])")


def with_maths(text: str) -> str:
    """Return a page with its formulas as MathML."""
    from latex2mathml.converter import convert

    def block(found: re.Match[str]) -> str:
        return f'\n<div class="formula">{convert(found[1].strip(), display="block")}</div>\n'

    def inline(found: re.Match[str]) -> str:
        return convert(found[1])

    return outside_code(BLOCK.sub(block, text), lambda part: INLINE.sub(inline, part))
