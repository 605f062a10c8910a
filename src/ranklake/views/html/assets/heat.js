"use strict";
// Heat maps on a canvas: many rows by many columns cost a browser one image, where an element a cell costs seconds.
// A pointer, the arrow keys and Enter ask for what a cell and a row hold; a table of the page tells the same in numbers.
(() => {
  const TICK_PX = 96;
  const html = document.documentElement;
  const rgb = (text) => [1, 3, 5].map((at) => parseInt(text.trim().slice(at, at + 2), 16));
  const percent = (value) => `${(value / 10).toFixed(1)} %`;

  function ramp(style, names) {
    const [from, to] = names.map((name) => rgb(style.getPropertyValue(name)));
    return (share) => from.map((one, place) => Math.round(one + (to[place] - one) * share));
  }

  function sized(canvas, height) {
    const scale = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale));
    canvas.height = Math.round(height * scale);
    const drawing = canvas.getContext("2d");
    drawing.scale(scale, scale);
    return [drawing, canvas.width / scale];
  }

  // What is unknown stays striped: it is neither the least nor the most.
  function striped(drawing, width, height, colour) {
    drawing.strokeStyle = colour;
    drawing.beginPath();
    for (let x = -height; x < width; x += 6) { drawing.moveTo(x, height); drawing.lineTo(x + height, 0); }
    drawing.stroke();
  }

  function image(heat, colour) {
    const columns = heat.columns.length;
    const made = document.createElement("canvas");
    made.width = columns;
    made.height = heat.rows.length;
    const drawing = made.getContext("2d");
    const pixels = drawing.createImageData(made.width, made.height);
    heat.values.forEach((value, at) => {
      if (value === null) return;
      pixels.data.set([...colour(Math.min(Math.max(value / heat.most, 0), 1)), 255], 4 * at);
    });
    drawing.putImageData(pixels, 0, 0);
    return made;
  }

  function map(place) {
    const heat = JSON.parse(document.getElementById(place.dataset.heat).textContent);
    const [canvas, ticks, said, row] = ["canvas", ".ticks", ".told", ".row"].map((one) => place.querySelector(one));
    const columns = heat.columns.length;
    const height = Math.round(Math.min(Math.max(heat.rows.length, Math.min(24 * heat.rows.length, 460)), 640));
    let at = null, chosen = null;

    function cell(drawing, width, [y, x], colour) {
      drawing.strokeStyle = colour;
      drawing.lineWidth = 2;
      const tall = height / heat.rows.length;
      drawing.strokeRect((x * width) / columns, y * tall - Math.max(0, 3 - tall), width / columns, Math.max(tall, 6));
    }

    function draw() {
      const style = getComputedStyle(html);
      const [drawing, width] = sized(canvas, height);
      striped(drawing, width, height, style.getPropertyValue("--skipped").trim());
      drawing.imageSmoothingEnabled = false;
      drawing.drawImage(image(heat, ramp(style, heat.ramp)), 0, 0, width, height);
      const ink = style.getPropertyValue("--ink").trim();
      if (chosen !== null) { drawing.fillStyle = ink; drawing.fillRect(0, ((chosen + 0.5) * height) / heat.rows.length - 0.75, width, 1.5); }
      if (at) cell(drawing, width, at, ink);
      const fits = Math.ceil((columns * TICK_PX) / width);
      const every = [1, 2, 3, 6, 12, 24, 48].find((one) => one >= fits) || fits;
      const labels = heat.columns.map((label, x) => [label, x]).filter(([, x]) => x % every === 0 && (columns - x) * width >= columns * TICK_PX);
      ticks.replaceChildren(...labels.map(([label, x]) => {
        const made = document.createElement("span");
        made.textContent = label;
        made.style.left = `${(100 * x) / columns}%`;
        return made;
      }));
      if (chosen !== null) bars(style);
      place.dataset.drawn = "yes";
    }

    function bars(style) {
      const tall = 72;
      const [drawing, width] = sized(row.querySelector("canvas"), tall);
      const colour = ramp(style, heat.ramp)(0.85);
      striped(drawing, width, tall, style.getPropertyValue("--edge").trim());
      for (let x = 0; x < columns; x += 1) {
        const value = heat.values[chosen * columns + x];
        if (value === null) continue;
        const [left, wide] = [(x * width) / columns, width / columns];
        drawing.clearRect(left, 0, wide, tall);
        drawing.fillStyle = `rgb(${colour})`;
        const high = Math.max(1, Math.min(value / heat.most, 1) * tall);
        drawing.fillRect(left, tall - high, Math.max(1, wide - 1), high);
      }
    }

    function tell() {
      const [y, x] = at;
      const value = heat.values[y * columns + x];
      const many = heat.members && heat.members[y] > 1 ? ` and ${heat.members[y] - 1} alike` : "";
      said.textContent = `${heat.rows[y]}${many}, ${heat.columns[x]}: ${value === null ? heat.unknown : percent(value)}`;
    }

    function open() {
      chosen = at[0];
      const known = heat.values.slice(chosen * columns, (chosen + 1) * columns).filter((value) => value !== null);
      const range = known.length ? `from ${percent(Math.min(...known))} to ${percent(Math.max(...known))}, ` : "";
      row.hidden = false;
      row.querySelector("p").textContent = `${heat.rows[chosen]}: ${range}known in ${known.length} of ${columns}`;
      draw();
    }

    const go = (y, x) => {
      at = [Math.min(Math.max(y, 0), heat.rows.length - 1), Math.min(Math.max(x, 0), columns - 1)];
      tell();
      requestAnimationFrame(draw);
    };
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      go(Math.floor(((event.clientY - box.top) / box.height) * heat.rows.length), Math.floor(((event.clientX - box.left) / box.width) * columns));
    });
    canvas.addEventListener("pointerleave", () => { at = null; requestAnimationFrame(draw); });
    canvas.addEventListener("click", () => at && open());
    canvas.addEventListener("keydown", (event) => {
      const [y, x] = at || [0, 0];
      const ways = { ArrowUp: [y - 1, x], ArrowDown: [y + 1, x], ArrowLeft: [y, x - 1], ArrowRight: [y, x + 1],
        PageUp: [y - 16, x], PageDown: [y + 16, x], Home: [y, 0], End: [y, columns - 1] };
      if (event.key === "Enter") { if (at) open(); } else if (ways[event.key]) go(...(at ? ways[event.key] : [0, 0]));
      else return;
      event.preventDefault();
    });
    new ResizeObserver(draw).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    document.getElementById("theme").addEventListener("click", () => requestAnimationFrame(draw));
  }

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("[data-heat]").forEach(map));
})();
