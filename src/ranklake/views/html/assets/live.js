"use strict";
// A run while it records: asks the agent, or the server, for what is new, and shows it; everything from it is text.
(() => {
  const at = (id) => document.getElementById(id);
  const states = { runs: "records", stalled: "records no steps", ended: "ended", died: "its process died without closing the run", sent: "ended, and all of it is sent" };
  const marks = { runs: "passed", stalled: "warning", died: "failing" };
  const short = (value) => (value === null || value === undefined ? "unknown" : Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3) ? value.toExponential(2) : value.toLocaleString("en", { maximumSignificantDigits: 4 }));
  const count = (value) => (value === null ? "unknown" : value.toLocaleString("en"));
  const seconds = (value) => {
    if (value === null) return "unknown";
    if (value < 1) return `${short(value * 1000)} ms`;
    return value < 120 ? `${short(value)} s` : value < 7200 ? `${short(value / 60)} min` : `${short(value / 3600)} h`;
  };
  const signed = (value) => (value === null ? "–" : `${value < -0.0005 ? "" : "+"}${(100 * value).toFixed(1).replace("-0.0", "0.0")} %`);
  const clock = (ns) => new Date(ns / 1e6).toISOString().slice(11, 19);

  function made(tag, text, className) {
    const one = document.createElement(tag);
    one.textContent = text;
    if (className) one.className = className;
    return one;
  }

  function tile([label, value]) {
    const one = made("div", "", "tile");
    one.append(made("dt", label), made("dd", value));
    return one;
  }

  function svg(tag, attributes, text = "") {
    const one = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
    one.textContent = text;
    return one;
  }

  // A line with its extremes and its first and last step: the table of ranks has the numbers of now.
  function curve(place, points, name) {
    const [wide, tall, left, foot] = [Math.max(place.clientWidth, 200), 180, 64, 22];
    if (!points.length) { place.replaceChildren(made("p", "unknown: none was recorded so far", "unknown")); return; }
    const [steps, values] = [points.map(([step]) => step), points.map(([, value]) => value)];
    const known = values.filter((value) => value !== null);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const x = (step) => left + ((step - steps[0]) / Math.max(steps[steps.length - 1] - steps[0], 1)) * (wide - left - 8);
    const y = (value) => 8 + (1 - (value - low) / (high - low || 1)) * (tall - foot - 16);
    const drawn = svg("svg", { role: "img", viewBox: `0 0 ${wide} ${tall}`, width: wide, height: tall,
      "aria-label": `${name}: ${short(values[0])} at step ${count(steps[0])}, ${short(values[values.length - 1])} at step ${count(steps[steps.length - 1])}` });
    let path = "";
    points.forEach(([step, value], place) => { if (value !== null) path += `${place && points[place - 1][1] !== null ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`; });
    for (const value of high === low ? [low] : [low, (low + high) / 2, high]) {
      drawn.append(svg("path", { class: "rule", d: `M${left} ${y(value)}H${wide - 8}` }), svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, short(value)));
    }
    drawn.append(svg("text", { x: left, y: tall - 4 }, `step ${count(steps[0])}`), svg("text", { x: wide - 8, y: tall - 4, "text-anchor": "end" }, count(steps[steps.length - 1])));
    drawn.append(svg("path", { class: "drawn", d: path }));
    if (points.length === 1) drawn.append(svg("circle", { class: "dot", cx: x(steps[0]), cy: y(values[0]), r: 4 }));
    place.replaceChildren(drawn);
  }

  function row(one) {
    const made_ = document.createElement("tr");
    const head = made("th", String(one.rank));
    head.scope = "row";
    const state = document.createElement("td");
    const badge = made("span", "", `badge ${marks[one.state] || ""}`);
    const mark = made("span", "", "mark");
    mark.setAttribute("aria-hidden", "true");
    badge.append(mark, states[one.state]);
    state.append(badge);
    const cells = [count(one.step), seconds(one.step_time_s), seconds(one.self_time_s), signed(one.slower_ratio), one.since_step_s === null ? "unknown" : `${seconds(one.since_step_s)} ago`, count(one.gap_rows), short(one.loss)];
    made_.append(head, ...cells.map((text) => made("td", text, "number")), state);
    return made_;
  }

  function show(facts) {
    const lost = facts.gaps.reduce((sum, one) => sum + one.rows, 0);
    document.title = `${facts.run} · ranklake`;
    at("run").textContent = facts.run;
    at("verdict").className = `verdict ${marks[facts.state] || "unchecked"}`;
    at("state").textContent = states[facts.state];
    const here = facts.world_size > facts.ranks.length ? `${facts.ranks.length} of ${count(facts.world_size)} ranks are on this node` : `${count(facts.ranks.length)} ranks`;
    at("told").textContent = `attempt ${facts.attempt} · ${here} · looked at ${clock(facts.time_ns)} UTC`;
    at("tiles").replaceChildren(...[
      ["step", count(facts.step)], ["last step", facts.behind_s === null ? "unknown" : `${seconds(facts.behind_s)} ago`], ["loss", short(facts.loss)],
      ["step time", seconds(facts.step_time_s)], ["tokens/s here", short(facts.tokens_per_s)], ["rows lost", count(lost)],
    ].map(tile));
    curve(at("losses"), facts.losses, "loss");
    curve(at("step_times"), facts.step_times, "step time in seconds");
    at("ranks").replaceChildren(...facts.ranks.map(row));
    const troubles = [
      ...facts.flagged.map(([step, what]) => `step ${count(step)}: ${what}`),
      ...facts.alerts.map((one) => `${clock(one.time_ns)} ${one.severity} ${one.event}${one.message ? `: ${one.message}` : ""}`),
      ...facts.gaps.map((one) => `gap: ${count(one.rows)} rows of ${one.table}: ${one.reason}`),
    ];
    if (facts.unreadable) troubles.push(`${count(facts.unreadable)} segments here cannot be read: encrypted, or damaged`);
    at("troubles").replaceChildren(...(troubles.length ? troubles : ["none"]).map((text) => made("li", text)));
  }

  async function follow() {
    const run = new URLSearchParams(location.search).get("run") || "";
    let [seen, shown] = [-1, false];
    for (;;) {
      try {
        const answer = await (await fetch(`live?run=${encodeURIComponent(run)}&after=${seen}`)).json();
        const facts = answer.facts || answer;
        if (!facts.error) { show(facts); shown = true; }
        else if (shown) at("told").textContent = `what was seen last; ${facts.error}`;
        else { at("state").textContent = "Nothing to show yet"; at("told").textContent = facts.error; }
        if (answer.count === undefined || answer.count === seen) await new Promise((done) => { setTimeout(done, 2000); });
        seen = answer.count ?? -1;
      } catch {
        at("verdict").className = "verdict warning";
        at("state").textContent = "The agent does not answer";
        await new Promise((done) => { setTimeout(done, 2000); });
      }
    }
  }

  // What `ranklake ui` sends by itself; a browser keeps few connections, so a page that nobody sees has none.
  function listen(url) {
    const run = new URLSearchParams(location.search).get("run") || "";
    let [source, shown] = [null, false];
    const open = () => {
      if (document.hidden) { source?.close(); source = null; return; }
      if (source) return;
      source = new EventSource(`${url}?run=${encodeURIComponent(run)}`);
      source.addEventListener("run", (event) => { show(JSON.parse(event.data)); shown = true; });
      source.addEventListener("none", () => {
        if (shown) { at("told").textContent = "what was seen last; it records here no more"; return; }
        at("state").textContent = "Nothing to show yet";
        at("told").textContent = `${run ? `run ${run} does not record` : "no run records"} on this machine`;
      });
      source.addEventListener("error", () => {
        at("verdict").className = "verdict warning";
        at("state").textContent = "The server does not answer";
      });
    };
    document.addEventListener("visibilitychange", open);
    open();
  }

  document.addEventListener("DOMContentLoaded", () => {
    const url = at("live")?.dataset.events;
    if (url) listen(url); else follow();
  });
})();
