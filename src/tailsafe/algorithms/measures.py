"""Which risk measures an algorithm can be asked for."""

from __future__ import annotations

from tailsafe.risk.spectra import SpectralRisk


def only_cvar(name: str, measures: list[SpectralRisk]) -> str | None:
    """A line that refuses measures other than CVaR (level 0 is the mean), or None."""
    others = [measure.spec for measure in measures if not (measure.spec == "mean" or measure.spec.startswith("cvar:"))]
    if not others:
        return None
    return f"{name} supports CVaR and mean only, not {others[0]}; choose cvar:LEVEL, or another algorithm"
