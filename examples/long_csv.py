"""Train on one long CSV with a column of clients, and print who uses which center.

python examples/long_csv.py
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np

import fedsoft as fs


def write_table(path: Path, shops: int = 12, days: int = 80) -> None:
    """Write made-up sales: shops of two kinds, which the table does not name, react to prices in opposite ways."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["shop", "day", "weather", "price", "sales"])
        for shop in range(shops):
            for day in range(days):
                weather, price = rng.choice(["rain", "sun"]), rng.normal()
                slope = 2.0 if shop % 2 else -2.0
                sales = slope * price + (weather == "sun") + 0.1 * rng.normal()
                writer.writerow([f"shop-{shop:02}", day, weather, f"{price:.4f}", f"{sales:.4f}"])


def main() -> None:
    """Make the table, train, and print what every shop got."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all.csv"
        write_table(path)
        fed = fs.datasets.table(path, client="shop", target="sales", split={"time": "day"})
    print(fed)
    print("inputs:", ", ".join(fed.columns.elements or ()))
    run = fs.fit(fs.FedSoft(S=2, K="all", lam=0.1), fed, model=fs.models.linear(), rounds=30, seed=0)
    for name, weights in zip(fed.names, run.weights.tolist(), strict=True):
        print(f"{name}: {', '.join(f'{share:.0%} of center {s}' for s, share in enumerate(weights))}")


if __name__ == "__main__":
    main()
