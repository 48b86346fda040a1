// A whole [B T] tensor as a heat grid: numbers in the page up to 1000, a canvas above.
(() => {
  const L = window.Lessons;
  const MOST = 1000;

  const cell = (panel, row, pos, text) => {
    if (text === null) return L.el("td.masked", { data: { row, pos } });
    const n = { q: panel.quantity, r: row, p: pos, v: text };
    const side = panel.diverging && L.signOf(n) < 0 ? "neg" : "pos";
    return L.el(`td.tint.${side}`, { data: { row, pos }, style: { "--t": L.strength(text, panel.max) } }, L.number(n));
  };

  const numbers = (panel) =>
    L.scroller(
      L.el("table.tensor-grid", {},
        L.el("thead", {}, L.el("tr", {}, L.el("th", { text: L.label("position") }),
          ...panel.positions.map((pos) => L.el("th", { scope: "col", text: pos })))),
        L.el("tbody", {}, ...panel.rows.map((line) =>
          L.el("tr", {}, L.el("th", { scope: "row", text: line.label }),
            ...line.cells.map((text, i) => cell(panel, line.row, panel.positions[i], text)))))),
      panel.title,
    );

  L.panels.tensor_grid = (panel) => {
    const many = panel.rows.length * panel.positions.length > MOST;
    return many ? L.canvasGrid(panel) : numbers(panel);
  };
})();
