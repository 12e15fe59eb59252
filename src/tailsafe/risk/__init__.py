"""Spectral risk: spectra, their step discretisation and dual form, empirical risk and its confidence bounds.

Nothing in here knows about reinforcement learning.
"""

from tailsafe.risk.custom import Spectrum
from tailsafe.risk.dual import beta_bounds, conjugate_integral, g_beta, sub_risk
from tailsafe.risk.empirical import quantile, spectral_risk
from tailsafe.risk.interval import RiskInterval, risk_interval, risk_sequence
from tailsafe.risk.paper_table import paper_steps
from tailsafe.risk.parse import parse_spectrum
from tailsafe.risk.projection import project
from tailsafe.risk.spectra import CVaR, Mean, Pow, SpectralRisk, Wang
from tailsafe.risk.step import StepSpectrum

__all__ = [
    "CVaR",
    "Mean",
    "Pow",
    "RiskInterval",
    "SpectralRisk",
    "Spectrum",
    "StepSpectrum",
    "Wang",
    "beta_bounds",
    "conjugate_integral",
    "g_beta",
    "paper_steps",
    "parse_spectrum",
    "project",
    "quantile",
    "risk_interval",
    "risk_sequence",
    "spectral_risk",
    "sub_risk",
]
