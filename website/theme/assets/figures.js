// Figures that can be moved, by mouse, finger or keyboard. Each stands where a page has <div data-figure="name">.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const THETA = [[110, 250], [530, 70]]; // where the two sources are, in every figure of the plane
const COLORS = ["var(--c0)", "var(--c1)"];

const percent = (share) => `${Math.round(100 * share)} %`;
const between = (share) => THETA[0].map((value, axis) => (1 - share) * value + share * THETA[1][axis]);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function make(parent, tag, attributes = {}, text = "") {
  const one = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
  one.textContent = text;
  parent.appendChild(one);
  return one;
}

function frame(place, label, height) {
  const figure = document.createElement("figure");
  figure.className = "drawn";
  const svg = make(figure, "svg", { viewBox: `0 0 640 ${height}`, role: "group", "aria-label": label });
  const controls = document.createElement("div");
  controls.className = "controls";
  const output = document.createElement("output");
  output.setAttribute("aria-live", "polite");
  const caption = document.createElement("figcaption");
  caption.append(...place.childNodes);
  figure.append(controls, output, caption);
  place.replaceWith(figure);
  return { svg, controls, output };
}

function slider(controls, text, [low, high, step, value], change, shown = percent) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  Object.assign(input, { type: "range", min: low, max: high, step, value });
  const told = () => input.setAttribute("aria-valuetext", shown(Number(input.value)));
  input.addEventListener("input", () => { told(); change(); });
  told();
  label.append(text, input);
  controls.append(label);
  return { get value() { return Number(input.value); }, set value(to) { input.value = to; told(); } };
}

function sources(svg) {
  make(svg, "line", { x1: THETA[0][0], y1: THETA[0][1], x2: THETA[1][0], y2: THETA[1][1], stroke: "var(--fig-rule)", "stroke-dasharray": "5 5" });
  THETA.forEach(([x, y], s) => {
    make(svg, "path", { d: `M${x - 8} ${y - 8} l16 16 m0 -16 l-16 16`, stroke: COLORS[s], "stroke-width": 4 });
    make(svg, "text", { x, y: y + (s ? -18 : 32), "text-anchor": "middle", fill: "currentColor" }, `source ${s}`);
  });
}

function dot(svg, color, name, square = false) {
  const group = make(svg, "g");
  if (square) make(group, "rect", { x: -14, y: -12, width: 28, height: 24, rx: 3, fill: color });
  else make(group, "circle", { r: 10, fill: "var(--md-default-bg-color)", stroke: color, "stroke-width": 3 });
  make(group, "text", { y: 4, "text-anchor": "middle", fill: square ? "var(--md-default-bg-color)" : "currentColor", "font-weight": 600, "font-size": 12 }, name);
  return { group, to: ([x, y]) => group.setAttribute("transform", `translate(${x} ${y})`) };
}

// A dot that moves along the line between the sources.
function handle(svg, name, get, set, change) {
  const one = dot(svg, "var(--fig-muted)", name);
  const { group } = one;
  group.classList.add("handle");
  make(group, "circle", { r: 22, fill: "transparent", stroke: "none", class: "reach" }); // wide enough for a finger
  const told = () => {
    group.setAttribute("aria-valuenow", Math.round(100 * get()));
    group.setAttribute("aria-valuetext", `${percent(get())} of source 1`);
  };
  for (const [key, value] of Object.entries({ role: "slider", tabindex: 0, "aria-label": `Client ${name}: share of source 1`, "aria-valuemin": 0, "aria-valuemax": 100 }))
    group.setAttribute(key, value);
  const moved = (to) => { set(clamp(to, 0, 1)); told(); change(); };
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 0.05, ArrowUp: 0.05, ArrowLeft: -0.05, ArrowDown: -0.05, PageUp: 0.2, PageDown: -0.2, Home: -1, End: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    moved(get() + step);
  });
  group.addEventListener("pointerdown", (event) => group.setPointerCapture(event.pointerId));
  group.addEventListener("pointermove", (event) => {
    if (!group.hasPointerCapture(event.pointerId)) return;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const way = THETA[1].map((value, axis) => value - THETA[0][axis]);
    moved(((at.x - THETA[0][0]) * way[0] + (at.y - THETA[0][1]) * way[1]) / (way[0] ** 2 + way[1] ** 2));
  });
  told();
  return { ...one, told };
}

// Where FedSoft ends with clients of these shares: each solves one problem, pulled to both centers.
function settled(shares, lambda) {
  let centers = [0.25, 0.75];
  for (let round = 0; round < 400; round++) {
    const models = shares.map((u) => (2 * u + lambda * ((1 - u) * centers[0] + u * centers[1])) / (2 + lambda));
    centers = [0, 1].map((s) => {
      const weights = shares.map((u) => Math.max(s ? u : 1 - u, 1e-3));
      return weights.reduce((sum, weight, k) => sum + weight * models[k], 0) / weights.reduce((sum, weight) => sum + weight, 0);
    });
  }
  return centers;
}

const figures = {
  mixtures(place) {
    const { svg, controls, output } = frame(place, "Two sources, two clients between them, and the two centers that FedSoft makes of the clients", 320);
    const shares = [0.1, 0.9];
    sources(svg);
    const centers = [0, 1].map((s) => dot(svg, COLORS[s], `c${s}`, true));
    const clients = ["A", "B"].map((name, k) => handle(svg, name, () => shares[k], (to) => { shares[k] = to; }, draw));
    const pull = slider(controls, "pull λ", [0, 8, 0.1, 1], draw, (value) => value.toFixed(1));
    const offset = (share, up) => { const [x, y] = between(share); return [x + 14 * up, y + 32 * up]; };
    function draw() {
      const found = settled(shares, pull.value);
      clients.forEach((one, k) => one.to(offset(shares[k], -1)));
      centers.forEach((one, s) => one.to(offset(found[s], 1)));
      output.textContent = `Client A has ${percent(shares[0])} of source 1, client B ${percent(shares[1])}. Center 0 ends ${percent(found[0])} of the way from source 0 to source 1, center 1 ${percent(found[1])}.`;
    }
    draw();
  },

  averages(place) {
    const { svg, controls, output } = frame(place, "How far the average of clients' models stays from its source, by the purity of clients", 300);
    const [x, y] = [(p) => 70 + 1040 * (p - 0.5), (error) => 250 - 380 * error];
    make(svg, "path", { d: "M70 40 V250 H590", fill: "none", stroke: "var(--fig-muted)" });
    for (const p of [0.5, 0.6, 0.7, 0.8, 0.9, 1]) make(svg, "text", { x: x(p), y: 270, "text-anchor": "middle", fill: "currentColor" }, percent(p));
    for (const error of [0, 0.25, 0.5]) make(svg, "text", { x: 62, y: y(error) + 4, "text-anchor": "end", fill: "currentColor" }, percent(error));
    make(svg, "text", { x: 330, y: 292, "text-anchor": "middle", fill: "currentColor" }, "share of its main source in a client's points");
    make(svg, "text", { x: 78, y: 32, fill: "currentColor" }, "distance of a center from its source");
    const line = Array.from({ length: 51 }, (_, i) => 0.5 + i / 100);
    make(svg, "path", { d: "M" + line.map((p) => `${x(p)} ${y(2 * p * (1 - p))}`).join(" L"), fill: "none", stroke: "var(--c0)", "stroke-width": 2.5 });
    make(svg, "text", { x: x(0.72), y: y(0.44), fill: "var(--c0)" }, "average of clients' models");
    make(svg, "path", { d: `M${x(0.5)} ${y(0)} H${x(1)}`, stroke: "var(--c2)", "stroke-width": 2.5 });
    make(svg, "text", { x: x(0.56), y: y(0.02), fill: "var(--c2)" }, "each point to the center that explains it");
    const mark = make(svg, "circle", { r: 7, fill: "var(--c0)" });
    const purity = slider(controls, "purity of clients", [0.5, 1, 0.01, 0.9], draw);
    function draw() {
      const p = purity.value, error = 2 * p * (1 - p);
      mark.setAttribute("cx", x(p));
      mark.setAttribute("cy", y(error));
      output.textContent = `Clients with ${percent(p)} of one source: their models' averages end ${percent(error)} of the way to the other source.`;
    }
    draw();
  },

  hierarchy(place) {
    const { svg, controls, output } = frame(place, "A client's model between its center and what its own points say", 240);
    const x = (value) => 320 + 60 * value;
    make(svg, "line", { x1: 30, y1: 170, x2: 610, y2: 170, stroke: "var(--fig-muted)" });
    const prior = make(svg, "path", { fill: "var(--c0)", "fill-opacity": 0.25, stroke: "var(--c0)", "stroke-width": 2 });
    const data = make(svg, "path", { fill: "var(--c1)", "fill-opacity": 0.2, stroke: "var(--c1)", "stroke-width": 2 });
    const personal = make(svg, "path", { fill: "none", stroke: "currentColor", "stroke-width": 3 });
    const names = [["center and its width", "var(--c0)", -2], ["what its points say", "var(--c1)", 2.5], ["personal model", "currentColor", 0]]
      .map(([text, fill, at]) => [make(svg, "text", { y: 192, "text-anchor": "middle", fill }, text), at]);
    const width = slider(controls, "width of the center's prior", [0.05, 3, 0.05, 0.8], draw, (value) => value.toFixed(2));
    const points = slider(controls, "points of the client", [0, 60, 1, 6], draw, String);
    const bell = (mean, deviation) => {
      const high = Math.min(130, 52 / deviation);
      const curve = Array.from({ length: 121 }, (_, i) => -4.8 + 0.08 * i);
      return "M" + curve.map((at) => `${x(at)} ${170 - high * Math.exp(-0.5 * ((at - mean) / deviation) ** 2)}`).join(" L");
    };
    function draw() {
      const tau = width.value, n = points.value, noise = 3;
      const own = n / noise ** 2, pull = 1 / tau ** 2;
      const mean = (-2 * pull + 2.5 * own) / (pull + own), weight = own / (pull + own);
      prior.setAttribute("d", bell(-2, tau));
      data.setAttribute("d", n ? bell(2.5, noise / Math.sqrt(n)) : "");
      personal.setAttribute("d", bell(mean, 1 / Math.sqrt(pull + own)));
      names.forEach(([text, at], i) => {
        text.setAttribute("x", clamp(x(i === 2 ? mean : at), 70, 570));
        text.setAttribute("y", i === 2 ? 216 : 192);
        text.textContent = i === 1 && !n ? "" : ["center and its width", "what its points say", "personal model"][i];
      });
      output.textContent = `With ${n} points and a width of ${tau.toFixed(2)}, the personal model goes ${percent(weight)} of the way from the center to what its own points say.`;
    }
    draw();
  },

  masks(place) {
    const { svg, controls, output } = frame(place, "What four clients send with and without masks, and what the server can add up", 240);
    const values = [3, 8, 1, 6], modulus = 100;
    let masks = [];
    const rows = values.map((value, k) => [40, 190, 420].map((at, column) =>
      make(svg, "text", { x: at, y: 62 + 30 * k, fill: "currentColor", "font-size": 15, "font-family": "monospace" })));
    ["client", "its own value", "what the server receives"].forEach((text, i) => make(svg, "text", { x: [40, 190, 420][i], y: 30, fill: "var(--fig-muted)" }, text));
    make(svg, "path", { d: "M40 165 H600", stroke: "var(--fig-rule)" });
    const total = [190, 420].map((at) => make(svg, "text", { x: at, y: 192, fill: "currentColor", "font-size": 15, "font-weight": 600, "font-family": "monospace" }));
    make(svg, "text", { x: 40, y: 192, fill: "currentColor", "font-weight": 600 }, "sum");
    make(svg, "text", { x: 420, y: 218, fill: "var(--fig-muted)" }, `(all sums modulo ${modulus})`);
    const label = document.createElement("label");
    const secure = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
    label.append(secure, "secure = true");
    const again = Object.assign(document.createElement("button"), { type: "button", textContent: "Draw masks anew" });
    secure.addEventListener("change", draw);
    again.addEventListener("click", () => { drawMasks(); draw(); });
    controls.append(label, again);
    function drawMasks() {
      masks = values.map(() => 0);
      for (let a = 0; a < 4; a++) for (let b = a + 1; b < 4; b++) {
        const mask = crypto.getRandomValues(new Uint32Array(1))[0] % modulus;
        masks[a] = (masks[a] + mask) % modulus;
        masks[b] = (masks[b] + modulus - mask) % modulus;
      }
    }
    function draw() {
      const sent = values.map((value, k) => (value + (secure.checked ? masks[k] : 0)) % modulus);
      rows.forEach((row, k) => ["ABCD"[k], values[k], sent[k]].forEach((text, i) => { row[i].textContent = text; }));
      total[0].textContent = values.reduce((a, b) => a + b);
      total[1].textContent = sent.reduce((a, b) => a + b) % modulus;
      output.textContent = secure.checked
        ? `The server receives ${sent.join(", ")}: random numbers, which add up to ${total[1].textContent}, as the values do.`
        : `The server receives every client's own value: ${sent.join(", ")}.`;
    }
    drawMasks();
    draw();
  },
};

for (const place of document.querySelectorAll("[data-figure]")) figures[place.dataset.figure](place);
