"""`tailsafe risk`: the spectral risk of recorded costs, with bounds that assume nothing about their distribution."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailsafe.cli.app import JsonFlag, Spec, app, console, emit_json
from tailsafe.errors import InputError

if TYPE_CHECKING:
    import numpy as np


@app.command()
def risk(
    spec: Spec,
    file: Annotated[Path, typer.Argument(help="Samples: .npy, or .csv with one column (a header is fine).")],
    confidence: Annotated[float, typer.Option(help="Probability that the bounds hold.")] = 0.95,
    upper: Annotated[
        float | None,
        typer.Option(help="The largest value a sample can have; without it there is no upper bound."),
    ] = None,
    column: Annotated[str | None, typer.Option(help="Which column of a .csv with several, by header name.")] = None,
    json: JsonFlag = False,
) -> None:
    """The spectral risk of the samples in FILE and its two-sided confidence bounds.

    The bounds hold for any distribution on [0, UPPER]. Samples must be independent.
    """
    import numpy as np

    from tailsafe.risk import parse_spectrum

    measure = parse_spectrum(spec)
    samples = read_samples(file, column)
    try:
        estimate = float(measure.risk(samples))
        # The bounds need costs in [0, upper]; without `upper` negative samples just have none.
        bounded = upper is not None or samples.min() >= 0
        low, high = measure.risk_interval(samples, confidence, upper) if bounded else (-np.inf, np.inf)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    result = {
        "measure": str(measure),
        "risk": estimate,
        "lower": float(low) if np.isfinite(low) else None,
        "upper": float(high) if np.isfinite(high) else None,
        "n": int(samples.size),
        "confidence": confidence,
        "bound": upper,
    }
    if json:
        emit_json(result)
        return
    out = console()
    out.print(f"{measure} of {samples.size} samples: [bold]{estimate:.6g}[/bold]")
    if not bounded:
        out.print("No bounds: they need costs, and some samples are negative.")
    elif upper is None:
        out.print(f"With confidence {confidence:g} the true risk is at least {low:.6g}.")
        out.print("For an upper bound say how large a sample can be (--upper).")
    else:
        out.print(f"With confidence {confidence:g} the true risk is between {low:.6g} and {high:.6g}.")


def read_samples(path: Path, column: str | None = None) -> np.ndarray:
    """The samples in a .npy or .csv file, (n,), or an `InputError` that names the file and the place."""
    import numpy as np

    suffix = path.suffix.lower()
    if suffix not in (".npy", ".csv"):
        raise InputError(f"{path}: samples are read from .npy or .csv files")
    if column is not None and suffix != ".csv":
        raise InputError(f"{path}: --column is for .csv files")
    try:
        return np.array(_read_column(path, column)) if suffix == ".csv" else _read_array(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _read_array(path: Path) -> np.ndarray:
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except OSError:
        raise
    except Exception:  # a header can be wrong in many ways, each with an exception of its own
        raise InputError(f"{path}: not a .npy file of plain numbers") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise InputError(f"{path}: an archive of arrays, not one .npy array")
    if array.dtype.kind not in "fiub":
        raise InputError(f"{path}: holds {array.dtype}, not real numbers")
    if array.ndim != 1 and array.size != max(array.shape, default=0):
        raise InputError(f"{path}: has shape {array.shape}; samples are one-dimensional")
    return np.asarray(array.reshape(-1), dtype=np.float64)


def _read_column(path: Path, column: str | None) -> list[float]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            rows = [(number, row) for number, row in enumerate(csv.reader(handle), 1) if any(map(str.strip, row))]
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path}: not a text file of comma-separated values") from None
    if not rows:
        raise InputError(f"{path}: is empty; at least one sample is needed")
    header = None if any(map(_looks_numeric, rows[0][1])) else [cell.strip() for cell in rows[0][1]]
    width = len(rows[0][1])
    if column is not None:
        if header is None or column not in header:
            raise InputError(f"{path}: has no column {column!r} (columns: {', '.join(header or ['no header'])})")
        index = header.index(column)
    elif width > 1:
        names = ", ".join(header) if header else f"{width} without names"
        raise InputError(f"{path}: has several columns ({names}); choose one with --column")
    else:
        index = 0
    samples = []
    for number, row in rows[1:] if header else rows:
        if len(row) != width:
            raise InputError(f"{path}: line {number} has {len(row)} cells, line {rows[0][0]} has {width}")
        try:
            sample = float(row[index])
        except ValueError:
            sample = math.nan
        if not math.isfinite(sample):
            raise InputError(f"{path}: line {number} holds {row[index].strip()!r}, not a finite number")
        samples.append(sample)
    if not samples:
        raise InputError(f"{path}: has a header but no samples")
    return samples


def _looks_numeric(cell: str) -> bool:
    """Whether a cell of the first line is a sample, perhaps a mistyped one, rather than a column's name."""
    return cell.strip()[:1] in set("0123456789+-.") or cell.strip().lower() in ("nan", "inf")
