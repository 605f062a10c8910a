"use strict";
// A slider over the steps at which runs showed something: the page of the chosen step is asked for, and its media taken.
(() => {
  const SETTLED_MS = 80;
  document.addEventListener("DOMContentLoaded", () => {
    const slider = document.getElementById("slider");
    if (!slider) return;
    const form = document.getElementById("media-form");
    const steps = slider.dataset.steps.split(" ");
    let [load, settling] = [0, 0];

    async function show() {
      const mine = ++load;
      const address = `?${new URLSearchParams(new FormData(form))}`;
      const media = document.getElementById("media");
      try {
        const answer = await fetch(address);
        if (!answer.ok) throw new Error("The server refused it.");
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (mine !== load) return;
        media.replaceWith(document.adoptNode(page.getElementById("media")));
        history.replaceState(null, "", address);
      } catch (error) {
        if (mine === load) media.replaceChildren(error.message);
      }
    }

    slider.addEventListener("input", () => {
      const step = steps[slider.value];
      form.elements.namedItem("step").value = step;
      slider.setAttribute("aria-valuetext", `step ${step}`);
      clearTimeout(settling);
      settling = setTimeout(show, SETTLED_MS);
    });
  });
})();
