"""Rows of results: as files, and by what they hold."""

import csv
from pathlib import Path

import noiseaware as na

Rows = list[dict]


def write(path: Path, rows: Rows, seed: int) -> None:
    """With seed and version on the first line."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        file.write(f"# seed {seed}, noiseaware {na.__version__}\n")
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {key: f"{x:.4g}" if isinstance(x, float) else x for key, x in row.items()}
            )


def read(path: Path) -> Rows:
    """What was written, numbers as numbers."""
    with open(path, newline="") as file:
        file.readline()
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def values_of(rows: Rows, key: str) -> list:
    """Distinct, in the order in which they come."""
    return list(dict.fromkeys(row[key] for row in rows))
