// Rows of log-probs over a few vocabulary columns; the index column [T,1] picks the ringed cell of each row.
(() => {
  const L = window.Lessons;

  const line = (panel, row, i) =>
    L.el("tr", {},
      L.el("th", { scope: "row", data: L.place(row.index?.r, row.index?.p) }, L.el("span.piece", { text: row.label })),
      L.el("td.index.n", {}, L.number(row.index), L.el("span.to", { text: "→", "aria-hidden": "true" })),
      ...panel.cells[i].map((cell, j) => {
        const picked = panel.picked[i] === j;
        return L.el(`td.n${picked ? ".picked" : ""}`, {}, cell === null ? L.el("span.gap", { text: "·" }) : L.number(cell));
      }));

  L.panels.matrix = (panel) =>
    L.scroller(
      L.el("table.matrix", {},
        L.el("thead", {}, L.el("tr", {},
          L.el("th", { scope: "col", text: L.label("position") }), L.el("th.n.index", { scope: "col", text: L.label("index") }),
          ...panel.columns.map((column) => L.el("th.n", { scope: "col" },
            L.el("span.piece", { text: column.text }), L.el("span.at", { text: column.id }))))),
        L.el("tbody", {}, ...panel.rows.map((row, i) => line(panel, row, i)))),
      panel.title,
    );
})();
