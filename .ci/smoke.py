"""What a new user does first, with an installed fedsoft and without its repository: python smoke.py REPOSITORY."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import numpy as np

import fedsoft as fs


def command(line: str) -> None:
    """Run a command; what it prints is shown only where it fails."""
    done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{line}: {done.stdout}{done.stderr}")


def main() -> None:
    """Train, serve and export, from the shell and in Python."""
    home = Path(fs.__file__).resolve()
    assert not home.is_relative_to(Path(sys.argv[1]).resolve()), f"{home} is the repository's own"
    assert fs.__version__ == version("fedsoft")
    assert (home.parent / "py.typed").is_file()
    rng = np.random.default_rng(0)
    Path("plants").mkdir()
    for k in range(6):
        x = rng.standard_normal((40, 3)).round(3)
        rows = [f"{a},{b},{c},{a + (b if k % 2 else -b):.3f}" for a, b, c in x]
        Path(f"plants/p{k}.csv").write_text("a,b,c,y\n" + "\n".join(rows) + "\n")
    Path("plants.toml").write_text(
        'rounds = 3\nalgorithm = {name = "fedsoft", S = 2}\nmodel = "linear"\n'
        'dataset = {name = "folder", path = "plants", target = "y", standardize = true}\n'
    )
    assert tomllib.loads(Path("plants.toml").read_text())["rounds"] == 3
    command("fedsoft run plants.toml")
    command("fedsoft adopt plants --data plants/p0.csv --how personal")
    command("fedsoft predict plants --center 0 --data plants/p1.csv --out predictions.csv")
    command("fedsoft export plants --what centers --format torch --out centers")
    command("fedsoft run digits-2 --rounds 1")
    command("fedsoft ls")
    assert len(Path("predictions.csv").read_text().splitlines()) == 41
    fed = fs.datasets.folder("plants", target="y")
    run = fs.fit(fs.FedRoute(S=2), fed, fs.models.mlp([4]), rounds=2)
    assert run.adopt(np.zeros((5, 3)), np.zeros(5)).shares.sum() > 0.99
    print(f"fedsoft {fs.__version__} works on Python {sys.version.split()[0]}, installed in {home.parent}")


if __name__ == "__main__":
    main()
