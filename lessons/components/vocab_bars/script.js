// Some entries of one position's vocabulary row; the sampled one is marked by a word, not by colour alone.
(() => {
  const L = window.Lessons;

  // With both signs, 0 stands in the middle: negative bars lead left, positive ones right.
  const bar = (value, both) =>
    L.el(`span.bar${both ? ".both" : ""}`, {},
      L.el(`span.fill.${value < 0 ? "neg" : "pos"}`, { style: { "--w": Math.min(1, Math.abs(value)) } }));

  const entry = (item, both) =>
    L.el(`tr${item.sampled ? ".sampled" : ""}`, {},
      L.el("th", { scope: "row" },
        L.el("span.piece", { text: item.text }), L.el("span.at", { text: item.id }),
        item.sampled && L.el("span.badge", { text: L.label("sampled") })),
      L.el("td.rank", { text: item.rank ?? "" }),
      ...item.values.map((value) => L.el("td.n", {}, L.number(value))),
      L.el("td.bar-cell", { "aria-hidden": "true" }, bar(item.bar || 0, both)));

  const signed = (panel) => panel.entries.some((item) => item.bar < 0);

  L.panels.vocab_bars = (panel) =>
    L.el("div", {},
      L.scroller(
        L.el("table.vocab", {},
          L.el("thead", {}, L.el("tr", {},
            L.el("th", { scope: "col", text: L.label("token") }), L.el("th.rank", { scope: "col", text: L.label("rank") }),
            ...panel.columns.map((name) => L.el("th.n", { scope: "col", text: name })), L.el("th", { "aria-hidden": "true" }))),
          L.el("tbody", {}, ...panel.entries.map((item) => entry(item, signed(panel))))),
        panel.title,
      ),
      panel.rest && L.el("div.note", { text: panel.rest }));
})();
