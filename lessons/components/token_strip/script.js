// Rows of tokens as chips that wrap onto lines.
(() => {
  const L = window.Lessons;

  const tint = (value) => (value === null || value === undefined ? {} : { "--t": Math.min(1, Math.abs(value)) });
  const tintClass = (value) => (value === null || value === undefined ? "" : value < 0 ? ".tint.neg" : ".tint.pos");

  const chip = (row, token) =>
    L.el(
      `span.chip.k-${token.k || "completion"}${tintClass(token.tint)}`,
      {
        data: { row, pos: token.p },
        style: tint(token.tint),
        tabindex: 0,
        role: "button",
        "aria-label": `${token.text} ${token.id ?? ""}`,
      },
      L.el("span.piece", { text: token.text }),
      token.mark && L.el(`span.mark.${token.mark === "▼" ? "down" : "up"}`, { text: token.mark }),
      token.sub !== null && token.sub !== undefined
        ? L.el("span.sub", {}, L.isNumber(token.sub) ? L.number(token.sub) : L.el("span", { text: token.sub }))
        : L.el("span.sub", { text: token.id ?? "" }),
    );

  const row = (line) =>
    L.el(
      "div.strip-row",
      {},
      L.el(
        "div.strip-head",
        {},
        L.el("span.strip-label", { text: line.label }),
        line.badge && L.el("span.badge", { text: line.badge }),
      ),
      L.el("div.strip-body", {},
        L.el("div.chips", {}, ...line.tokens.map((token) => chip(line.row, token))),
        line.note && L.el("div.note", { text: line.note })),
    );

  const legend = (entries) =>
    L.el("div.legend", {}, ...entries.map((entry) =>
      L.el("span.legend-entry", {},
        L.el(`span.swatch.chip.k-${entry.k || "completion"}${tintClass(entry.tint)}`, { style: tint(entry.tint) }),
        L.el("span", { text: entry.label }))));

  L.panels.token_strip = (panel) =>
    L.el("div.token-strip", {}, ...panel.rows.map(row), panel.legend?.length ? legend(panel.legend) : null);
})();
