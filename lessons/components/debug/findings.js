// What is wrong, causes first; what passed and what could not be looked at are folded.
(() => {
  const L = window.Lessons;

  const token = (item) =>
    L.el("span.chip.place", { tabindex: 0, role: "button", data: { row: item.r, pos: item.p }, "aria-label": `${item.label} ${item.p} ${item.text}` },
      L.el("span.piece", { text: item.text }), L.el("span.sub", { text: `${item.label} @${item.p}` }));

  const more = (shown, all) => (all > shown ? L.el("span.note", { text: L.label("debug_more").replace("{count}", all - shown) }) : null);

  const named = (item) => [
    item.all_rows && !item.all_tokens ? L.el("p.places", {}, L.el("span.what", { text: L.label("debug_rows_named") }),
      ...item.rows.map((label) => L.el("span.row-name", { text: label })), more(item.rows.length, item.all_rows)) : null,
    item.all_tokens ? L.el("div.places", {}, L.el("span.what", { text: L.label("debug_tokens_named") }),
      ...item.tokens.map(token), more(item.tokens.length, item.all_tokens)) : null,
  ];

  const value = (text, kind, item, name) =>
    L.el(`td.${kind}`, {}, text ? L.el("span", { text, data: { quantity: `${kind}.${name}`, finding: item.n } }) : L.el("span.none", { text: "–" }));

  const numbers = (item) =>
    item.numbers.length
      ? L.scroller(L.el("table.numbers", {},
        L.el("thead", {}, L.el("tr", {}, L.el("th", { scope: "col", text: L.label("debug_quantity_name") }), L.el("th", { scope: "col", text: L.label("debug_found") }), L.el("th", { scope: "col", text: L.label("debug_expected") }))),
        L.el("tbody", {}, ...item.numbers.map((line) => L.el("tr", {}, L.el("th", { scope: "row" }, L.el("code", { text: line.name })),
          value(line.found, "found", item, line.name), value(line.expected, "expected", item, line.name))))), item.check)
      : null;

  const into = (filter) => {
    L.debug("choose", { filter });
    document.getElementById("debug-grid")?.scrollIntoView();
  };

  const finding = (item) => {
    const head = L.el("div.finding-head", {}, L.el("span.severity", {}, L.el("span.sign", { text: item.sign, "aria-hidden": "true" }), item.word),
      L.el("h4", {}, L.el("span.n", { text: `${item.n}. ` }), item.message));
    // A consequence, and what is right, is folded: the cause is what one should read.
    const label = item.by ? L.label("debug_explained_by").replace("{number}", item.by) : L.label("debug_details");
    return L.el(`li.finding.${item.severity}`, { data: { check: item.check, status: item.severity } }, head,
      item.by || item.severity === "info" ? L.el("details.fold", {}, L.el("summary", { text: label }), body(item)) : body(item));
  };

  const body = (item) =>
      L.el("div.finding-body", {},
        numbers(item), ...named(item),
        item.fix && L.el("p.fix", {}, L.el("b", { text: `${L.label("debug_fix")} ` }), item.fix),
        item.explains ? L.el("p.note", { text: item.explains }) : null,
        L.el("div.finding-acts", {},
          item.href ? L.el("a.act", { href: L.withTheme(item.href), text: item.lesson, data: { show: item.check } }) : null,
          item.filter && L.el("button.act.quiet", { type: "button", text: L.label("debug_in_grid"), data: { focus: `grid-${item.n}` }, onclick: () => into(item.filter) }),
          L.el("code.check-name", { text: item.check, title: item.label })));

  const folded = (label, items, line) =>
    items.length ? L.el("details.fold", {}, L.el("summary", {}, label, L.el("span.count", { text: items.length })), L.el("ul.checks", {}, ...items.map(line))) : null;

  const passed = (item) =>
    L.el("li", { data: { check: item.check, status: "pass" } }, L.el("span.sign", { text: "✓ ", "aria-hidden": "true" }), L.el("code", { text: item.check }), item.label && L.el("span.note", { text: item.label }));

  const skipped = (item) =>
    L.el("li", { data: { check: item.check, status: "skipped" } }, L.el("span.sign", { text: "– ", "aria-hidden": "true" }), L.el("code", { text: item.check }),
      L.el("span.note", { text: `${L.label("debug_needs")} ${item.needs}${item.label ? ` · ${item.label}` : ""}` }));

  L.panels.finding_list = (panel) =>
    L.el("div.findings", {}, L.el(`p.verdict.${panel.worst}`, { role: "status", text: panel.verdict, data: { verdict: panel.worst } }),
      panel.findings.length ? L.el("ol.finding-list", {}, ...panel.findings.map(finding)) : null,
      folded(L.label("debug_passed"), panel.passed, passed), folded(L.label("debug_skipped"), panel.skipped, skipped));
})();
