"""The L1 projection: the published table, an independent optimiser, and every size from 2 to 64."""

import numpy as np
import pytest
from scipy.optimize import minimize

import tailsafe as ts
from tailsafe.risk import paper_steps
from tailsafe.risk.paper_table import PRINTED
from tailsafe.risk.projection import _cut_and_polish, l1_distance

# The exact optimum for M = 5: (eta, alpha, L1 error), from a separate solution of the stationarity conditions
# cross-checked by SLSQP and by quadrature on two million points.
EXACT = {
    "wang:0.5": ([0.51512, 0.78934, 1.08999, 1.49257, 2.19030], [0.26257, 0.54070, 0.76991, 0.92555], 0.109093),
    "wang:1.0": ([0.29384, 0.73458, 1.41580, 2.63832, 5.50730], [0.40937, 0.70040, 0.87737, 0.96799], 0.217081),
    "wang:1.5": ([0.18139, 0.81361, 2.21362, 5.58420, 16.19169], [0.57373, 0.83046, 0.94427, 0.98832], 0.322692),
    "pow:0.5": ([0.2, 0.6, 1.0, 1.4, 1.8], [0.2, 0.4, 0.6, 0.8], 0.1),
    "pow:0.75": ([0.04531, 0.57351, 1.34681, 2.30663, 3.42279], [0.41628, 0.61482, 0.76472, 0.89008], 0.155697),
    "pow:0.9": ([0.00263, 0.94603, 2.69877, 5.18532, 8.35848], [0.70074, 0.82118, 0.89716, 0.95402], 0.187455),
}


def l1_by_quadrature(measure, steps):
    u = (np.arange(2_000_000) + 0.5) / 2_000_000
    return np.abs(measure.sigma(u) - steps.sigma(u)).mean()


@pytest.mark.parametrize("spec", EXACT)
def test_reproduces_the_exact_table(spec):
    eta, alpha, error = EXACT[spec]
    steps = ts.parse_spectrum(spec).discretize(5)
    np.testing.assert_allclose(steps.eta, eta, rtol=1e-4, atol=5e-6)  # five printed decimals
    np.testing.assert_allclose(steps.alpha, alpha, rtol=1e-4)
    assert steps.l1_error == pytest.approx(error, abs=1e-6)


@pytest.mark.parametrize("measure", PRINTED, ids=str)
def test_is_close_to_and_never_worse_than_the_printed_table(measure):
    eta, alpha = map(np.array, PRINTED[measure])
    steps = measure.discretize(5)
    assert np.all(np.abs(steps.alpha - alpha) <= 0.006)
    assert np.all(np.abs(steps.eta - eta) <= np.maximum(0.0015, 0.025 * eta))
    assert steps.l1_error <= paper_steps(measure).l1_error + 1e-12


def test_a_row_that_the_paper_does_not_print_is_refused():
    with pytest.raises(ts.InputError, match=r"no row for cvar:0\.5"):
        paper_steps(ts.CVaR(0.5))


@pytest.mark.parametrize("spec", EXACT)
def test_reported_error_is_the_integral(spec):
    measure = ts.parse_spectrum(spec)
    steps = measure.discretize(5)
    assert steps.l1_error == pytest.approx(l1_by_quadrature(measure, steps), abs=2e-4)
    assert steps.eta @ np.diff(steps.alpha, prepend=0, append=1) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("measure", [ts.Wang(0.8), ts.Pow(0.6), ts.Pow(0.95)], ids=str)
def test_no_general_optimiser_finds_better(measure):
    """SLSQP over (eta, alpha), started at and around our answer, on the exact objective."""
    steps = measure.discretize(3)
    for seed in range(5):
        jitter = np.random.default_rng(seed).normal(scale=0.02 * seed, size=5)
        start = np.concatenate([steps.eta, steps.alpha]) * np.exp(jitter)
        found = minimize(
            lambda z: l1_distance(measure, z[:3], z[3:]),
            start,
            method="SLSQP",
            bounds=[(0, None)] * 3 + [(0.01, 0.99)] * 2,
            constraints=[
                {"type": "eq", "fun": lambda z: z[:3] @ np.diff(z[3:], prepend=0, append=1) - 1},
                {"type": "ineq", "fun": lambda z: np.concatenate([np.diff(z[:3]), np.diff(z[3:])])},
            ],
        )
        levels, breaks = np.sort(found.x[:3]), np.sort(found.x[3:])
        levels = levels / (levels @ np.diff(breaks, prepend=0, append=1))
        assert l1_distance(measure, levels, breaks) >= steps.l1_error - 1e-9


@pytest.mark.parametrize("level", [0.1, 0.5, 0.75, 0.99])
@pytest.mark.parametrize("cells", [2, 5, 64])
def test_cvar_is_exact(level, cells):
    steps = ts.CVaR(level).discretize(cells)
    assert steps.eta.tolist() == [0.0, 1 / (1 - level)]
    assert steps.alpha.tolist() == [level]
    assert steps.l1_error == 0


@pytest.mark.parametrize("measure", [ts.Wang(0.3), ts.Wang(1.5), ts.Wang(5.0), ts.Pow(0.2), ts.Pow(0.99)], ids=str)
def test_every_size_from_2_to_64(measure):
    errors = []
    for cells in [*range(2, 13), 16, 24, 32, 48, 64]:
        steps = measure.discretize(cells)
        assert steps.cells == cells
        errors.append(steps.l1_error)
    assert np.all(np.diff(errors) < 0)
    # Doubling the cells about halves the error (it is asymptotically proportional to 1/M).
    assert errors[-1] / errors[-3] == pytest.approx(32 / 64, rel=0.1)


@pytest.mark.parametrize("measure", [ts.Wang(1.0), ts.Pow(0.75), ts.Pow(0.05)], ids=str)
@pytest.mark.parametrize("cells", [2, 5, 16])
def test_the_two_solvers_agree(measure, cells):
    """Shooting along the stationarity conditions, and dynamic programming with polish, share no search."""
    eta, alpha = _cut_and_polish(measure, cells)
    steps = measure.discretize(cells)
    np.testing.assert_allclose(eta, steps.eta, rtol=1e-5)
    np.testing.assert_allclose(alpha, steps.alpha, rtol=1e-5)


def test_custom_spectra_with_and_without_jumps():
    assert ts.Spectrum(lambda u: 3 * u**2).discretize(64).l1_error == pytest.approx(
        ts.Pow(2 / 3).discretize(64).l1_error, rel=1e-6
    )
    assert ts.Spectrum(lambda u: np.where(u >= 0.75, 4.0, 0.0)).discretize(5).spec == "steps:0.0,4.0/0.75"
    # A ramp with a jump at 1/2: u + 1{u >= 1/2}; brute force over the levels and break of two cells.
    ramp = ts.Spectrum(lambda u: u + (u >= 0.5))
    grid = np.linspace(0.0, 1.0, 51)
    brute = min(
        l1_distance(ramp, np.array([low, (1 - low * cut) / (1 - cut)]), np.array([cut]))
        for cut in np.linspace(0.3, 0.7, 21)
        for low in grid
    )
    assert ramp.discretize(2).l1_error <= brute + 1e-9


def test_a_step_spectrum_projects_on_fewer_steps():
    fine = ts.Wang(1.0).discretize(64)
    coarse = fine.discretize(5)
    assert coarse.cells == 5
    # Within the triangle inequality of the direct projection.
    direct = ts.Wang(1.0).discretize(5).l1_error
    assert abs(coarse.l1_error - direct) <= fine.l1_error
    assert fine.discretize(64) == fine
    # Cells without width or rise are dropped: each would add a beta that does nothing.
    idle = ts.StepSpectrum([0.5, 0.5, 1.5, 3.0], [0.2, 0.5, 1.0])
    assert idle.discretize(4) == ts.StepSpectrum([0.5, 1.5], [0.5])
    assert fine.discretize(64).l1_error == 0


@pytest.mark.parametrize("cells", [0, -1, 2.5, float("nan"), True, float("inf")])
def test_bad_cell_counts_are_refused(cells):
    with pytest.raises(ts.InputError, match="whole number of at least 1"):
        ts.Wang(0.5).discretize(cells)


def test_beta_of_the_wrong_shape_or_order_is_refused():
    steps = ts.Wang(0.5).discretize(3)
    with pytest.raises(ts.InputError, match="M - 1 = 2"):
        steps.sub_risk([1.0, 2.0], [1.0])
    with pytest.raises(ts.InputError, match=r"beta\[1\] is 1; beta must be sorted"):
        steps.sub_risk([1.0, 2.0], [2.0, 1.0])
