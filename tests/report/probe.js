// Drives a report inside of a browser as a reader would, and says what it found.
(async () => {
  const found = { errors: window.probeErrors };
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const rest = () => new Promise((done) => setTimeout(done, 120));
  const press = (node, key) => node.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  try {
    for (let tries = 0; tries < 20 && !document.querySelector("path.line"); tries += 1) await rest();
    const block = document.querySelector(".block"), plots = all(".plot", block);
    const [plot] = plots, readout = plot.parentElement.querySelector(".readout");
    found.width = window.innerWidth;
    found.scrollWidth = document.documentElement.scrollWidth;
    found.wide = all("main *").filter((node) => node.getBoundingClientRect().right > innerWidth + 1 &&
      !node.closest(".scroll, svg, .unseen")).map((node) => `${node.tagName}.${node.className}`);
    found.columns = new Set(plots.map((one) => Math.round(one.getBoundingClientRect().left))).size;
    found.undrawn = plots.filter((one) => !one.querySelector("path.line")).length;
    const labels = (one) => all("text[text-anchor=middle]", one).map((node) => node.textContent);
    found.repeated = plots.map(labels).filter((words) => new Set(words).size < words.length);
    found.fetched = performance.getEntriesByType("resource").map((entry) => entry.name).filter((x) => !x.startsWith("data:"));
    found.background = getComputedStyle(document.body).backgroundColor;
    found.video = document.querySelector("details.video").open;
    found.unreachable = all("button, input, a, summary, .plot, .scroll").filter((node) => node.tabIndex < 0).length;

    plot.focus();
    found.focused = document.activeElement === plot;
    found.live = readout.getAttribute("aria-live");
    const read = {};
    for (const key of ["End", "ArrowLeft", "Home", "ArrowRight", "PageUp", "Escape"]) {
      press(plot, key);
      read[key] = readout.textContent;
    }
    found.read = read;
    press(plot, "End");
    found.linked = plots[1].parentElement.querySelector(".readout").textContent;
    plot.blur();
    found.silent = readout.getAttribute("aria-live");

    const box = plot.getBoundingClientRect();
    const at = { clientX: box.right - 20, clientY: box.top + 50, bubbles: true, pointerType: "touch" };
    press(plot, "Escape");
    plot.dispatchEvent(new PointerEvent("pointerdown", at));
    found.tapped = readout.textContent;

    const key = all(".key", block)[0], drawn = () => all("path.line.c0, path.band.c0", block).length;
    const scale = () => all("text", plot).map((node) => node.textContent).join(" ");
    found.before = [drawn(), scale()];
    key.click();
    found.hidden = [drawn(), scale(), key.getAttribute("aria-pressed"), readout.textContent];
    key.click();
    found.again = [drawn(), scale(), key.getAttribute("aria-pressed")];
    block.querySelector(".show-seeds").click();
    found.seeds = all("path.seed", plot).length;

    const table = document.querySelector("table.sortable"), buttons = all("thead button", table);
    const order = () => all("tbody tr", table).map((row) => row.cells[0].textContent.trim());
    const button = buttons.find((one) => one.textContent === "reward");
    found.heads = buttons.length === table.tHead.rows[0].cells.length;
    const sorted = [];
    for (let i = 0; i < 2; i += 1) {
      button.click();
      sorted.push([order(), button.parentElement.getAttribute("aria-sort")]);
    }
    found.sorted = sorted;

    const fold = all("details:not([open])").find((node) => node.querySelector(".block"));
    const lines = () => all("path.line", fold).length;
    fold.open = true;
    for (let tries = 0; tries < 20 && !lines(); tries += 1) await rest();
    found.folded = lines();

    const closed = () => all("details:not([open], .data)").length;
    found.closed = [closed()];
    window.dispatchEvent(new Event("beforeprint"));
    found.closed.push(closed());
    window.dispatchEvent(new Event("afterprint"));
    await rest();
    found.closed.push(closed());
  } catch (error) {
    found.errors.push(String(error.stack));
  }
  parent.postMessage(JSON.stringify(found), "*");
})();
