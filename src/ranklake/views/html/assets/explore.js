"use strict";
// A view of metrics: asks the server for the range that is seen, as finely as the screen shows, and draws it.
(() => {
  const COLOURS = [1, 5, 3, 4, 6, 7, 2, 8];
  const HEIGHT = 240;
  const SETTLED_MS = 150; // without another zoom, until the server is asked for what is seen
  const form = document.getElementById("view");
  const plots = [...document.querySelectorAll(".plot")];
  const { x: axis, title } = document.getElementById("plots").dataset;
  const isWall = axis === "wall";
  const isTime = isWall || axis === "relative"; // then all charts have one range; steps of some metrics are counts of their own
  const field = (name) => form.elements.namedItem(name);
  const isLogX = () => Boolean(field("logx")?.checked); // places across, of which none is 0 or less
  const [forth, back] = [(x) => (isLogX() ? Math.log(x) : x), (at) => (isLogX() ? Math.exp(at) : at)];
  const number = (name) => (field(name).value.trim() === "" ? null : Number(field(name).value));
  const short = (value) => (value === null || value === undefined ? "unknown" : value.toLocaleString("en", { maximumSignificantDigits: 5 }));
  const tick = (value) => (value === null ? "" : value.toLocaleString("en", Math.abs(value) >= 1e5 ? { notation: "compact", maximumSignificantDigits: 4 } : { maximumSignificantDigits: 4 }));
  const place = (value) => (isWall ? new Date(value * 1000).toISOString().replace("T", " ").slice(0, 19) : short(value));
  const hidden = new Set(); // labels of lines that nobody wants to see
  let [load, palette, settling, cursor] = [0, null, 0, null];

  function readPalette() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    palette = { soft: colour("--soft"), edge: colour("--edge"), lines: COLOURS.map((part) => colour(`--part-${part}`)), font: `12px ${getComputedStyle(document.body).fontFamily}` };
  }

  const colourOf = (at) => palette.lines[at % palette.lines.length];

  function query(text) {
    const asked = new URLSearchParams(text);
    for (const name of ["from", "to", "smooth", "log", "logx", "clip"]) asked.delete(name);
    if (isLogX()) asked.set("logx", "on");
    for (const name of ["from", "to"]) if (number(name) !== null) asked.set(name, number(name));
    return asked;
  }

  // The view's address, so that it can be sent to somebody, and the browser's way back leads to the one before.
  function tell(isNew) {
    const asked = query(new URLSearchParams(new FormData(form)));
    if (!asked.has("run")) for (const run of new URLSearchParams(plots[0].dataset.query).getAll("run")) asked.append("run", run);
    if (Number(field("smooth").value)) asked.set("smooth", field("smooth").value);
    for (const name of ["log", "clip"]) if (field(name).checked) asked.set(name, "on");
    for (const name of ["group", "column", "baseline"]) if (!field(name).value.trim()) asked.delete(name);
    if (!asked.has("group")) asked.delete("band");
    history[isNew ? "pushState" : "replaceState"](null, "", `?${asked}`);
    for (const link of document.querySelectorAll("[data-form]")) link.href = `${link.dataset.form}?${asked}`;
  }

  function smoothed(values, neighbours) {
    if (!neighbours) return values;
    return values.map((value, at) => {
      const near = values.slice(Math.max(at - neighbours, 0), at + neighbours + 1).filter((other) => other !== null);
      return value === null || !near.length ? null : near.reduce((sum, other) => sum + other, 0) / near.length;
    });
  }

  // Columns of all lines over the places that any of them has: of each its mean, least and greatest values.
  function columns(lines) {
    const neighbours = Number(field("smooth").value);
    const known = (value) => (field("log").checked && !(value > 0) ? null : value);
    return uPlot.join(lines.map(({ points }) => [
      points.map(([x]) => x), smoothed(points.map(([, mean]) => mean), neighbours).map(known),
      points.map(([, , low]) => known(low)), points.map(([, , , high]) => known(high)),
    ]));
  }

  // What the y axis shows: all values in sight, or all but the outermost hundredth on either side.
  function heights(chart, least, greatest) {
    if (field("clip").checked) {
      const [from, to] = chart.series[0].idxs;
      const means = chart.series.flatMap((series, at) => (at % 3 === 1 && series.show ? chart.data[at].slice(from, to + 1) : [])).filter((value) => typeof value === "number").sort((a, b) => a - b);
      if (means.length) [least, greatest] = [means[Math.floor(means.length * 0.01)], means[Math.ceil(means.length * 0.99) - 1]];
    }
    if (least === null || greatest === null) return [1, 10];
    return field("log").checked ? uPlot.rangeLog(least, greatest, 10, false) : uPlot.rangeNum(least, greatest, 0.05, false);
  }

  function options(plot, lines) {
    const grid = { stroke: () => palette.edge, width: 1 };
    const axes = { stroke: () => palette.soft, grid, ticks: { ...grid, size: 4 }, font: palette.font, labelFont: palette.font };
    const values = (_, all) => all.map(tick);
    const share = { width: 0, stroke: "transparent", points: { show: false } };
    return {
      width: plot.clientWidth, height: HEIGHT, legend: { show: false },
      cursor: { drag: { x: true, y: false, setScale: false, dist: 5 }, points: { size: 7 },
        sync: { key: "view", filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } } },
      scales: { x: { time: isWall, ...(isLogX() ? { distr: 3, range: (_, min, max) => [min, max] } : {}) }, y: { distr: field("log").checked ? 3 : 1, range: heights } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      axes: [{ ...axes, label: title, size: 28, labelSize: 20, labelGap: 2, ...(isWall ? {} : { values }) }, { ...axes, values, size: 58 }],
      series: [{}, ...lines.flatMap((line, at) => [{ label: line.run, width: 1.5, stroke: () => colourOf(at), show: !hidden.has(line.run) }, ...[share, share].map((each) => ({ ...each, show: !hidden.has(line.run) }))])],
      bands: lines.map((_, at) => ({ series: [3 * at + 3, 3 * at + 2], fill: () => `${colourOf(at)}40` })),
      hooks: {
        setCursor: [(chart) => point(plot, chart.cursor.left < 0 ? null : chart.posToVal(chart.cursor.left, "x"))],
        setSelect: [({ select, posToVal }) => { if (select.width > 0) { zoom(posToVal(select.left, "x"), posToVal(select.left + select.width, "x")); plot.chart.setSelect({ width: 0, height: 0 }, false); } }],
      },
    };
  }

  function legend(plot, lines) {
    const items = lines.length < 2 ? [] : lines.map(({ run }, at) => {
      const [item, button, swatch] = ["li", "button", "i"].map((tag) => document.createElement(tag));
      button.type = "button";
      button.setAttribute("aria-pressed", String(!hidden.has(run)));
      swatch.style.background = colourOf(at);
      button.append(swatch, run);
      button.addEventListener("click", () => { if (!hidden.delete(run)) hidden.add(run); for (const other of plots) if (other.chart) show(other); });
      item.append(button);
      return item;
    });
    plot.parentElement.querySelector(".legend").replaceChildren(...items);
  }

  // Whoever hides a line hides it in all charts.
  function show(plot) {
    const buttons = plot.parentElement.querySelectorAll(".legend button");
    drawable(plot).forEach(({ run }, at) => {
      buttons[at]?.setAttribute("aria-pressed", String(!hidden.has(run)));
      for (const series of [1, 2, 3]) plot.chart.setSeries(3 * at + series, { show: !hidden.has(run) });
    });
  }

  const drawable = (plot) => plot.lines.filter((line) => line.points.length);

  function note(plot) {
    const lines = drawable(plot);
    if (!lines.length) return plot.lines.map((line) => line.reason).filter(Boolean)[0] || "No values in this range.";
    if (field("group").value.trim()) return `Mean over the runs of each group; the band is ${field("band").selectedOptions[0].textContent}.`;
    return lines.every((line) => line.whole) ? "Every value, as it was recorded." : "Mean, least and greatest value of each part; look closer for every value.";
  }

  function draw(plot) {
    const lines = drawable(plot);
    const kind = JSON.stringify([field("log").checked, isLogX(), lines.map((line) => line.run)]);
    if (plot.chart && plot.kind !== kind) { plot.chart.destroy(); plot.chart = null; }
    plot.kind = kind;
    if (lines.length) {
      const data = columns(lines);
      if (plot.chart) plot.chart.setData(data, false);
      else plot.chart = new uPlot(options(plot, lines), data, plot.querySelector(".canvas"));
      scale(plot);
    }
    legend(plot, lines);
    plot.setAttribute("aria-label", `${plot.dataset.label} of ${lines.map((line) => line.run).join(", ") || "no run"}`);
    plot.nextElementSibling.textContent = note(plot);
    plot.dataset.drawn = "yes";
  }

  function scale(plot) {
    const [min, max] = isTime ? range() : range([plot]);
    plot.chart.setScale("x", min < max ? { min, max } : isLogX() ? { min: min / 2, max: min * 2 } : { min: min - 1, max: min + 1 });
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
        if (!answer.ok) throw new Error(answer.status === 503 ? "The lake cannot be read now." : answer.status === 429 ? "Too many requests: wait a moment." : "The server refused it.");
        plot.lines = (await answer.json()).lines;
      } catch (error) {
        if (mine !== load) return;
        plot.nextElementSibling.textContent = error.message;
        continue;
      }
      if (mine !== load) return;
      const places = plot.lines.flatMap((line) => (line.points.length ? [line.points[0][0], line.points.at(-1)[0]] : []));
      plot.span = places.length ? [Math.min(...places), Math.max(...places)] : [0, 1];
      draw(plot);
    }
    if (isTime) for (const plot of plots) if (plot.chart) scale(plot);
    hideEmpty();
  }

  // A pattern names what a run has not: those have a line together, and no chart each.
  function hideEmpty() {
    const isWhole = number("from") === null && number("to") === null;
    const empty = plots.filter((plot) => isWhole && plot.lines && !drawable(plot).length && !plot.lines.some((line) => line.reason));
    for (const plot of plots) plot.parentElement.hidden = empty.includes(plot);
    document.getElementById("nothing").textContent = empty.length ? `No values of ${empty.map((plot) => plot.dataset.label).join(", ")}.` : "";
  }

  // What is held is stretched at once; the server is asked for the range once it stays.
  function zoom(begin, end) {
    const digits = begin === null ? 0 : Math.max(0, 3 - Math.floor(Math.log10(end - begin))); // a thousandth of what is seen
    const rounded = (value) => (value === null ? "" : Number(isLogX() ? value.toPrecision(6) : value.toFixed(Math.min(digits, 12))));
    [field("from").value, field("to").value] = [rounded(begin), rounded(end)];
    for (const plot of plots) if (plot.chart) scale(plot);
    clearTimeout(settling);
    settling = setTimeout(() => { tell(true); fetchAll(); }, SETTLED_MS);
  }

  function range(of = plots) {
    const spans = of.filter((plot) => plot.lines && drawable(plot).length).map((plot) => plot.span);
    const from = number("from");
    return [from === null || (isLogX() && from <= 0) ? Math.min(...spans.map(([begin]) => begin)) : from, number("to") ?? Math.max(...spans.map(([, end]) => end))];
  }

  // A range so many times as wide about a place, moved by a share of it.
  function resize(share, about = 0.5, move = 0) {
    const [begin, end] = range().map(forth);
    const [wide, at] = [end - begin, begin + about * (end - begin)];
    const from = at - share * about * wide + move * wide;
    if (wide > 0 && Number.isFinite(from)) zoom(back(from), back(from + share * wide));
  }

  function nearest(points, x) {
    let [low, high] = [0, points.length - 1];
    while (high - low > 1) { const middle = (low + high) >> 1; if (points[middle][0] > x) high = middle; else low = middle; }
    return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
  }

  // What each run had where the cursor is, which is in all charts at once.
  function point(plot, x) {
    cursor = x;
    if (!plot.lines || x === null) { if (plot.lines) plot.nextElementSibling.textContent = note(plot); return; }
    plot.nextElementSibling.textContent = `${place(x)}: ${drawable(plot).filter((line) => !hidden.has(line.run)).map((line) => {
      const [, mean, low, high, runs] = nearest(line.points, x);
      return `${line.run} ${short(mean)}${low !== high ? ` (${short(low)} to ${short(high)})` : ""}${runs === undefined ? "" : `, ${runs} there`}`;
    }).join(", ")}`;
  }

  function move(share) {
    const [begin, end] = range().map(forth);
    const x = back(Math.min(Math.max((cursor === null ? (begin + end) / 2 : forth(cursor)) + share * (end - begin), begin), end));
    for (const plot of plots) if (plot.chart) plot.chart.setCursor({ left: plot.chart.valToPos(x, "x"), top: 9 }, true, false);
  }

  const KEYS = {
    "+": () => resize(0.8), "=": () => resize(0.8), "-": () => resize(1.25), Home: () => zoom(null, null), 0: () => zoom(null, null),
    ArrowLeft: (isFar) => (isFar ? resize(1, 0.5, -0.25) : move(-0.01)), ArrowRight: (isFar) => (isFar ? resize(1, 0.5, 0.25) : move(0.01)),
  };

  function listen(plot) {
    plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
      event.preventDefault();
      KEYS[event.key](event.shiftKey);
    });
    plot.addEventListener("wheel", (event) => { // with Ctrl, and as a touchpad's pinch comes; a wheel alone scrolls the page
      if (!event.ctrlKey || !plot.chart) return;
      event.preventDefault();
      const box = plot.chart.over.getBoundingClientRect();
      resize(event.deltaY > 0 ? 1.25 : 0.8, Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1));
    }, { passive: false });
    plot.addEventListener("dblclick", () => zoom(null, null));
    new ResizeObserver(() => plot.chart?.setSize({ width: plot.clientWidth, height: HEIGHT })).observe(plot);
  }

  function recolour() {
    readPalette();
    for (const plot of plots) if (plot.chart) { plot.chart.redraw(false); legend(plot, drawable(plot)); }
  }

  document.addEventListener("DOMContentLoaded", () => {
    if (!plots.length) return;
    readPalette();
    plots.forEach(listen);
    for (const name of ["smooth", "log", "clip"]) field(name).addEventListener("change", () => { tell(false); plots.filter((plot) => plot.lines).forEach(draw); });
    field("logx")?.addEventListener("change", () => { tell(false); fetchAll(); });
    document.getElementById("closer").addEventListener("click", () => resize(0.5));
    document.getElementById("wider").addEventListener("click", () => resize(2));
    document.getElementById("whole").addEventListener("click", () => zoom(null, null));
    document.getElementById("theme").addEventListener("click", () => requestAnimationFrame(recolour));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
    addEventListener("popstate", () => location.reload());
    fetchAll();
  });
})();
