"""The text form of risk measures, for command lines and configuration files."""

from __future__ import annotations

import difflib

from tailsafe.errors import InputError
from tailsafe.risk.spectra import CVaR, Mean, Pow, SpectralRisk, Wang
from tailsafe.risk.step import StepSpectrum

FORMS = "mean, cvar:LEVEL, pow:LEVEL, wang:LEVEL or steps:ETA1,ETA2,.../ALPHA1,..."
_LEVELED: dict[str, type[CVaR] | type[Pow] | type[Wang]] = {"cvar": CVaR, "pow": Pow, "wang": Wang}


def parse_spectrum(text: str) -> SpectralRisk:
    """The measure that a text names.

    Args:
      text: `mean`, `cvar:0.75`, `pow:0.9`, `wang:1.0`, or `steps:0,4/0.75`: levels, then break points.

    Returns:
      The measure; its `spec` is the text again.

    Examples:
      >>> ts.parse_spectrum("cvar:0.75")
      CVaR(level=0.75)
    """
    name, colon, rest = text.strip().partition(":")
    name = name.lower()
    if name == "mean":
        if colon:
            raise InputError(f"risk measure {text!r}: mean takes no level")
        return Mean()
    if name in _LEVELED:
        return _LEVELED[name](_number(rest, text, f"{name} needs a level, as in {name}:0.5"))
    if name == "steps":
        levels, slash, breaks = rest.partition("/")
        if not slash:
            raise InputError(f"risk measure {text!r}: steps needs levels / break points, as in steps:0,4/0.75")
        return StepSpectrum(_numbers(levels, text), _numbers(breaks, text))
    near = difflib.get_close_matches(name, ["mean", "steps", *_LEVELED], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(f"unknown risk measure {text!r}{hint} (allowed: {FORMS})")


def _number(text: str, whole: str, need: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"risk measure {whole!r}: {need}, got {text!r}") from None


def _numbers(text: str, whole: str) -> list[float]:
    return [_number(part, whole, "levels and break points are numbers") for part in text.split(",") if text.strip()]
