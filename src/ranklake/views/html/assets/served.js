"use strict";
// A run's page from a server: what its ranks on this machine record right now, and a word once tables changed.
(() => {
  const short = (value) => (value === null ? "unknown" : value.toLocaleString("en", { maximumSignificantDigits: 4 }));
  const seconds = (value) => (value === null ? "unknown" : value < 1 ? `${short(value * 1000)} ms` : `${short(value)} s`);

  function tile([label, value]) {
    const [one, name, number] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
    one.className = "tile";
    [name.textContent, number.textContent] = [label, value];
    one.append(name, number);
    return one;
  }

  document.addEventListener("DOMContentLoaded", () => {
    const strip = document.getElementById("recording");
    if (!strip) return;
    const newer = document.getElementById("newer");
    let source = null;
    const show = (event) => {
      const facts = JSON.parse(event.data);
      strip.hidden = false;
      strip.querySelector("dl").replaceChildren(...[
        ["step now", facts.step === null ? "unknown" : facts.step.toLocaleString("en")],
        ["last step ended", facts.behind_s === null ? "unknown" : `${seconds(facts.behind_s)} ago`],
        ["loss now", short(facts.loss)], ["step time now", seconds(facts.step_time_s)], ["tokens/s here", short(facts.tokens_per_s)],
      ].map(tile));
    };
    // A browser keeps few connections to one server: a page that nobody sees needs none.
    const listen = () => {
      if (document.hidden) { source?.close(); source = null; return; }
      if (source) return;
      source = new EventSource(strip.dataset.events);
      source.addEventListener("run", show);
      source.addEventListener("none", () => { strip.hidden = true; });
      source.addEventListener("tables", () => { newer.hidden = false; });
    };
    document.addEventListener("visibilitychange", listen);
    newer.querySelector("button").addEventListener("click", () => location.reload());
    listen();
  });
})();
