"""Draws what moves where: the server on the left, a client on the right, an arrow for everything that is sent."""

from __future__ import annotations

from html import escape

from website.watching import Step, Watched, when

LEFT, RIGHT, WIDTH = 110, 530, 640  # of the two lines of life
KINDS = {
    "model": "model", "mixture": "shares of the centers", "choice": "number of a center",
    "counts": "numbers of points", "number": "", "step": "distance from the centers",
}  # fmt: skip


def drawing(title: str, watched: Watched) -> str:
    """Return the figure as HTML, described in words for those who do not see it."""
    steps = [step for step in watched.steps if any(step.clients)]
    parts, y = [], 64
    for step in steps:
        drawn, y = _step(step, y)
        parts.append(drawn)
    kept = f"keeps {', '.join(watched.kept)}" if watched.kept else "keeps nothing"
    height = y + 12
    head = "".join(
        f'<rect x="{x - 100}" y="8" width="200" height="42" rx="5" fill="none" stroke="currentColor"/>'
        f'<text x="{x}" y="26" text-anchor="middle" font-weight="600">{name}</text>'
        f'<text x="{x}" y="42" text-anchor="middle" font-size="11" fill="var(--fig-muted)">{note}</text>'
        f'<line x1="{x}" y1="50" x2="{x}" y2="{height}" stroke="var(--fig-rule)" stroke-width="2"/>'
        for x, name, note in ((LEFT, "Server", f"sees {watched.needs}"), (RIGHT, "Client", escape(kept)))
    )
    words = " ".join(_words(step) for step in steps)
    return (
        f'<figure class="drawn"><div class="scroll"><svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(f"What moves where under {title}. {words} The client {kept} between rounds.")}">'
        f"{head}{''.join(parts)}</svg></div><figcaption>What moves where, drawn from a run of six rounds that was "
        f"watched while this page was built (a linear model of P = {watched.size} parameters, two centers, eight "
        "clients, of which four are drawn where the algorithm draws).</figcaption></figure>"
    )


def _step(step: Step, y: int) -> tuple[str, int]:
    """Return one request and its answer, and where the next one begins."""
    down = [f"{name} {_size(shape)}" for name, shape in step.down.items()]
    up = [f"{name} {_size(shape)}" for name, (shape, _) in step.up.items()]
    parts = [f'<text x="{LEFT + 12}" y="{y + 12}" font-size="11" fill="var(--fig-muted)">{escape(_who(step))}</text>']
    y += 20
    drawn, y = _arrow(down or ["(only the request)"], LEFT, RIGHT, y, "var(--c0)")
    parts.append(drawn)
    parts.append(
        f'<rect x="{RIGHT - 6}" y="{y}" width="12" height="22" rx="2" fill="var(--c2)"/>'
        f'<text x="{RIGHT - 14}" y="{y + 15}" text-anchor="end" font-weight="600">{escape(step.job)}</text>'
    )
    y += 26
    if up:
        drawn, y = _arrow(up, RIGHT, LEFT, y, "var(--c1)")
    else:
        drawn = (
            f'<text x="{RIGHT - 14}" y="{y + 8}" text-anchor="end" fill="var(--fig-muted)">nothing is sent back</text>'
        )
        y += 14
    return "".join([*parts, drawn]), y + 16


def _arrow(names: list[str], begin: int, end: int, y: int, color: str) -> tuple[str, int]:
    """Return an arrow under its lines of text, and where it ends."""
    lines = _lines(names)
    text = "".join(
        f'<text x="{(LEFT + RIGHT) // 2}" y="{y + 13 + 16 * number}" text-anchor="middle">{escape(line)}</text>'
        for number, line in enumerate(lines)
    )
    y += 16 * len(lines) + 6
    tip = 9 if end > begin else -9
    arrow = (
        f'<path d="M{begin + tip} {y} H{end - 1.4 * tip}" stroke="{color}" stroke-width="2.5"/>'
        f'<path d="M{end - tip / 4} {y} l{-tip * 1.4} -5 v10 z" fill="{color}"/>'
    )
    return text + arrow, y + 8


def _lines(names: list[str], longest: int = 52) -> list[str]:
    lines = [""]
    for name in names:
        if lines[-1] and len(lines[-1]) + len(name) > longest:
            lines.append("")
        lines[-1] += f", {name}" if lines[-1] else name
    return lines


def _size(shape: tuple[int, ...]) -> str:
    return f"[{' × '.join(map(str, shape))}]" if shape else ""


def _who(step: Step) -> str:
    counts = sorted(set(filter(None, step.clients)))
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    rounds = [t for t, count in zip(step.rounds, step.clients, strict=True) if count]
    return f"{when(rounds)}: {many} of 8 clients"


def _words(step: Step) -> str:
    down = ", ".join(step.down) or "nothing but the request"
    up = ", ".join(f"{name} ({KINDS[kind]})" if KINDS[kind] else name for name, (_, kind) in step.up.items())
    return f"{_who(step)} are sent {down}; they do the job {step.job} and send {up or 'nothing'}."
