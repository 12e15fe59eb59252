"use strict";
// The page works without this: tables and pictures are there already. It draws the learning curves and lets them be
// read, sorts the comparison, opens what is folded for the printer, and plays videos for those who like motion.
(() => {
  const HEIGHT = 230, LEFT = 52, RIGHT = 16, TOP = 12, BOTTOM = 36;
  // Half of a sheet of paper: two charts stand side by side.
  const PRINTED = 340;
  const DASHES = ["", "1.5 3.5", "7 4", "7 3 1.5 3"];
  const { blocks, shapes } = JSON.parse(document.getElementById("data").textContent);
  const charts = [];

  // --- numbers -------------------------------------------------------------------------------------------------------

  const number = (value) => {
    if (value === null) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(2).replace("e+", "e");
    return String(Number(value.toPrecision(4)));
  };

  const whole = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 0 });

  // 1500000 as 1.5M: labels of an axis have no room.
  const short = (value) => {
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(value) >= size) return Number((value / size).toPrecision(4)) + letter;
    }
    return number(value);
  };

  // About `count` round numbers from low to high.
  const linearTicks = (low, high, count) => {
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9) + 1e-12; k += 1) {
      found.push(Number((k * step).toPrecision(12)));
    }
    return found;
  };

  // Powers of ten; within two of them, also their double and their fivefold.
  const logTicks = (low, high) => {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const stride = Math.max(1, Math.ceil((last - first) / 6));
    const found = [];
    for (let power = first; power <= last; power += stride) {
      for (const factor of high / low > 100 ? [1] : [1, 2, 5]) found.push(Number(`${factor}e${power}`));
    }
    const inside = found.filter((tick) => tick >= low && tick <= high);
    return inside.length > 1 ? inside : linearTicks(low, high, 4);
  };

  // --- drawing -------------------------------------------------------------------------------------------------------

  const make = (svg, name, attributes, words) => {
    const node = document.createElementNS(svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (words !== undefined) node.textContent = words;
    svg.append(node);
    return node;
  };

  // Stretches of points that are known; a logarithmic scale knows no zero.
  const stretches = (xs, rows, log) => {
    const found = [];
    let open = null;
    xs.forEach((x, i) => {
      const values = rows.map((row) => row[i]);
      if (values.every((value) => value !== null && (!log || value > 0))) {
        if (!open) found.push((open = []));
        open.push([x, ...values]);
      } else {
        open = null;
      }
    });
    return found;
  };

  const extremes = (panel, shown, seeds) => {
    const values = panel.limits.slice();
    for (const line of panel.lines) {
      if (!shown(line.run)) continue;
      for (const row of [line.mean, line.low, line.high, ...(seeds ? line.seeds : [])]) {
        if (row) for (const value of row) if (value !== null && (!panel.log || value > 0)) values.push(value);
      }
    }
    return values.length ? [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))] : null;
  };

  const scales = (block, panel, width) => {
    const shown = (run) => !block.hidden.has(run);
    const range = extremes(panel, shown, block.seeds);
    const steps = block.data.runs.filter((_, i) => shown(i)).flatMap((run) => [run.x[0], run.x[run.x.length - 1]]);
    if (!range || !steps.length) return null;
    let [low, high] = range;
    if (panel.log) {
      [low, high] = low === high ? [low / 2, high * 2] : [low / 1.15, high * 1.15];
    } else {
      const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
      // What is never negative keeps its zero when it comes near to it.
      [low, high] = [low >= 0 && low - pad < 0.25 * high ? 0 : low - pad, high + pad];
    }
    let [first, last] = [Math.min(...steps), Math.max(...steps)];
    if (first < 0.25 * last || first === last) first = 0; // of a single row, all labels would read alike
    if (first === last) [first, last] = [first - 1, last + 1];
    const flat = panel.log ? Math.log : (value) => value;
    const place = (value) => (flat(value) - flat(low)) / (flat(high) - flat(low));
    return {
      low, high, first, last, width,
      x: (step) => LEFT + ((step - first) / (last - first)) * (width - LEFT - RIGHT),
      y: (value) => HEIGHT - BOTTOM - place(value) * (HEIGHT - TOP - BOTTOM),
    };
  };

  const points = (line, at) => line.map((p, i) => `${i ? "L" : "M"}${at.x(p[0]).toFixed(1)} ${at.y(p[1]).toFixed(1)}`);

  const drawLine = (svg, block, panel, line, at) => {
    const xs = block.data.runs[line.run].x, colour = `c${block.data.runs[line.run].mark % shapes.length}`;
    if (line.low && line.style === 0) {
      for (const part of stretches(xs, [line.low, line.high], panel.log)) {
        const back = part.slice().reverse().map((p) => `L${at.x(p[0]).toFixed(1)} ${at.y(p[2]).toFixed(1)}`);
        make(svg, "path", { d: points(part, at).join("") + back.join("") + "z", class: `band fill ${colour}` });
      }
    }
    if (block.seeds) {
      for (const seed of line.seeds) {
        for (const part of stretches(xs, [seed], panel.log)) {
          make(svg, "path", { d: points(part, at).join(""), class: `seed stroke ${colour}` });
        }
      }
    }
    for (const part of stretches(xs, [line.mean], panel.log)) {
      // Colours and shapes begin again: then at least the line looks different.
      const again = block.data.runs[line.run].mark >= shapes.length && line.style === 0;
      const dash = again ? "10 3" : DASHES[line.style];
      make(svg, "path", {
        d: points(part, at).join(""), class: `line stroke ${colour} style${line.style}`, "stroke-dasharray": dash,
      });
      const [x, y] = part[part.length - 1];
      if (line.style === 0) mark(svg, block, line, at.x(x), at.y(y));
    }
  };

  const mark = (svg, block, line, x, y) => {
    const kind = block.data.runs[line.run].mark % shapes.length;
    make(svg, "path", {
      d: shapes[kind], class: `mark fill c${kind}`, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
    });
  };

  const draw = (chart, width = Math.floor(chart.plot.clientWidth)) => {
    const { block, panel, svg } = chart;
    if (!width) return;
    chart.width = width;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const at = (chart.at = scales(block, panel, width));
    if (!at) {
      make(svg, "text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "nothing to show");
      return;
    }
    for (const tick of panel.log ? logTicks(at.low, at.high) : linearTicks(at.low, at.high, 5)) {
      const y = at.y(tick);
      make(svg, "line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, class: "grid" });
      make(svg, "text", { x: LEFT - 7, y: y + 4, "text-anchor": "end" }, short(tick));
    }
    for (const tick of linearTicks(at.first, at.last, width < 420 ? 4 : 6)) {
      make(svg, "text", { x: at.x(tick), y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, short(tick));
    }
    make(svg, "text", { x: width - RIGHT, y: HEIGHT - 3, "text-anchor": "end", class: "unit" }, "environment steps");
    for (const line of panel.lines) if (!block.hidden.has(line.run)) drawLine(svg, block, panel, line, at);
    for (const limit of panel.limits) {
      const y = at.y(limit);
      make(svg, "line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, class: "limit-line" });
      make(svg, "text", { x: LEFT + 4, y: y - 5, class: "limit-text" }, `limit ${number(limit)}${panel.per}`);
    }
    chart.cursor = make(svg, "g", { class: "cursor" });
    point(chart);
  };

  const redraw = (some) => some.forEach((chart) => draw(chart));

  // --- reading values ------------------------------------------------------------------------------------------------

  const nearest = (xs, step) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= step) low = middle; else high = middle;
    }
    return Math.abs(xs[low] - step) <= Math.abs(xs[high] - step) ? low : high;
  };

  // Every step that a shown run has logged, in order.
  const stepsOf = (block) => {
    const found = new Set();
    block.data.runs.forEach((run, i) => block.hidden.has(i) || run.x.forEach((x) => found.add(x)));
    return [...found].sort((a, b) => a - b);
  };

  const span = (name, ...parts) => {
    const node = document.createElement("span");
    node.className = name;
    node.append(...parts);
    return node;
  };

  // One line of a chart where the cursor is, or at its own end.
  const reading = (chart, line) => {
    const { block, panel, at, cursor } = chart, run = block.data.runs[line.run], step = block.step;
    const last = run.x.length - 1;
    if (step !== null && (step < run.x[0] || step > run.x[last])) return null;
    const i = step === null ? last : nearest(run.x, step), value = line.mean[i];
    if (value === null) return null;
    if (step !== null && (!panel.log || value > 0)) mark(cursor, block, line, at.x(run.x[i]), at.y(value));
    const name = [block.data.runs.length > 1 ? run.name : "", line.label].filter(Boolean).join(", ");
    const strong = document.createElement("b");
    strong.textContent = number(value);
    const swatch = block.swatches[line.run];
    return span("entry", ...(swatch ? [swatch.cloneNode(true)] : []), name ? `${name} ` : "", strong,
      line.low ? ` [${number(line.low[i])}, ${number(line.high[i])}]` : "");
  };

  // The cursor of a block in one of its charts, and what stands there in words.
  const point = (chart) => {
    const { block, panel, at, cursor, readout } = chart;
    if (!at || !cursor) return;
    cursor.replaceChildren();
    readout.replaceChildren(span("at", block.step === null ? "at the end" : `step ${whole(block.step)}`));
    if (block.step !== null) {
      const x = at.x(block.step);
      make(cursor, "line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM, class: "hair" });
    }
    const shown = panel.lines.filter((line) => !block.hidden.has(line.run));
    readout.append(...shown.map((line) => reading(chart, line)).filter(Boolean));
    // Room that was needed once stays: what is below does not jump.
    readout.style.minHeight = `${Math.max(parseFloat(readout.style.minHeight) || 0, readout.clientHeight)}px`;
  };

  const move = (block, step) => {
    block.step = step;
    for (const chart of block.charts) point(chart);
  };

  const onKey = (chart, event) => {
    const { block } = chart, steps = stepsOf(block);
    if (!steps.length) return;
    const here = block.step === null ? -1 : nearest(steps, block.step), last = steps.length - 1;
    const jump = Math.max(1, Math.round(steps.length / 10));
    const places = {
      ArrowRight: here + 1, ArrowLeft: here < 0 ? last : here - 1, PageUp: here + jump, PageDown: here - jump,
      Home: 0, End: last,
    };
    if (event.key === "Escape") {
      move(block, null);
    } else if (event.key in places) {
      move(block, steps[Math.min(Math.max(places[event.key], 0), last)]);
      event.preventDefault();
    }
  };

  const onPointer = (chart, event) => {
    const { block, plot, at } = chart;
    if (!at) return;
    const share = (event.clientX - plot.getBoundingClientRect().left - LEFT) / (at.width - LEFT - RIGHT);
    const steps = stepsOf(block);
    move(block, steps[nearest(steps, at.first + share * (at.last - at.first))]);
  };

  const setUp = (root) => {
    const own = blocks[Number(root.dataset.block)];
    const keys = [...root.querySelectorAll(".key")];
    const swatches = keys.map((key) => key.querySelector("svg"));
    const block = { data: own, hidden: new Set(), seeds: false, step: null, charts: [], swatches };
    for (const plot of root.querySelectorAll(".plot")) {
      const chart = {
        block, plot, panel: own.panels[Number(plot.dataset.panel)], svg: plot.querySelector("svg"),
        readout: plot.parentElement.querySelector(".readout"), at: null, cursor: null, width: 0,
      };
      block.charts.push(chart);
      charts.push(chart);
      plot.addEventListener("keydown", (event) => onKey(chart, event));
      plot.addEventListener("pointermove", (event) => onPointer(chart, event));
      plot.addEventListener("pointerdown", (event) => onPointer(chart, event));
      plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && move(block, null));
      // Only the chart in use speaks: the others move along in silence.
      plot.addEventListener("focus", () => chart.readout.setAttribute("aria-live", "polite"));
      plot.addEventListener("blur", () => chart.readout.setAttribute("aria-live", "off"));
      draw(chart);
      // In the next frame: drawing changes the height, which the observer must not see at once.
      new ResizeObserver(() => requestAnimationFrame(() => plot.clientWidth !== chart.width && draw(chart))).observe(plot);
    }
    for (const key of keys) {
      key.addEventListener("click", () => {
        const run = Number(key.dataset.run), hide = !block.hidden.has(run);
        if (hide) block.hidden.add(run); else block.hidden.delete(run);
        key.setAttribute("aria-pressed", String(!hide));
        redraw(block.charts);
      });
    }
    // In some browsers what is folded has no width, and cannot be drawn before it is opened.
    root.closest("details")?.addEventListener("toggle", () => redraw(block.charts));
    const box = root.querySelector(".show-seeds");
    if (box) {
      box.checked = false;
      box.addEventListener("change", () => {
        block.seeds = box.checked;
        redraw(block.charts);
      });
    }
  };

  // --- the rest of the page ------------------------------------------------------------------------------------------

  const sortable = (table) => {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    const value = (row, column) => row.cells[column].dataset.value;
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows];
        const missing = (row) => value(row, column) === "–";
        const numeric = rows.every((row) => missing(row) || !Number.isNaN(Number(value(row, column))));
        const order = (a, b) => {
          if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
          const [x, y] = [value(a, column), value(b, column)];
          const by = numeric ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true });
          return down ? -by : by;
        };
        body.append(...rows.sort(order));
      });
    });
  };

  document.querySelectorAll(".block").forEach(setUp);
  document.querySelectorAll("table.sortable").forEach(sortable);
  if (window.matchMedia("(prefers-reduced-motion: no-preference)").matches) {
    document.querySelectorAll("details.video").forEach((video) => (video.open = true));
  }
  let unfolded = [];
  window.addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open], .data)")];
    unfolded.forEach((details) => (details.open = true));
    charts.forEach((chart) => draw(chart, PRINTED));
  });
  window.addEventListener("afterprint", () => {
    unfolded.forEach((details) => (details.open = false));
    redraw(charts);
  });
})();
