"""Pictures that need no script: SVG whose places are shares of its width, so that words keep their size on a phone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tailsafe.evaluation.bounds import Interval
from tailsafe.risk import quantile
from tailsafe.training.logs import per
from tailsafe.viz.report.data import Judged
from tailsafe.viz.report.markup import Html, el, join
from tailsafe.viz.run import QUANTILES, bins, cost_words, percentile_labels

# How runs are told apart without colours; the script draws the same shapes.
SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.6L4.6 3.6H-4.6z",
    "M0-5L5 0 0 5-5 0z",
    "M0 4.6L4.6-3.6H-4.6z",
    "M-1.4-4.6h2.8v3.2h3.2v2.8h-3.2v3.2h-2.8v-3.2h-3.2v-2.8h3.2z",
    "M-5-2.2h10v4.4h-10z",
    "M-2.2-5h4.4v10h-4.4z",
)
COLOURS = len(SHAPES)
_HEIGHT = 200
# Bounds that reach further than this many limits leave the picture, marked with an arrow.
_FURTHEST = 3.0
# Percentiles that are closer than this share of the width [percent] have one label, on a phone too.
_CLOSE = 4.5


def number(value: float) -> str:
    """Four digits, as in tables; a dash for what is not known."""
    return "–" if math.isnan(value) else "∞" if value == math.inf else f"{value:.4g}"


def whole(value: float) -> str:
    """A count with its thousands set apart."""
    return "–" if math.isnan(value) else f"{value:,.0f}"


def bounds(interval: Interval) -> str:
    """`[low, high]`; open where there is no upper bound."""
    end = f"{number(interval.high)}]" if math.isfinite(interval.high) else "∞)"
    return f"[{number(interval.low)}, {end}"


def swatch(index: int) -> Html:
    """The mark of a run: its colour and its shape."""
    mark = el("path", d=SHAPES[index % COLOURS], class_=f"fill c{index % COLOURS}")
    return el("svg", mark, class_="swatch", viewBox="-6 -6 12 12", width=12, height=12, aria_hidden="true")


# --- limit, estimate and bounds ---------------------------------------------------------------------------------------


def verdict_picture(rows: Sequence[tuple[str, Judged]]) -> Html:
    """For one constraint, a pair of bars per seed: both kinds of bounds around the estimate, and the limit."""
    first = rows[0][1]
    axis = _verdict_axis([judged for _, judged in rows])
    drawn = []
    for name, judged in rows:
        for label, bound, key in (
            ("distribution-free", judged.free, "distribution-free"),
            ("bootstrap", judged.bootstrap, "bootstrap"),
        ):
            decides = judged.decided_by == key
            told = f"{name}, {label}" if len(rows) > 1 else label
            drawn += [
                el("span", el("b", told) if decides else told, class_="bar-label"),
                el("span", el("b", number(judged.risk)), f" {bounds(bound)}", class_="bar-value"),
                _bar(judged, bound, axis, decides),
            ]
    limit = f"limit {first.limit:g}{per(first.unit)}"
    place = axis.at(first.limit)
    begin = f"{axis.low:.3g}"
    anchor = "start" if place < 15 else "end" if place > 85 else "middle"
    scale = el(
        "svg",
        el("text", limit, x=_percent(place), y=13, text_anchor=anchor, class_="limit-text"),
        el("text", begin, x="0%", y=13, text_anchor="start") if place > 20 + 4 * len(begin) else None,
        class_="axis",
        height=18,
        aria_hidden="true",
    )
    words = "; ".join(
        f"{name + ': ' if len(rows) > 1 else ''}estimate {number(judged.risk)}, distribution-free bounds "
        f"{bounds(judged.free)}, by bootstrap {bounds(judged.bootstrap)}"
        for name, judged in rows
    )
    return el(
        "div",
        *drawn,
        scale,
        class_="bars",
        role="img",
        aria_label=f"{first.name}: {limit}; {words}",
    )


def _verdict_axis(judged: Sequence[Judged]) -> _Axis:
    """From zero, or from nearer where nothing is near to zero, to the last bound that is not too far away."""
    most = max(max(one.limit, one.risk, _finite(one.bootstrap.high)) for one in judged)
    ends = [_finite(bound.high) for one in judged for bound in (one.free, one.bootstrap)]
    high = min(max([*ends, most]), _FURTHEST * most) or 1.0
    low = min(min(one.limit, one.risk, one.free.low, one.bootstrap.low) for one in judged)
    begin = min(low, 0.0) if low < 0.4 * high else low - 0.3 * (high - low)
    return _Axis(begin, high + 0.08 * (high - begin))


def _bar(judged: Judged, bound: Interval, axis: _Axis, decides: bool) -> Html:
    low, high = max(axis.at(bound.low), 0.0), axis.at(bound.high)
    leaves = not high <= 100
    end = 100.0 if leaves else high
    limit, risk = _percent(axis.at(judged.limit)), _percent(axis.at(judged.risk))
    arrow = el("svg", el("path", d="M-7 4l7 6-7 6z", class_="bar-arrow"), x="100%", overflow="visible")
    return el(
        "svg",
        el("line", x1=limit, x2=limit, y1=0, y2=20, class_="limit-line"),
        el("rect", x=_percent(low), y=7, width=_percent(max(end - low, 0.4)), height=6, rx=3, class_="bar-range"),
        arrow if leaves else None,
        el("circle", cx=risk, cy=10, r=5, class_="bar-point"),
        class_=f"bar {'decides' if decides else 'other'} {judged.verdict.split()[0]}",
        height=20,
        aria_hidden="true",
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _percent(value: float) -> str:
    return f"{min(max(value, -5.0), 105.0):.2f}%"


# --- distributions ----------------------------------------------------------------------------------------------------


def reward_picture(samples: NDArray[np.float64], mean: float, interval: Interval) -> Html:
    """Rewards of episodes with their mean and its bounds."""
    low, high = float(samples.min()), float(samples.max())
    span = (high - low) or max(abs(high), 1.0)
    axis = _Axis(low - 0.02 * span, high + 0.02 * span)
    bars, top = _bars(samples, axis)
    left, right = axis.at(interval.low), axis.at(interval.high)
    return el(
        "svg",
        bars,
        el("rect", x=_percent(left), y=0, width=_percent(max(right - left, 0.2)), height=_HEIGHT, class_="mean-range"),
        axis.line(mean, "mean-line"),
        axis.frame(top),
        class_="histogram",
        height=_HEIGHT,
        role="img",
        aria_label=f"Rewards of {samples.size} episodes from {number(low)} to {number(high)}, mean {number(mean)}",
    )


def cost_picture(samples: NDArray[np.float64], judged: Judged) -> Html:
    """Costs of episodes in the unit of the limit; over them the spectrum, percentiles, the risk and the limit."""
    ordered = np.sort(samples)
    span = max(float(ordered[-1]), judged.limit, judged.risk, 1e-12)
    axis = _Axis(min(0.0, float(ordered[0])) - 0.02 * span, 1.05 * span)
    bars, top = _bars(ordered, axis)
    spectrum, heaviest = _spectrum(ordered, judged, axis)
    return el(
        "svg",
        bars,
        spectrum,
        axis.line(judged.risk, "risk-line"),
        axis.line(judged.limit, "limit-line"),
        *_percentiles(ordered, axis),
        axis.frame(top),
        el("text", f"σ {heaviest:.3g}", x="100%", dx=6, y=_spectrum_y(1.0) + 4, class_="sigma-text"),
        el("text", "0", x="100%", dx=6, y=_HEIGHT + 4, class_="sigma-text"),
        class_="histogram",
        height=_HEIGHT,
        role="img",
        aria_label=(
            f"{judged.name}: {cost_words(judged.unit)}, {samples.size} of them from {number(float(ordered[0]))} to "
            f"{number(float(ordered[-1]))}; risk {number(judged.risk)}, limit {number(judged.limit)}"
        ),
    )


def percentiles(samples: NDArray[np.float64]) -> list[tuple[float, float]]:
    """(share, value) of the percentiles that pictures mark."""
    return [(p, float(x)) for p, x in zip(QUANTILES, quantile(samples, np.array(QUANTILES)), strict=True)]


class _Axis:
    """Places of values between `low` and `high`, in percent of the width."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def at(self, value: float) -> float:
        return 100 * (value - self.low) / (self.high - self.low)

    def line(self, value: float, name: str) -> Html:
        place = _percent(self.at(value))
        return el("line", x1=place, x2=place, y1=0, y2=_HEIGHT, class_=name)

    def frame(self, top: int) -> Html:
        """The base line, ticks below it, and how many episodes the full height is."""
        step = _nice((self.high - self.low) / 5)
        ticks = np.arange(math.ceil(self.low / step), math.floor(self.high / step) + 1) * step
        labels = [
            el("text", f"{tick:.6g}", x=_percent(self.at(float(tick))), y=_HEIGHT + 17, text_anchor="middle")
            for tick in ticks
        ]
        return join(
            el("line", x1="0%", x2="100%", y1=_HEIGHT, y2=_HEIGHT, class_="base"),
            *labels,
            el("text", "0", x="0%", dx=-6, y=_HEIGHT + 4, text_anchor="end"),
            el("text", str(top), x="0%", dx=-6, y=_bar_y(1.0) + 4, text_anchor="end"),
        )


def _nice(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return power * next(factor for factor in (1, 2, 5, 10) if factor * power >= step * 0.999)


def _bar_y(share: float) -> float:
    """Above the highest bar is room for the names of percentiles."""
    return _HEIGHT * (1 - 0.74 * share)


def _spectrum_y(share: float) -> float:
    return _HEIGHT * (1 - 0.6 * share)


def _bars(samples: NDArray[np.float64], axis: _Axis) -> tuple[Html, int]:
    """The bars, and the largest count."""
    counts, edges = np.histogram(samples, bins=bins(samples))
    top = int(counts.max())
    drawn = []
    for count, left, right in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if count:
            # One episode among a thousand is still seen.
            y, x = min(_bar_y(count / top), _HEIGHT - 2.0), axis.at(left)
            said = el("title", f"{number(left)} to {number(right)}: {count} episode{'s' if count > 1 else ''}")
            width = _percent(max(axis.at(right) - x - 0.12, 0.2))
            drawn.append(el("rect", said, x=_percent(x), y=f"{y:.1f}", width=width, height=f"{_HEIGHT - y:.1f}"))
    return el("g", *drawn, class_="counts"), top


def _spectrum(ordered: NDArray[np.float64], judged: Judged, axis: _Axis) -> tuple[Html, float]:
    """The weight of outcomes by their rank, as steps at the outcomes; and the largest one.

    The mean weight of each sample's slice of the ranks: finite where sigma(1) is not.
    """
    n = ordered.size
    weights = np.diff(judged.measure.integral(np.arange(n + 1) / n)) * n
    heaviest = float(weights.max())
    place, height = 0.0, 100 - 60 * float(weights[0]) / heaviest
    points = [f"M0 {height:.2f}"]
    for x, weight in zip(ordered.tolist(), weights.tolist(), strict=True):
        at, y = axis.at(x), 100 - 60 * weight / heaviest
        # What is nearer than a tenth of a percent is not seen.
        if abs(y - height) > 0.05 and (at - place > 0.1 or abs(y - height) > 1):
            points.append(f"H{at:.2f}V{y:.2f}")
            place, height = at, y
    line = "".join(points) + "H100"
    return el(
        "svg",
        el("path", d=f"{line}V100H0z", class_="sigma-area"),
        el("path", d=line, class_="sigma-line", vector_effect="non-scaling-stroke"),
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        width="100%",
        height=_HEIGHT,
    ), heaviest


def _percentiles(ordered: NDArray[np.float64], axis: _Axis) -> list[Html]:
    drawn = [axis.line(x, "percentile") for _, x in percentiles(ordered)]
    places = [(p, axis.at(x)) for p, x in percentiles(ordered)]
    for place, told in percentile_labels(places, _CLOSE):
        # Left of their line, but inside of the picture.
        side = 11 if place < 6 else -3
        words = el("text", told, transform="rotate(-90)", x=-2, y=side, text_anchor="end")
        drawn.append(el("svg", words, x=_percent(place), y=0, overflow="visible", class_="percentile-text"))
    return drawn
