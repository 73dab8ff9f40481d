
"use strict";
(() => {
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const make = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const SVG = "http://www.w3.org/2000/svg";
  const shape = (name, attributes = {}) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };

  for (const element of all("[data-js]")) element.hidden = false;

  // --- light and dark
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const name = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  system.addEventListener("change", name);
  name();

  // --- where the reader is
  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  for (const section of all("main section")) seen.observe(section);

  // --- tables: sorting
  const value = (cell) => {
    const text = cell.dataset.v ?? cell.textContent;
    return text === "" ? null : cell.classList.contains("num") && !isNaN(text) ? Number(text) : text;
  };
  const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  for (const table of all("table")) {
    const heads = all("thead th", table);
    heads.forEach((head, i) => {
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const keyed = [...body.rows].map((row) => [value(row.cells[i]), row]);
        // What is not there comes last either way.
        keyed.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : (down ? -1 : 1) * order(a, b));
        body.append(...keyed.map(([, row]) => row));
        rove(table);
      });
    });
  }

  // --- numbers: one stop of the tab key for each table, arrows within
  const rove = (table) => {
    all("a.n", table).forEach((link, i) => { link.tabIndex = i ? -1 : 0; });
  };
  for (const table of all("table")) {
    rove(table);
    table.addEventListener("keydown", (event) => {
      const cell = event.target.closest("a.n")?.closest("td, th");
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!cell || !step) return;
      event.preventDefault();
      const rows = [...table.rows];
      let [r, c] = [rows.indexOf(cell.parentNode), cell.cellIndex];
      for (;;) {
        r += step[0];
        c += step[1];
        const next = rows[r]?.cells[c];
        if (!next) return;
        const link = next.querySelector("a.n");
        if (!link) continue;
        event.target.tabIndex = -1;
        link.tabIndex = 0;
        link.focus();
        return;
      }
    });
  }

  // --- numbers: where they come from
  let open = null, owner = null;
  const hide = () => { if (open) open.hidden = true; open = owner = null; };
  const place = () => {
    const at = owner.getBoundingClientRect();
    const box = open.getBoundingClientRect();
    const below = at.bottom + 6 + box.height < innerHeight;
    open.style.left = `${Math.max(8, Math.min(at.left, innerWidth - box.width - 8))}px`;
    open.style.top = `${below ? at.bottom + 6 : at.top - box.height - 6}px`;
  };
  const show = (link) => {
    hide();
    owner = link;
    open = document.getElementById(link.getAttribute("aria-describedby"));
    open.hidden = false;
    place();
  };
  for (const link of all("a.n")) {
    link.addEventListener("focus", () => show(link));
    link.addEventListener("blur", hide);
    link.addEventListener("pointerenter", () => show(link));
    link.addEventListener("pointerleave", (event) => { if (!event.relatedTarget?.closest?.(".trace")) hide(); });
    link.addEventListener("click", hide);
  }
  for (const box of all(".trace")) box.addEventListener("pointerleave", hide);
  const moved = () => { if (open) owner === document.activeElement ? place() : hide(); };
  addEventListener("scroll", moved, { passive: true, capture: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // --- figures: legend and readout
  for (const figure of all("figure.figure")) {
    const off = new Set();
    const colours = new Map();
    for (const item of all(".legend [data-series]", figure)) {
      const series = item.dataset.series;
      const button = make("button", { type: "button", "aria-pressed": "true" }, ...item.childNodes);
      item.append(button);
      button.addEventListener("click", () => {
        if (!off.delete(series)) off.add(series);
        button.setAttribute("aria-pressed", String(!off.has(series)));
        for (const part of all("svg [data-series]", figure)) if (part.dataset.series === series) part.classList.toggle("off", off.has(series));
      });
    }
    for (const part of all("svg g[data-series]", figure)) colours.set(part.dataset.series, part.classList[1]);
    const panels = JSON.parse(figure.querySelector("script.stops").textContent);
    all(".plot", figure).forEach((plot, i) => readable(plot, panels[i], off, colours));
  }

  function readable(plot, { mode, stops }, off, colours) {
    if (!stops.length) return;
    const svg = plot.querySelector("svg");
    const cursor = svg.querySelector(".cursor");
    const guide = cursor.querySelector(".guide");
    const box = make("div", { class: "readout", role: "status", hidden: "" });
    let at = -1;
    plot.append(box);
    plot.classList.add("on");
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", `${svg.querySelector("title").textContent}: read the values with the arrow keys`);
    const rows = (stop) => stop[3].filter(([series]) => !off.has(series));
    const clear = () => {
      at = -1;
      box.hidden = true;
      guide.style.visibility = "hidden";
      for (const dot of all(".dot", cursor)) dot.remove();
    };
    const tell = (i) => {
      clear();
      const stop = stops[i];
      const shown = rows(stop);
      if (!shown.length) return;
      at = i;
      const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
      box.replaceChildren(make("b", {}, stop[2]), ...shown.map(([series, text]) => make("div", {}, make("span", {}, series), make("span", {}, text))));
      for (const [series, , x, y] of shown) if (mode !== "y") cursor.append(shape("circle", { class: `dot ${colours.get(series)}`, cx: x, cy: y, r: 4.5 }));
      if (mode === "x") {
        for (const [key, place] of [["x1", stop[0]], ["x2", stop[0]], ["y1", 40], ["y2", height - 44]]) guide.setAttribute(key, place);
        guide.style.visibility = "visible";
      }
      box.hidden = false;
      const scale = svg.clientWidth / width;
      const [left, top] = [shown[0][2] * scale, Math.min(...shown.map((row) => row[3])) * scale];
      // Beside the value where there is room, above the panel where there is none: never over what is read.
      const [right, before] = [left + 14 + box.offsetWidth < plot.clientWidth, left - 14 - box.offsetWidth];
      const middle = Math.max(0, Math.min(top - box.offsetHeight / 2, plot.clientHeight - box.offsetHeight));
      box.style.left = `${right ? left + 14 : Math.max(0, before)}px`;
      box.style.top = `${right || before >= 0 ? middle : -box.offsetHeight - 4}px`;
    };
    const nearest = (event) => {
      const frame = svg.getBoundingClientRect();
      const width = Number(svg.getAttribute("viewBox").split(" ")[2]);
      const [px, py] = [(event.clientX - frame.left) * width / frame.width, (event.clientY - frame.top) * width / frame.width];
      let best = -1, least = Infinity;
      stops.forEach((stop, i) => {
        const far = mode === "x" ? Math.abs(stop[0] - px) : mode === "y" ? Math.abs(stop[1] - py) : Math.hypot(stop[0] - px, stop[1] - py);
        if (far < least && rows(stop).length) [best, least] = [i, far];
      });
      return best;
    };
    svg.addEventListener("pointermove", (event) => { const i = nearest(event); if (i >= 0 && i !== at) tell(i); });
    svg.addEventListener("pointerleave", clear);
    plot.addEventListener("blur", clear);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") clear();
      if (!step && event.key !== "Home" && event.key !== "End") return;
      event.preventDefault();
      let i = event.key === "Home" ? 0 : event.key === "End" ? stops.length - 1 : at < 0 ? (step > 0 ? 0 : stops.length - 1) : at + step;
      const along = step ?? (event.key === "Home" ? 1 : -1);
      while (stops[i] && !rows(stops[i]).length) i += along;
      if (stops[i]) tell(i);
    });
  }

  // --- saving
  const save = (blob, file) => {
    const link = make("a", { href: URL.createObjectURL(blob), download: file });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const csv = (table) => {
    const quote = (text) => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    const spread = all("thead th", table).map((_, i) => all(`tbody tr, tfoot tr`, table).some((row) => row.cells[i].dataset.d));
    const heads = all("thead th", table).flatMap((head, i) => spread[i] ? [head.textContent, `${head.textContent}, std`] : [head.textContent]);
    const lines = all("tbody tr, tfoot tr", table).map((row) => [...row.cells].flatMap((cell, i) =>
      spread[i] ? [cell.dataset.v ?? cell.textContent, cell.dataset.d ?? ""] : [cell.dataset.v ?? cell.textContent]));
    return [heads, ...lines].map((line) => line.map(quote).join(",") + "\n").join("");
  };
  const style = JSON.parse(document.getElementById("figure-style").textContent);
  const picture = (figure) => {
    const gap = 24;
    const outer = shape("svg", { xmlns: SVG });
    const probe = make("span");
    document.body.append(probe);
    const variables = ["back", "ink", "muted", "rule", "grid", ...Array.from({ length: 8 }, (_, i) => `c${i}`)].map((part) => {
      probe.style.color = `var(--${part})`;
      return `--${part}:${getComputedStyle(probe).color};`;
    });
    probe.remove();
    const rules = shape("style");
    rules.textContent = `svg{${variables.join("")}}${style}`;
    const title = shape("title");
    title.textContent = figure.querySelector("figcaption span").textContent;
    const back = shape("rect", { class: "back" });
    outer.append(title, rules, back);
    const panels = all(".plot svg", figure);
    const columns = Math.min(panels.length, figure.querySelector(".of-3") ? 3 : 2);
    let [x, y, tall, wide] = [gap, gap, 0, 0];
    panels.forEach((panel, i) => {
      const [, , width, height] = panel.getAttribute("viewBox").split(" ").map(Number);
      if (i && i % columns === 0) [x, y, tall] = [gap, y + tall + gap, 0];
      const copy = panel.cloneNode(true);
      for (const part of all(".dot, .guide, .off", copy)) part.remove();
      for (const [key, place] of Object.entries({ x, y, width, height })) copy.setAttribute(key, place);
      outer.append(copy);
      [x, tall] = [x + width + gap, Math.max(tall, height)];
      wide = Math.max(wide, x);
    });
    const [width, height] = [wide, y + tall + gap];
    for (const element of [outer, back]) for (const [key, place] of Object.entries({ width, height })) element.setAttribute(key, place);
    outer.setAttribute("viewBox", `0 0 ${width} ${height}`);
    return { text: new XMLSerializer().serializeToString(outer), width, height };
  };
  for (const button of all("[data-save]")) {
    const figure = button.closest("figure");
    const kind = button.dataset.save;
    button.setAttribute("aria-label", `Save as ${kind.toUpperCase()}: ${figure.querySelector("figcaption span").textContent}`);
    button.addEventListener("click", () => {
      const file = `${figure.id}.${kind}`;
      if (kind === "csv") return save(new Blob([csv(figure.querySelector("table"))], { type: "text/csv" }), file);
      const { text, width, height } = picture(figure);
      if (kind === "svg") return save(new Blob([text], { type: "image/svg+xml" }), file);
      const image = new Image();
      image.onload = () => {
        const canvas = make("canvas", { width: 2 * width, height: 2 * height });
        canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
        canvas.toBlob((blob) => save(blob, file), "image/png");
      };
      image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    });
  }
})();
