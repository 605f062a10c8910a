"use strict";
// A view of metrics: asks the server for the range that is seen, as finely as the screen shows, and draws it.
(() => {
  const order = [1, 5, 3, 4, 6, 7, 2, 8];
  const form = document.getElementById("view");
  const plots = [...document.querySelectorAll(".plot")];
  const { x: axis, title } = document.getElementById("plots").dataset;
  const field = (name) => form.elements.namedItem(name);
  const number = (name) => (field(name).value.trim() === "" ? null : Number(field(name).value));
  const short = (value) => (value === null || value === undefined ? "unknown" : value.toLocaleString("en", { maximumSignificantDigits: 5 }));
  const place = (value) => (axis === "wall" ? new Date(value * 1000).toISOString().replace("T", " ").slice(0, 19) : short(value));
  let [load, seen] = [0, null];

  const library = new Promise((done) => {
    const script = document.createElement("script");
    script.src = document.body.dataset.library;
    script.addEventListener("load", done);
    document.head.append(script);
  });

  function query(text) {
    const asked = new URLSearchParams(text);
    for (const name of ["from", "to", "smooth", "log"]) asked.delete(name);
    for (const name of ["from", "to"]) if (number(name) !== null) asked.set(name, number(name));
    return asked;
  }

  // The view's address, so that it can be sent to somebody, and the browser's way back leads to the one before.
  function tell(isNew) {
    const asked = query(new URLSearchParams(new FormData(form)));
    if (Number(field("smooth").value)) asked.set("smooth", field("smooth").value);
    if (field("log").checked) asked.set("log", "on");
    for (const name of ["group", "column", "baseline"]) if (!field(name).value.trim()) asked.delete(name);
    if (!asked.has("group")) asked.delete("band");
    history[isNew ? "pushState" : "replaceState"](null, "", `?${asked}`);
    for (const link of document.querySelectorAll("[data-form]")) link.href = `${link.dataset.form}?${asked}`;
  }

  function smoothed(values, neighbours) {
    if (!neighbours) return values;
    return values.map((value, at) => {
      const near = values.slice(Math.max(at - neighbours, 0), at + neighbours + 1).filter((one) => one !== null);
      return value === null || !near.length ? null : near.reduce((sum, one) => sum + one, 0) / near.length;
    });
  }

  function rows(lines) {
    const neighbours = Number(field("smooth").value);
    const known = (value) => (field("log").checked && !(value > 0) ? null : value);
    return lines.flatMap(({ run, points }) => {
      const means = smoothed(points.map(([, mean]) => mean), neighbours);
      return points.map(([x, , low, high], at) => ({ run, x: axis === "wall" ? x * 1000 : x, mean: known(means[at]), low: known(low), high: known(high) }));
    });
  }

  function spec(plot, lines) {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const [soft, edge] = [color("--soft"), color("--edge")];
    const runs = lines.map((line) => line.run);
    const limits = [number("from"), number("to")].map((value, at) => value ?? plot.span[at]).map((value) => (axis === "wall" ? value * 1000 : value));
    const scale = { zero: false, nice: false, domain: limits, ...(axis === "wall" ? { type: "utc" } : {}) };
    const x = { field: "x", type: axis === "wall" ? "temporal" : "quantitative", title, scale, axis: { labelOverlap: true, tickCount: { expr: "max(2, floor(width / 110))" } } };
    const y = { type: "quantitative", title: null, scale: field("log").checked ? { type: "log", nice: false } : { zero: false }, axis: { format: plot.greatest >= 1e4 ? ",.3~s" : ",.4~g" } };
    return {
      width: "container", height: 220, data: { values: rows(lines) },
      encoding: { x, color: { field: "run", type: "nominal", sort: runs, title: null, legend: runs.length > 1 ? { orient: "top", columns: 2, labelLimit: 160 } : null,
        scale: { domain: runs, range: runs.map((_, at) => color(`--part-${order[at % order.length]}`)) } } },
      layer: [
        { mark: { type: "area", opacity: 0.25, clip: true }, encoding: { y: { ...y, field: "low" }, y2: { field: "high" } } },
        { mark: { type: "line", strokeWidth: 1.5, clip: true, point: plot.count < 40 }, encoding: { y: { ...y, field: "mean" } } },
      ],
      config: { background: "transparent", font: getComputedStyle(document.body).fontFamily, view: { stroke: edge },
        axis: { labelColor: soft, titleColor: soft, gridColor: edge, domainColor: edge, tickColor: edge, titleFontWeight: "normal" },
        legend: { labelColor: soft } },
    };
  }

  async function draw(plot) {
    const lines = plot.lines.filter((line) => line.points.length);
    const told = plot.nextElementSibling;
    const reasons = plot.lines.map((line) => line.reason).filter(Boolean);
    if (!lines.length) { plot.view?.finalize(); plot.view = null; plot.firstElementChild.replaceChildren(); told.textContent = reasons[0] || "No values in this range."; plot.dataset.drawn = "yes"; return; }
    await library;
    // The interpreter evaluates expressions without making functions of text, which the page's policy forbids.
    const made = await window.vegaEmbed(plot.firstElementChild, spec(plot, lines), { actions: false, ast: true, renderer: "canvas", defaultStyle: false, tooltip: false, mode: "vega-lite" });
    plot.view?.finalize();
    plot.view = made.view;
    const canvas = plot.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${plot.dataset.label} of ${lines.map((line) => line.run).join(", ")}`);
    const isGrouped = Boolean(field("group").value.trim());
    told.textContent = isGrouped ? `Mean over the runs of each group; the band is ${field("band").selectedOptions[0].textContent}.` : plot.lines.every((line) => line.whole) ? "Every value, as it was recorded." : "Mean, least and greatest value of each part; look closer for every value.";
    plot.dataset.drawn = "yes";
  }

  async function fetchAll() {
    const mine = ++load;
    for (const plot of plots) plot.dataset.drawn = "";
    for (const plot of plots) {
      const asked = query(plot.dataset.query);
      asked.set("parts", Math.min(Math.max(plot.clientWidth, 200), 2000));
      try {
        const answer = await fetch(`points.json?${asked}`);
        if (mine !== load) return;
        if (!answer.ok) throw new Error(answer.status === 503 ? "The lake cannot be read now." : "The server refused it.");
        plot.lines = (await answer.json()).lines;
      } catch (error) {
        if (mine !== load) return;
        plot.nextElementSibling.textContent = error.message;
        continue;
      }
      const values = plot.lines.flatMap((line) => line.points.map(([x]) => x));
      plot.count = values.length;
      plot.greatest = plot.lines.flatMap((line) => line.points).reduce((most, [, mean]) => Math.max(most, Math.abs(mean ?? 0)), 0);
      plot.span = values.length ? [values.reduce((one, other) => Math.min(one, other)), values.reduce((one, other) => Math.max(one, other))] : [0, 1];
      await draw(plot);
      if (mine !== load) return;
    }
  }

  function zoom(begin, end) {
    const digits = begin === null ? 0 : Math.max(0, 3 - Math.floor(Math.log10(end - begin))); // a thousandth of what is seen
    const rounded = (value) => (value === null ? "" : Number(value.toFixed(Math.min(digits, 12))));
    [field("from").value, field("to").value] = [rounded(begin), rounded(end)];
    tell(true);
    fetchAll();
  }

  function range() {
    const spans = plots.filter((plot) => plot.count).map((plot) => plot.span);
    const first = Math.min(...spans.map(([begin]) => begin)), last = Math.max(...spans.map(([, end]) => end));
    return [number("from") ?? first, number("to") ?? last];
  }

  function resize(share) {
    const [begin, end] = range();
    const [middle, half] = [(begin + end) / 2, (share * (end - begin)) / 2];
    if (Number.isFinite(half)) zoom(middle - half, middle + half);
  }

  // Where a pointer is on the axis; null beside the plot.
  function at(plot, event) {
    if (!plot.view) return null;
    const left = event.clientX - plot.querySelector("canvas").getBoundingClientRect().left - plot.view.origin()[0];
    if (left < 0 || left > plot.view.width()) return null;
    return Number(plot.view.scale("x").invert(left)) / (axis === "wall" ? 1000 : 1);
  }

  function left(plot, x) {
    const canvas = plot.querySelector("canvas").getBoundingClientRect();
    return canvas.left - plot.getBoundingClientRect().left + plot.view.origin()[0] + plot.view.scale("x")(axis === "wall" ? x * 1000 : x);
  }

  function nearest(points, x) {
    let [low, high] = [0, points.length - 1];
    while (high - low > 1) { const middle = (low + high) >> 1; if (points[middle][0] > x) high = middle; else low = middle; }
    return points.length && Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
  }

  // One cursor over all charts: what each run had there.
  function point(x) {
    for (const plot of plots) {
      const cursor = plot.querySelector(".cursor");
      if (x === null || !plot.view) { cursor.hidden = true; continue; }
      cursor.hidden = false;
      cursor.style.left = `${left(plot, x)}px`;
      plot.nextElementSibling.textContent = `${place(x)}: ${plot.lines.filter((line) => line.points.length).map((line) => {
        const [, mean, low, high, runs] = nearest(line.points, x);
        return `${line.run} ${short(mean)}${low !== high ? ` (${short(low)} to ${short(high)})` : ""}${runs === undefined ? "" : `, ${runs} there`}`;
      }).join(", ")}`;
    }
  }

  function dragging(plot) {
    const box = plot.querySelector(".dragged");
    let begun = null;
    plot.addEventListener("pointermove", (event) => {
      const x = at(plot, event);
      if (x === null) return;
      if (seen === null) requestAnimationFrame(() => { point(seen); seen = null; });
      seen = x;
      if (begun === null) return;
      const [one, other] = [left(plot, begun), left(plot, x)].sort((a, b) => a - b);
      box.hidden = false;
      box.style.left = `${one}px`;
      box.style.width = `${other - one}px`;
    });
    plot.addEventListener("pointerdown", (event) => { if (event.button === 0) begun = at(plot, event); });
    plot.addEventListener("pointerleave", () => point(null));
    addEventListener("pointerup", (event) => {
      if (begun === null) return;
      const box_ = plot.querySelector("canvas").getBoundingClientRect();
      const limited = { clientX: Math.min(Math.max(event.clientX, box_.left + plot.view.origin()[0]), box_.left + plot.view.origin()[0] + plot.view.width()) };
      const [begin, end] = [begun, at(plot, limited)].sort((a, b) => a - b);
      begun = null;
      box.hidden = true;
      if (Math.abs(left(plot, end) - left(plot, begin)) > 4) zoom(begin, end);
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    if (!plots.length) return;
    plots.forEach(dragging);
    for (const name of ["smooth", "log"]) field(name).addEventListener("change", () => { tell(false); plots.filter((plot) => plot.lines).forEach(draw); });
    document.getElementById("closer").addEventListener("click", () => resize(0.5));
    document.getElementById("wider").addEventListener("click", () => resize(2));
    document.getElementById("whole").addEventListener("click", () => zoom(null, null));
    document.getElementById("theme").addEventListener("click", () => plots.filter((plot) => plot.lines).forEach(draw));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.filter((plot) => plot.lines).forEach(draw));
    addEventListener("popstate", () => location.reload());
    fetchAll();
  });
})();
