// Rows of tokens as chips that wrap onto lines, or one column per position, so that rows can be compared.
(() => {
  const L = window.Lessons;

  const tint = (value) => (value === null || value === undefined ? {} : { "--t": Math.min(1, Math.abs(value)) });
  const tintClass = (value) => (value === null || value === undefined ? "" : value < 0 ? ".tint.neg" : ".tint.pos");

  const below = (token) =>
    token.sub !== null && token.sub !== undefined
      ? L.el("span.sub", {}, L.isNumber(token.sub) ? L.number(token.sub) : L.el("span", { text: token.sub }))
      : L.el("span.sub", { text: token.id ?? "" });

  const chip = (row, token, band = false) =>
    L.el(
      `span.chip.k-${token.k || "completion"}${tintClass(token.tint)}`,
      {
        data: { row, pos: token.p },
        style: tint(token.tint),
        tabindex: 0,
        role: "button",
        "aria-label": `${token.text} ${token.id ?? ""}`,
      },
      L.el("span.piece", { text: band && /pad|cut/.test(token.k) ? "" : token.text }),
      token.mark && L.el(`span.mark.${token.mark === "▼" ? "down" : "up"}`, { text: token.mark }),
      band ? null : below(token),
    );

  const head = (line) =>
    L.el("div.strip-head", {},
      L.el("span.strip-label", { text: line.label }),
      line.badge && L.el("span.badge", { text: line.badge }));

  const row = (line) =>
    L.el("div.strip-row", {}, head(line),
      L.el("div.strip-body", {},
        L.el("div.chips", {}, ...line.tokens.map((token) => chip(line.row, token))),
        line.note && L.el("div.note", { text: line.note })),
    );

  const legend = (entries) =>
    L.el("div.legend", {}, ...entries.map((entry) =>
      L.el("span.legend-entry", {},
        L.el(`span.swatch.chip.k-${entry.k || "completion"}${tintClass(entry.tint)}`, { style: tint(entry.tint) }),
        L.el("span", { text: entry.label }))));

  const aligned = (panel) => {
    const columns = [...new Set(panel.rows.flatMap((line) => line.tokens.map((token) => token.p)))].sort((a, b) => a - b);
    const cells = (line) => columns.map((pos) => line.tokens.find((token) => token.p === pos));
    return L.scroller(
      L.el(`table.aligned.${panel.aligned}`, {},
        L.el("thead", {}, L.el("tr", {}, L.el("th", { scope: "col", text: L.label("position") }),
          ...columns.map((pos) => L.el("th", { scope: "col", text: pos })))),
        L.el("tbody", {}, ...panel.rows.map((line) => L.el("tr", {}, L.el("th", { scope: "row" }, head(line)),
          ...cells(line).map((token) => L.el("td", {}, token ? chip(line.row, token, panel.aligned === "bands") : null)))))),
      panel.title);
  };

  L.panels.token_strip = (panel) =>
    L.el("div.token-strip", {}, ...(panel.aligned ? [aligned(panel)] : panel.rows.map(row)),
      panel.legend?.length ? legend(panel.legend) : null);
})();
