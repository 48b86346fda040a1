// One row's tokens as columns, one line per quantity; the first column stays while the rest scrolls.
(() => {
  const L = window.Lessons;

  const head = (row, token) =>
    L.el(`th.k-${token.k || "completion"}`, { scope: "col", data: { row, pos: token.p } },
      L.el("span.piece", { text: token.text }), L.el("span.at", { text: token.p }));

  const cell = (row, token, value) => {
    const flags = value && typeof value === "object" ? value : {};
    const node = L.el(`td${flags.hot ? ".hot" : ""}${flags.off ? ".off" : ""}`, { data: L.place(row, token?.p) });
    if (value === null || value === undefined) node.classList.add("masked");
    else node.append(L.isNumber(value) ? L.number(value) : L.el("span", { text: flags.text ?? String(value) }));
    if (flags.word) node.append(L.el("span.word", { text: flags.word }));
    return node;
  };

  const line = (panel, entry) =>
    L.el("tr", {},
      L.el("th", { scope: "row" }, L.el("span", { text: entry.label }), entry.note && L.el("small", { text: entry.note })),
      ...entry.cells.map((value, i) => cell(panel.row, panel.tokens[i], value)));

  L.panels.token_table = (panel) =>
    L.scroller(
      L.el("table.token-table", {},
        L.el("thead", {}, L.el("tr", {},
          L.el("th", { scope: "col", text: L.label("token") }), ...panel.tokens.map((token) => head(panel.row, token)))),
        L.el("tbody", {}, ...panel.lines.map((entry) => line(panel, entry)))),
      panel.title,
    );
})();
