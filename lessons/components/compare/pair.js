// A and B, and the number that somebody's trainer printed.
(() => {
  const L = window.Lessons;

  const list = (panel, side) => {
    const trainers = [...new Set(panel.presets.map((row) => row.trainer))];
    const option = (row) => L.el("option", { value: row.name, text: `${row.name}${row.version ? ` · ${row.version}` : ""}`, selected: row.name === panel[side] });
    const choice = L.el("select", {
      "aria-label": side.toUpperCase(), data: { side, focus: `pair-${side}` },
      onchange: (event) => L.compare("choose", { [side]: event.target.value }),
    }, ...trainers.map((trainer) =>
      L.el("optgroup", { label: trainer }, ...panel.presets.filter((row) => row.trainer === trainer).map(option))));
    return L.el("label.side", {}, L.el(`span.letter.${side}`, { text: side.toUpperCase() }), choice);
  };

  L.panels.preset_pair = (panel) =>
    L.el("div.preset-pair", {},
      L.el("div.sides", {}, list(panel, "a"),
        L.el("button.act.quiet.swap", {
          type: "button", text: "⇄", title: L.label("compare_swap"), "aria-label": L.label("compare_swap"), data: { focus: "swap" },
          onclick: () => L.compare("swap", {}),
        }), list(panel, "b")),
      ...panel.needs.map((text) => L.el("p.lacking", { role: "status", text })));

  const match = (item) =>
    L.el("tr", { data: { match: item.preset } },
      L.el("th", { scope: "row" }, L.el("code", { text: item.preset }), L.el("span.version", { text: `${item.trainer} ${item.version}` })),
      L.el("td", { text: item.how }),
      L.el("td.n", {}, L.figure("printed_value", item, { preset: item.preset })),
      L.el("td.n", {}, item.exact ? L.el("span.exact", { text: "=" })
        : L.el("span", {}, `${L.label("printed_gap")} `, L.figure("printed_gap", { v: item.gap }, { preset: item.preset }))));

  L.panels.printed_loss = (panel) => {
    const field = L.el("input.printed", {
      type: "text", inputmode: "decimal", autocomplete: "off", placeholder: "0.447", value: panel.value, maxlength: 40,
      "aria-label": L.label("printed_label"), data: { focus: "printed" },
    });
    const find = (event) => {
      event.preventDefault();
      L.compare("choose", { printed: field.value });
    };
    return L.el("div.printed-loss", {},
      L.el("form", { onsubmit: find }, L.el("label", {}, L.el("span", { text: L.label("printed_label") }), field),
        L.el("button.act", { type: "submit", text: L.label("printed_find"), data: { focus: "find" } })),
      panel.from_file && L.withCode("p.note", L.label("printed_from_file")),
      panel.sentence && L.el("p.verdict", { role: "status", text: panel.sentence }),
      panel.matches.length ? L.scroller(L.el("table.matches", {}, L.el("tbody", {}, ...panel.matches.map(match))), L.label("printed_label")) : null,
      panel.more && L.el("p.note", { text: panel.more }));
  };
})();
