"use strict";
// Theme, navigation, search, sorting, filters and charts. Everything else of a page works without it.
(() => {
  const stored = { // a browser may keep nothing for pages on a disk
    get: () => { try { return localStorage.getItem("ranklake-theme"); } catch { return null; } },
    set: (value) => { try { localStorage.setItem("ranklake-theme", value); } catch { /* lost with the page */ } },
  };
  const html = document.documentElement;
  const darkSystem = matchMedia("(prefers-color-scheme: dark)");
  if (stored.get()) html.dataset.theme = stored.get();
  const isDark = () => (html.dataset.theme ? html.dataset.theme === "dark" : darkSystem.matches);

  function text(tag, value, attributes = {}) {
    const made = document.createElement(tag);
    made.textContent = value;
    for (const [name, given] of Object.entries(attributes)) made.setAttribute(name, given);
    return made;
  }

  function navigation(root, site) {
    const here = location.pathname;
    if (document.getElementById("sections").childElementCount) return; // a server knew them
    for (const section of site) {
      const link = text("a", section.title, { href: root + section.href });
      if (here.includes(`/${section.name}/`)) link.setAttribute("aria-current", "true");
      const item = document.createElement("li");
      item.append(link);
      document.getElementById("sections").append(item);
    }
  }

  function search(root, site) {
    const input = document.getElementById("search");
    const list = document.getElementById("found");
    const entries = site.flatMap((section) => section.entries);
    const states = { failing: 0, errored: 1, warning: 2 };
    let at = -1;
    const close = () => { list.hidden = true; at = -1; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); };
    const go = (entry) => { location.href = root + entry.href; close(); };
    const select = (next) => {
      const items = [...list.children].filter((one) => one.id);
      if (!items.length) return;
      at = (next + items.length) % items.length;
      items.forEach((one, place) => one.setAttribute("aria-selected", String(place === at)));
      items[at].scrollIntoView({ block: "nearest" });
      input.setAttribute("aria-activedescendant", items[at].id);
    };
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      list.replaceChildren();
      close();
      if (!words.length) return;
      const found = entries.filter((one) => words.every((word) => `${one.name} ${one.state}`.toLowerCase().includes(word)));
      found.sort((one, other) => (one.kind === "check") - (other.kind === "check") || (states[one.state] ?? 9) - (states[other.state] ?? 9));
      found.slice(0, 30).forEach((entry, place) => {
        const item = text("li", entry.name, { role: "option", id: `found-${place}`, "aria-selected": "false" });
        item.append(text("small", `${entry.kind}, ${entry.state}`));
        item.addEventListener("mousedown", (event) => { event.preventDefault(); go(entry); });
        item.entry = entry;
        list.append(item);
      });
      if (!found.length) list.append(text("li", "Nothing found", { role: "option", "aria-disabled": "true", "aria-selected": "false" }));
      list.hidden = false;
      input.setAttribute("aria-expanded", "true");
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") select(at + 1);
      else if (event.key === "ArrowUp") select(at - 1);
      else if (event.key === "Enter") { const item = list.children[Math.max(at, 0)]; if (item && item.entry) go(item.entry); return; }
      else if (event.key === "Escape") close();
      else return;
      event.preventDefault();
    });
    input.addEventListener("blur", close);
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) { event.preventDefault(); input.focus(); }
    });
  }

  function key(cell) {
    if (cell.dataset.sort !== undefined) return cell.dataset.sort;
    const data = cell.querySelector("data");
    return data ? data.value : cell.textContent.trim();
  }

  function sorting(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = head.querySelector(".sort");
      if (!button) return;
      button.addEventListener("click", () => {
        const way = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
        heads.forEach((one) => one.hasAttribute("aria-sort") && one.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", way === 1 ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows].map((row) => [key(row.cells[place]), row]);
        rows.sort(([one], [other]) => {
          if (one === "" || other === "") return (one === "") - (other === "");
          const order = isNaN(one) || isNaN(other) ? one.localeCompare(other) : one - other;
          return way * order;
        });
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  }

  function filtering(input) {
    const rows = document.getElementById(input.dataset.filters).tBodies[0].rows;
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
  }

  function coloured(value, style) {
    if (typeof value === "string") return value.replace(/^var\((--[\w-]+)\)$/, (_, name) => style.getPropertyValue(name).trim());
    if (Array.isArray(value)) return value.map((one) => coloured(one, style));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, coloured(one, style)]));
    return value;
  }

  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

  // A curve over another axis, as the mean of neighbours, or on a logarithmic scale; its numbers stay as they are.
  function over(spec, chosen) {
    const { measure, bands = [], by = [] } = spec.usermeta || {};
    if (!measure || !chosen) return spec;
    const values = spec.data.values;
    const transform = [];
    if (chosen.axis !== "step" && values.some((one) => one[chosen.axis] != null)) {
      const x = { ...spec.encoding.x, field: chosen.axis, title: "tokens", axis: { format: "~s" } };
      if (chosen.axis === "elapsed_s") {
        const [unit, size] = units.find(([, one]) => Math.max(...values.map((row) => row.elapsed_s ?? 0)) >= 2 * one) || units[3];
        transform.push({ calculate: `datum.elapsed_s / ${size}`, as: "elapsed" });
        Object.assign(x, { field: "elapsed", title: `time since the first step (${unit})`, axis: { format: ",.4~g" } });
      }
      spec.encoding.x = x;
    }
    if (chosen.smooth) {
      transform.push({ window: [{ op: "mean", field: measure, as: "smooth" }], frame: [-chosen.smooth, chosen.smooth], sort: [{ field: "step" }], groupby: by });
      transform.push({ calculate: `isValid(datum['${measure}']) ? datum.smooth : null`, as: measure });
    }
    if (chosen.log) {
      for (const field of [measure, ...bands]) transform.push({ calculate: `datum['${field}'] > 0 ? datum['${field}'] : null`, as: field });
      for (const encoding of [spec.encoding, ...(spec.layer || []).map((one) => one.encoding || {})]) {
        if (encoding.y) encoding.y.scale = { type: "log", nice: false };
      }
    }
    if (transform.length) spec.transform = transform;
    return spec;
  }

  const chosen = () => {
    const tools = document.querySelector(".axes:has([data-axis])"); // those of Explore and of a sweep ask the server
    return tools && { axis: tools.querySelector("[data-axis]").value, smooth: Number(tools.querySelector("[data-smooth]").value), log: tools.querySelector("[data-log]").checked };
  };

  async function draw(place) {
    const style = getComputedStyle(html);
    const soft = style.getPropertyValue("--soft").trim();
    const edge = style.getPropertyValue("--edge").trim();
    const { data, ...told } = JSON.parse(document.getElementById(place.dataset.chart).textContent);
    const spec = over({ ...coloured(told, style), data }, chosen());
    const font = getComputedStyle(document.body).fontFamily;
    spec.config = {
      background: "transparent", font, view: { stroke: edge },
      axis: { labelColor: soft, titleColor: soft, gridColor: edge, domainColor: edge, tickColor: edge, titleFontWeight: "normal" },
      legend: { labelColor: soft, titleColor: soft },
    };
    // The interpreter evaluates expressions without making functions of text, which the page's policy forbids.
    await window.vegaEmbed(place, spec, { actions: false, ast: true, renderer: "svg", defaultStyle: false, tooltip: { disableDefaultStyle: true }, mode: "vega-lite" });
    const drawn = place.querySelector("svg");
    if (drawn) { drawn.setAttribute("role", "img"); drawn.setAttribute("aria-label", place.dataset.label); }
    place.dataset.drawn = "yes";
  }

  const pause = (isUrgent) => new Promise((go) => (isUrgent || !window.requestIdleCallback ? setTimeout(go) : requestIdleCallback(go, { timeout: 500 })));

  // What is on the screen is drawn first, the rest whenever there is nothing else to do, and always one at a time.
  function charts() {
    const places = [...document.querySelectorAll("[data-chart]")];
    if (!places.length) return;
    const due = new Set(places), seen = new Set();
    let isDrawing = false;
    async function drawDue() {
      if (isDrawing || !window.vegaEmbed) return;
      isDrawing = true;
      const isNext = (place) => due.has(place) && place.clientWidth; // without a width it is folded away: drawn once it is seen
      for (let one; (one = places.find((place) => isNext(place) && seen.has(place)) || places.find(isNext));) {
        due.delete(one);
        try { await draw(one); } catch (error) { console.error(error); }
        await pause(places.some((place) => due.has(place) && seen.has(place)));
      }
      isDrawing = false;
    }
    const drawAll = () => { places.forEach((place) => due.add(place)); drawDue(); };
    const observer = new IntersectionObserver((found) => {
      for (const one of found) seen[one.isIntersecting ? "add" : "delete"](one.target);
      if (seen.size) drawDue();
    });
    places.forEach((place) => observer.observe(place));
    const script = document.createElement("script");
    script.src = document.body.dataset.library;
    script.addEventListener("load", () => {
      requestAnimationFrame(() => setTimeout(drawDue)); // by then the observer has told what is on the screen
      darkSystem.addEventListener("change", drawAll);
      document.getElementById("theme").addEventListener("click", drawAll);
      document.querySelector(".axes")?.addEventListener("change", drawAll);
    });
    document.head.append(script);
  }

  // What comes later on a page is folded on a narrow screen, but for what the address names; print has all of it.
  function folding() {
    const folds = [...document.querySelectorAll("details.fold")];
    const narrow = matchMedia("(max-width: 40rem)");
    const openAll = (some) => some.forEach((one) => { one.open = true; });
    const close = (some) => some.forEach((one) => { one.open = false; });
    const reveal = () => {
      const named = document.getElementById(location.hash.slice(1));
      const fold = named?.closest("details.fold:not([open])");
      if (fold) { fold.open = true; named.scrollIntoView(); }
    };
    let folded = [];
    if (narrow.matches) close(folds);
    reveal();
    narrow.addEventListener("change", () => { if (!narrow.matches && !matchMedia("print").matches) openAll(folds); });
    addEventListener("hashchange", reveal);
    addEventListener("beforeprint", () => { folded = folds.filter((one) => !one.open); openAll(folded); });
    addEventListener("afterprint", () => close(folded));
  }

  document.addEventListener("DOMContentLoaded", () => {
    const site = window.ranklakeSite || [];
    const root = document.body.dataset.root;
    document.getElementById("theme").addEventListener("click", () => {
      html.dataset.theme = isDark() ? "light" : "dark";
      stored.set(html.dataset.theme);
    });
    if (document.getElementById("search")) {
      navigation(root, site);
      search(root, site);
    }
    document.querySelectorAll("main table").forEach(sorting);
    document.querySelectorAll("[data-filters]").forEach(filtering);
    folding();
    charts();
  });
})();
