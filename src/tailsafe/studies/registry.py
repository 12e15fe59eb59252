"""The studies by name."""

from __future__ import annotations

from tailsafe.studies import benchmark, discretization, known_optimum, risk_measures, training_time
from tailsafe.studies.study import Study

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (discretization, risk_measures, benchmark, training_time, known_optimum)
}
