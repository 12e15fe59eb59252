"""Risk of numbers you have recorded, with bounds that hold for any distribution; no training.

python examples/recorded_costs.py
tailsafe risk cvar:0.75 costs.csv --upper 20
"""

import numpy as np

import tailsafe as ts


def main():
    costs = np.minimum(np.random.default_rng(0).exponential(size=2000), 20.0)
    for measure in (ts.Mean(), ts.CVaR(0.75), ts.Wang(0.5), ts.Spectrum(lambda u: 3 * u**2)):
        bounds = measure.risk_interval(costs, 0.95, upper=20.0)
        print(f"{measure.spec}: {measure.risk(costs):.3f} [{bounds.lower:.3f}, {bounds.upper:.3f}]")

    # What the learner sees of a spectrum: a few steps, as close as so many can be.
    step = ts.Wang(0.5).discretize(cells=5)
    print(f"in 5 steps {step.risk(costs):.3f}; error of the spectrum {step.l1_error:.3f}")


if __name__ == "__main__":
    main()
