// Every token of a batch as a cell of one of a few kinds. Hover and click are those of every grid.
(() => {
  const L = window.Lessons;
  const MOST = 1000;
  const TONES = {
    both_up: ["--pos", 0.5], both_down: ["--neg", 0.5], opposite: ["--bad", 0.85], only_first: ["--accent", 0.55], only_second: ["--warn", 0.55],
    neither: ["--line-strong", 0.45], lit: ["--accent", 1], dark: ["--line-strong", 0.45], masked: ["--line", 0.35],
  };
  const color = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();

  const legend = (panel) =>
    L.el("ul.map-legend", {}, ...panel.classes.map((item) =>
      L.el(`li.m-${item.name}`, { data: { direction: item.name } }, ...item.glyphs.map((text) => L.el("span.cell", { text, "aria-hidden": "true" })),
        L.el("b", { text: item.count, data: { quantity: "direction_count", direction: item.name } }), L.el("span", { text: item.label }))));

  // code -> its class and glyph
  const meanings = (panel) => {
    const small = [["y", { name: "lit" }], ["n", { name: "dark" }], [".", { name: "masked" }]];
    return new Map([...small, ...panel.classes.flatMap((item) => [...item.codes].map((code, i) => [code, { ...item, glyph: item.glyphs[i] }]))]);
  };

  const cells = (panel) => {
    const of = meanings(panel);
    return L.scroller(L.el("table.token-map", {},
      L.el("thead", {}, L.el("tr", {}, L.el("th", { text: L.label("position") }), ...panel.positions.map((pos) => L.el("th", { scope: "col", text: pos })))),
      L.el("tbody", {}, ...panel.rows.map((line) => L.el("tr", {}, L.el("th", { scope: "row", text: line.label }),
        ...[...line.codes].map((code, i) => code === "." ? L.el("td.masked")
          : L.el(`td.m-${of.get(code).name}`, { data: { row: line.row, pos: panel.positions[i], direction: of.get(code).name }, title: of.get(code).label, text: of.get(code).glyph }))))),
    ), panel.title);
  };

  const painted = (panel) => {
    const canvas = L.el("canvas.map-canvas", { role: "img", "aria-label": panel.title || `${L.label("map_lit")}, ${L.label("map_dark")}` });
    const of = meanings(panel);
    let [size, tall, hovered] = [10, 10, null];
    const paint = () => {
      if (!canvas.isConnected) return;
      const scale = window.devicePixelRatio || 1;
      const room = canvas.parentElement.clientWidth;
      size = Math.max(3, Math.min(panel.small ? 12 : 18, Math.floor(room / panel.positions.length)));
      tall = Math.max(size, panel.small ? 6 : 14);
      const [wide, high] = [size * panel.positions.length, tall * panel.rows.length];
      Object.assign(canvas, { width: wide * scale, height: high * scale });
      Object.assign(canvas.style, { width: `${wide}px`, height: `${high}px` });
      const pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      panel.rows.forEach((line, i) => [...line.codes].forEach((code, j) => {
        const [tone, alpha] = TONES[of.get(code).name];
        pen.globalAlpha = alpha;
        pen.fillStyle = color(tone);
        pen.fillRect(j * size, i * tall, size - (size > 4 ? 1 : 0), tall - 1);
      }));
      pen.globalAlpha = 1;
      for (const [place, stroke] of [[L.selected, "--ink"], [hovered, "--hover"]]) {
        const [i, j] = [panel.rows.findIndex((line) => line.row === place?.row), panel.positions.indexOf(place?.pos)];
        if (i < 0 || j < 0) continue;
        pen.strokeStyle = color(stroke);
        pen.lineWidth = 2;
        pen.strokeRect(j * size, i * tall, size - 1, tall - 1);
      }
    };
    const under = (event) => {
      const box = canvas.getBoundingClientRect();
      const line = panel.rows[Math.floor((event.clientY - box.top) / tall)];
      const pos = panel.positions[Math.floor((event.clientX - box.left) / size)];
      return line && pos !== undefined ? { row: line.row, pos } : null;
    };
    canvas.addEventListener("pointermove", (event) => L.hover(under(event)));
    canvas.addEventListener("pointerleave", () => L.hover(null));
    canvas.addEventListener("click", (event) => {
      const place = under(event);
      if (place) L.choose(place.row, place.pos);
    });
    L.listen(canvas, "lessons:hover", (event) => {
      hovered = event.detail;
      paint();
    });
    L.listen(canvas, "lessons:select", paint);
    L.listen(canvas, "lessons:theme", paint);
    const frame = L.scroller(canvas, panel.title || L.label("map_lit"));
    new ResizeObserver(() => requestAnimationFrame(paint)).observe(frame);
    return frame;
  };

  L.panels.token_map = (panel) => {
    if (panel.small) return painted(panel);
    const many = panel.rows.length * panel.positions.length > MOST;
    return L.el("div.map", {}, panel.classes.length ? legend(panel) : null, many ? painted(panel) : cells(panel));
  };
})();
