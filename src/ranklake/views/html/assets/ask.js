"use strict";
// Asks in SQL: sends the statement, shows the answer as a table and a plot, completes names, keeps what was asked before.
(() => {
  const PAGE_ROWS = 100, MOST_KEPT = 50, MOST_ADDRESS = 6000, SETTLED_MS = 150, MOST_BARS = 60;
  const find = (id) => document.getElementById(id);
  const field = (name) => document.querySelector(`.axes [name="${name}"]`);
  let [answer, page, running, looking, settling] = [null, 0, null, 0, 0];

  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function fail(message) {
    find("fault").textContent = message;
    find("fault").hidden = !message;
  }

  // Asks the server; a refusal comes as an error whose message is for people.
  async function ask(form, signal) {
    const body = new URLSearchParams({ sql: find("sql").value, form, token: find("ask").dataset.token });
    const reply = await fetch("rows", { method: "POST", body, signal });
    if (reply.ok) return reply;
    const text = await reply.text();
    throw new Error(reply.headers.get("Content-Type").startsWith("text/plain") ? text.trim() : "The server cannot answer now: load the page again.");
  }

  async function during(form, use) {
    running?.abort();
    const mine = running = new AbortController();
    const begun = performance.now();
    const seconds = () => ((performance.now() - begun) / 1000).toLocaleString("en", { maximumFractionDigits: 1 });
    const clock = setInterval(() => { find("state").textContent = `Running, ${seconds()} s`; }, 500);
    fail("");
    find("stop").hidden = false;
    find("state").textContent = "Running";
    try {
      await use(await ask(form, mine.signal));
      if (mine === running) find("state").textContent = `Answered in ${seconds()} s`;
    } catch (error) {
      if (mine !== running) return;
      find("state").textContent = mine.signal.aborted ? "Stopped" : "";
      if (!mine.signal.aborted) fail(error.message);
    } finally {
      clearInterval(clock);
      if (mine === running) { running = null; find("stop").hidden = true; }
    }
  }

  const run = () => { close(); remember(find("sql").value); return during("json", async (reply) => { show(await reply.json()); tell(); }); };

  const save = (form) => during(form, async (reply) => {
    const link = element("a", "", { href: URL.createObjectURL(await reply.blob()), download: `answer.${form}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  });

  // The address of the question, so that it can be sent to somebody; a statement that is too long for one has none.
  function tell() {
    const asked = new URLSearchParams({ sql: find("sql").value });
    for (const name of ["chart", "x", "y", "colour"]) if (field("chart").value && field(name).value) asked.set(name, field(name).value);
    const text = asked.toString();
    history.replaceState(null, "", text.length > MOST_ADDRESS ? location.pathname : `?${text}`);
    if (find("saving")) { find("saving").hidden = text.length > MOST_ADDRESS; find("save").href = `../saved/index.html?of=ask&${text}`; }
  }

  function show(given) {
    answer = given;
    page = 0;
    find("answer").hidden = false;
    find("messages").replaceChildren(...given.messages.map((message) => element("li", message)));
    find("messages").hidden = !given.messages.length;
    find("rows").tHead.rows[0].replaceChildren(...given.columns.map(({ name, kind }) => element("th", name, { scope: "col", class: kind === "number" ? "number" : "" })));
    for (const name of ["x", "y", "colour"]) {
      const select = field(name);
      const wanted = select.value || select.dataset.wanted;
      const offered = given.columns.map((column) => column.name);
      select.replaceChildren(element("option", name === "colour" ? "none" : "first that fits", { value: "" }), ...offered.map((column) => element("option", column)));
      select.value = offered.includes(wanted) ? wanted : "";
    }
    rows();
    plot();
  }

  function rows() {
    const count = answer.rows.length;
    const [from, to] = [page * PAGE_ROWS, Math.min((page + 1) * PAGE_ROWS, count)];
    const number = (value) => value.toLocaleString("en");
    const more = answer.cut ? `, the first ${number(count)} of more` : ` of ${number(count)}`;
    find("count").textContent = count ? `rows ${number(from + 1)} to ${number(to)}${more}` : "no rows";
    find("rows").tBodies[0].replaceChildren(...answer.rows.slice(from, to).map((row) => {
      const line = document.createElement("tr");
      line.append(...row.map((value, at) => (value === null ? element("td", "NULL", { class: "unknown" }) : element("td", String(value), { class: answer.columns[at].kind === "number" ? "number" : "" }))));
      return line;
    }));
    find("pager").hidden = count <= PAGE_ROWS;
    find("earlier").disabled = page === 0;
    find("later").disabled = to >= count;
  }

  const FITS = { number: "quantitative", time: "temporal", text: "nominal", truth: "nominal" };

  const columnOf = (name) => answer.columns.findIndex((column) => column.name === field(name).value);

  // The columns that are drawn: the chosen ones, else numbers over the first column that has a column of numbers beside it.
  function drawnColumns() {
    const numbers = answer.columns.flatMap(({ kind }, at) => (kind === "number" ? [at] : []));
    const [chosenX, chosenY] = [columnOf("x"), columnOf("y")];
    const x = chosenX >= 0 ? chosenX : answer.columns.findIndex((_, at) => (chosenY >= 0 ? at !== chosenY : numbers.some((number) => number !== at)));
    return [x, chosenY >= 0 ? chosenY : numbers.find((at) => at !== x) ?? -1];
  }

  function plot() {
    const kind = field("chart").value;
    const [x, y] = drawnColumns();
    const colour = columnOf("colour");
    const isDrawn = kind && x >= 0 && y >= 0 && answer.rows.length;
    find("plot").hidden = !isDrawn;
    find("plot-note").textContent = "";
    if (!isDrawn) return;
    const values = answer.rows.map((row) => ({ x: row[x], y: typeof row[y] === "number" ? row[y] : null, ...(colour < 0 ? {} : { colour: row[colour] === null ? "NULL" : String(row[colour]) }) }));
    const known = values.filter((value) => value.x !== null && value.y !== null);
    const isOrdinal = kind === "bar" && new Set(known.map((value) => value.x)).size <= MOST_BARS;
    const columnTitle = (at) => [answer.columns[at].name.slice(0, 80)];
    const axis = { field: "x", type: isOrdinal ? "ordinal" : FITS[answer.columns[x].kind], title: columnTitle(x), ...(isOrdinal ? { sort: null, axis: { labelLimit: 120 } } : answer.columns[x].kind === "time" ? { scale: { type: "utc" } } : answer.columns[x].kind === "number" ? { scale: { zero: false }, axis: { format: ",.4~g" } } : { sort: null, axis: { labelLimit: 120 } }) };
    const up = { field: "y", type: "quantitative", title: columnTitle(y), axis: { format: ",.4~g" }, ...(kind === "bar" ? {} : { scale: { zero: false } }) };
    const marks = { line: { type: "line", strokeWidth: 1.5, point: known.length < 200 }, bar: { type: "bar" }, scatter: { type: "point", filled: true, size: 30 } };
    const spec = {
      $schema: "https://vega.github.io/schema/vega-lite/v6.json", width: "container", height: 280, data: { values: known },
      mark: { ...marks[kind], ...(colour < 0 ? { color: "var(--series)" } : {}) },
      encoding: { x: axis, y: up, tooltip: [{ field: "x", type: axis.type === "temporal" ? "temporal" : "nominal", title: "across" }, { field: "y", type: "quantitative", title: "up" }, ...(colour < 0 ? [] : [{ field: "colour", type: "nominal", title: "colour" }])],
        ...(colour < 0 ? {} : { color: { field: "colour", type: "nominal", title: columnTitle(colour), scale: { range: [1, 5, 3, 4, 6, 7, 2, 8].map((part) => `var(--part-${part})`) }, legend: { orient: "bottom", columns: 4, symbolLimit: 24 } } }) },
    };
    find("spec-ask").textContent = JSON.stringify(spec);
    find("plot").querySelector(".chart").dataset.drawn = "";
    find("plot-note").textContent = values.length > known.length ? `${(values.length - known.length).toLocaleString("en")} rows without a value are not drawn.` : "";
    document.querySelector(".axes").dispatchEvent(new Event("change")); // the shell draws
  }

  // What was asked before stays in this browser: the server keeps no text of it.
  const place = () => `ranklake-asked-${find("ask").dataset.history}`;
  function asked() { try { return JSON.parse(localStorage.getItem(place())) || []; } catch { return []; } }
  function keep(texts) { try { localStorage.setItem(place(), JSON.stringify(texts)); } catch { /* a browser may keep nothing */ } }
  function remember(text) { if (text.trim() && text.length < 20000) { keep([text, ...asked().filter((other) => other !== text)].slice(0, MOST_KEPT)); list(); } }
  function list() {
    const items = asked().map((text) => {
      const [item, button] = [document.createElement("li"), element("button", text.replace(/\s+/g, " ").slice(0, 200), { type: "button" })];
      button.addEventListener("click", () => { find("sql").value = text; find("sql").focus(); });
      item.append(button);
      return item;
    });
    find("before").hidden = !items.length;
    find("before").querySelector("ul").replaceChildren(...items);
  }

  function close() { looking += 1; find("words").hidden = true; find("words").replaceChildren(); find("sql").removeAttribute("aria-activedescendant"); }

  async function complete() {
    const box = find("sql"), mine = ++looking;
    const [before, after] = [box.value.slice(0, box.selectionEnd), box.value.slice(box.selectionEnd)];
    if (!/\S/.test(before)) return close();
    let words = [];
    try {
      const reply = await fetch(`words.json?${new URLSearchParams({ before: before.slice(-2000), after: after.slice(0, 500) })}`);
      if (reply.ok) words = await reply.json();
    } catch { /* without names it is asked all the same */ }
    if (mine !== looking) return;
    if (!words.length || document.activeElement !== box) return close();
    find("words").replaceChildren(...words.map(([word, size], at) => {
      const item = element("li", word, { role: "option", id: `word-${at}`, "aria-selected": "false" });
      item.size = size;
      item.addEventListener("mousedown", (event) => { event.preventDefault(); take(item); });
      return item;
    }));
    find("words").hidden = false;
  }

  function take(item) {
    const box = find("sql");
    box.setRangeText(item.textContent, box.selectionEnd - item.size, box.selectionEnd, "end");
    close();
  }

  function select(step) {
    const items = [...find("words").children];
    const at = (items.findIndex((item) => item.getAttribute("aria-selected") === "true") + step + items.length) % items.length;
    items.forEach((item, place) => item.setAttribute("aria-selected", String(place === at)));
    items[at].scrollIntoView({ block: "nearest" });
    find("sql").setAttribute("aria-activedescendant", items[at].id);
  }

  function typed(event) {
    const isOpen = !find("words").hidden;
    const selected = find("words").querySelector("[aria-selected=true]");
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
    else if (event.key === " " && event.ctrlKey) complete();
    else if (isOpen && event.key === "ArrowDown") select(1);
    else if (isOpen && selected && event.key === "ArrowUp") select(-1);
    else if (isOpen && selected && event.key === "Enter") take(selected);
    else if (isOpen && event.key === "Escape") close();
    else return;
    event.preventDefault();
  }

  document.addEventListener("DOMContentLoaded", () => {
    const box = find("sql");
    find("ask").addEventListener("submit", (event) => { event.preventDefault(); run(); });
    find("stop").addEventListener("click", () => running?.abort());
    box.addEventListener("keydown", typed);
    box.addEventListener("blur", close);
    box.addEventListener("input", () => { clearTimeout(settling); settling = setTimeout(complete, SETTLED_MS); });
    for (const name of ["chart", "x", "y", "colour"]) field(name).addEventListener("change", () => { if (answer) { plot(); tell(); } });
    for (const button of document.querySelectorAll("#answer [data-form]")) button.addEventListener("click", () => save(button.dataset.form));
    find("earlier").addEventListener("click", () => { page -= 1; rows(); });
    find("later").addEventListener("click", () => { page += 1; rows(); });
    find("forget").addEventListener("click", () => { keep([]); list(); });
    list();
    if (find("ask").dataset.run) run();
  });
})();
