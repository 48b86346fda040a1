// Every preset on this batch. Sorting, filtering and unfolding happen here; Python hears of it for the address.
(() => {
  const L = window.Lessons;
  let live = null; // the table on the page: {panel, state, ...nodes}

  // ---- which rows, in which order ------------------------------------------------------------------------------------
  const seen = ({ panel, state }) => {
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (row) => `${row.name} ${row.trainer} ${row.version} ${row.summary} ${row.needs || ""}`.toLowerCase();
    const all = state.all || words.length > 0 || state.trainer;
    return panel.rows.filter((row) => (all || row.default || row.name === panel.a || row.name === panel.b)
      && (!state.trainer || row.trainer === state.trainer) && words.every((word) => text(row).includes(word)));
  };

  const sorted = (table, rows) => {
    const falling = table.state.sort.startsWith("-");
    const name = table.state.sort.replace("-", "");
    const column = table.panel.columns.findIndex((item) => item.name === name);
    const key = (row) => (name === "preset" ? row.name : name === "version" ? row.version : row.cells[column]?.x ?? null);
    const compare = (one, other) => {
      if (one === null || other === null) return (one === null) - (other === null); // what has no number comes last
      return (typeof one === "string" ? one.localeCompare(other) : one - other) * (falling ? -1 : 1);
    };
    return name ? [...rows].sort((one, other) => compare(key(one), key(other))) : rows;
  };

  // ---- one row -----------------------------------------------------------------------------------------------------------
  const side = (panel, row, letter) =>
    L.el(`button.letter.${letter}${panel[letter] === row.name ? ".current" : ""}`, {
      type: "button", text: letter.toUpperCase(), "aria-pressed": panel[letter] === row.name ? "true" : "false",
      title: `${L.label("compare_as")} ${letter.toUpperCase()}`, "aria-label": `${row.name}: ${L.label("compare_as")} ${letter.toUpperCase()}`,
      data: { focus: `as-${letter}-${row.name}` }, onclick: () => L.compare("choose", { [letter]: row.name }),
    });

  const line = (table, row) => {
    const open = table.state.open === row.name;
    const cells = row.needs
      ? [L.el("td.needs", { colspan: table.panel.columns.length, text: row.needs })]
      : table.panel.columns.map((column, i) => L.el("td.n", {}, L.figure(column.name, row.cells[i], { preset: row.name })));
    const node = L.el(`tr${open ? ".open" : ""}`, { data: { preset: row.name } },
      L.el("th", { scope: "row" },
        L.el("div.who", {},
          L.el("button.unfold", {
            type: "button", "aria-expanded": open ? "true" : "false", data: { focus: `unfold-${row.name}` },
            title: L.label("compare_unfold"), onclick: () => L.unfold(row.name),
          }, L.el("span.arrow", { text: open ? "▾" : "▸", "aria-hidden": "true" }), L.el("span.name", { text: row.name })),
          L.el("span.version", { text: row.version }))),
      L.el("td.as", {}, side(table.panel, row, "a"), side(table.panel, row, "b")), ...cells);
    return open ? [node, unfolded(table, row)] : [node];
  };

  const metric = (item) =>
    L.el("tr", {}, L.el("th", { scope: "row" }, L.el("code", { text: item.name })), L.el("td.n", { text: item.value }),
      L.el("td", {}, L.el("span", { text: item.honest_name }), " ", L.el("b", { text: item.honest_value ?? "–" })), L.el("td.note", { text: item.note }));

  const logged = (items) =>
    L.el("div.logged", {}, L.el("h4", { text: L.label("compare_logged") }),
      L.scroller(L.el("table", {},
        L.el("thead", {}, L.el("tr", {}, ...["compare_logs_as", "compare_value", "compare_honest", "compare_note"].map((key, i) =>
          L.el(`th${i === 1 ? ".n" : ""}`, { scope: "col", text: L.label(key) })))),
        L.el("tbody", {}, ...items.map(metric))), L.label("compare_logged")));

  const unfolded = (table, row) => {
    const said = table.details?.preset === row.name ? table.details : null;
    return L.el("tr.unfolded", {}, L.el("td", { colspan: table.panel.columns.length + 2 }, L.el("div.about", {},
      L.el("p.summary", { text: row.summary }),
      said?.quirk && L.el("p.quirk", { text: said.quirk }),
      said?.source && L.el("p.note", {}, L.el("b", { text: `${L.label("compare_source")} ` }), said.source),
      said?.logged.length ? logged(said.logged) : null)));
  };

  // ---- the whole ---------------------------------------------------------------------------------------------------------
  const heading = (table, name, label, numeric) => {
    const [here, falling] = [table.state.sort.replace("-", "") === name, table.state.sort.startsWith("-")];
    const turn = () => change({ sort: here ? (falling ? name : `-${name}`) : numeric ? `-${name}` : name });
    return L.el(`th${numeric ? ".n" : ""}`, { scope: "col", "aria-sort": here ? (falling ? "descending" : "ascending") : "none" },
      L.el("button.sort", { type: "button", data: { focus: `sort-${name}`, sort: name }, onclick: turn }, L.el("span", { text: label }),
        L.el("span.way", { text: here ? (falling ? "▼" : "▲") : "", "aria-hidden": "true" })));
  };

  const fill = (table) => {
    const rows = seen(table);
    const focus = table.grid.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    table.grid.replaceChildren(
      L.el("thead", {}, L.el("tr", {}, heading(table, "preset", L.label("compare_preset"), false), L.el("th.as", { scope: "col", text: L.label("compare_as") }),
        ...table.panel.columns.map((column) => heading(table, column.name, column.label, true)))),
      L.el("tbody", {}, ...sorted(table, rows).flatMap((row) => line(table, row))));
    table.count.textContent = rows.length ? L.label("compare_count").replace("{shown}", rows.length).replace("{all}", table.panel.rows.length)
      : L.label("compare_none");
    table.all.checked = table.state.all;
    table.trainer.value = table.state.trainer;
    if (table.filter.value !== table.state.filter) table.filter.value = table.state.filter;
    table.strip.redraw();
    if (focus) table.grid.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  };

  let typing = null;
  const change = (news, wait = 0) => {
    Object.assign(live.state, news);
    fill(live);
    clearTimeout(typing);
    typing = setTimeout(() => L.send("compare", "table", { ...live.state }), wait);
  };

  L.unfold = (name) => {
    if (!live) return;
    change({ open: live.state.open === name ? "" : name });
  };

  L.tableState = (state, fresh) => {
    if (!live) return;
    if (fresh || !live.started) Object.assign(live.state, state);
    live.started = true;
    fill(live);
  };

  L.tableDetails = (details) => {
    if (!live || JSON.stringify(live.details) === JSON.stringify(details)) return;
    live.details = details;
    fill(live);
  };

  L.panels.preset_table = (panel) => {
    const before = live;
    const table = { panel, state: before?.state || { sort: "-loss", filter: "", trainer: "", all: false, open: "" }, started: before?.started, details: null };
    table.grid = L.el("table.preset-table");
    table.count = L.el("span.count", { role: "status" });
    table.filter = L.el("input.filter", {
      type: "search", placeholder: L.label("compare_filter"), "aria-label": L.label("compare_filter"), maxlength: 100, data: { focus: "filter" },
      oninput: (event) => change({ filter: event.target.value }, 350),
    });
    table.trainer = L.el("select", {
      "aria-label": L.label("compare_trainer"), data: { focus: "trainer" }, onchange: (event) => change({ trainer: event.target.value }),
    }, L.el("option", { value: "", text: L.label("compare_all_trainers") }), ...panel.trainers.map((name) => L.el("option", { value: name, text: name })));
    table.all = L.el("input", { type: "checkbox", data: { focus: "all" }, onchange: (event) => change({ all: event.target.checked }) });
    table.strip = L.lossStrip(panel, () => seen(table));
    live = table;
    return L.el("div.presets", {}, L.el("div.controls", {}, table.filter, table.trainer,
      L.el("label.check-all", {}, table.all, L.el("span", { text: L.label("compare_all").replace("{all}", panel.rows.length) })), table.count,
      L.el("button.act.quiet", { type: "button", text: L.label("compare_csv"), data: { focus: "csv" }, onclick: () => L.send("compare", "csv", {}) })),
    table.strip, L.scroller(table.grid, L.label("compare_preset")));
  };
})();
