"""Build the site: gather pages, execute them, make pages from code, render, check.

python -m website [--out build/site] [--pages build/pages] [--only PAGE ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from website import algorithm_pages, gather, maths, nav, notebooks, reference
from website.check import check


def main() -> int:
    """Build everything; the exit code tells whether the site is whole."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    reader.add_argument("--out", type=Path, default=gather.ROOT / "build" / "site", help="default: build/site")
    reader.add_argument("--only", nargs="*", help="execute these pages alone; default: all")
    reader.add_argument("--pages", type=Path, default=gather.ROOT / "build" / "pages", help="default: build/pages")
    chosen = reader.parse_args()
    begun = time.monotonic()
    source = chosen.pages.absolute()
    files = gather.gather(source)
    gather.write_sources(files, source)
    made = {"Algorithms": algorithm_pages.write(source), "Reference": reference.write(source)}
    execute_all(source, chosen.only)
    for page in source.rglob("*.md"):
        if not page.is_relative_to(source / "source"):
            page.write_text(maths.with_maths(page.read_text("utf-8")), "utf-8")
    home = source / "index.md"  # needs the room of the navigation, which is above it, too
    home.write_text(f"---\nhide: [navigation, toc]\n---\n{home.read_text('utf-8')}", "utf-8")
    settings = source.parent / "mkdocs.yml"
    theme = Path(__file__).parent / "theme"
    given = (
        (Path(__file__).parent / "mkdocs.yml").read_text("utf-8").replace("custom_dir: theme", f"custom_dir: {theme}")
    )
    places = {"docs_dir": str(source), "site_dir": str(chosen.out.absolute()), "nav": nav.nav(source, made)}
    settings.write_text(given.replace("../../src", str(gather.ROOT / "src")) + "\n" + yaml.safe_dump(places), "utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(settings)]
    if code := subprocess.run(command, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=False).returncode:
        return code
    problems = check(chosen.out)
    print("\n".join(problems))
    print(f"{chosen.out}/index.html: {len([*chosen.out.rglob('*.html')])} pages in {time.monotonic() - begun:.0f} s")
    return 1 if problems else 0


def execute_all(source: Path, only: list[str] | None) -> None:
    """Execute the pages that are programs, two at a time, each in an empty folder."""
    pages = [page for page in sorted(source.rglob("*.md")) if notebooks.is_executed(page.read_text("utf-8"))]

    def one(page: Path) -> None:
        name = page.relative_to(source).as_posix()
        parts = list(notebooks.pieces(page.read_text("utf-8")))
        book = notebooks.notebook(parts)
        with tempfile.TemporaryDirectory() as folder:
            if only is None or name in only:
                begun = time.monotonic()
                notebooks.execute(book, Path(folder), name)
                print(f"{name}: executed in {time.monotonic() - begun:.0f} s", flush=True)
                notebooks.saved(parts, book, Path(folder), page)

    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as workers:
        list(workers.map(one, pages))


if __name__ == "__main__":
    sys.exit(main())
