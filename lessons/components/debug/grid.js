// Any quantity over the batch: a window of it in numbers, all of it as a picture, and everything about the selected token.
(() => {
  const L = window.Lessons;
  const color = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
  const send = (data) => L.debug("choose", data);

  // For drawing only: how far from what changes nothing, and on which side.
  const valueOf = (text) => Number(text.replace(/−/g, "-").replace(/∞/g, "Infinity"));
  const tint = (panel, text) => {
    const value = panel.log ? Math.log(valueOf(text)) : valueOf(text);
    if (!Number.isFinite(value)) return ["odd", 1];
    return [value < 0 ? "neg" : "pos", panel.max > 0 ? Math.min(1, Math.abs(value) / panel.max) : 0];
  };

  const cell = (panel, row, pos, item) => {
    const [side, strength] = item.v === null ? ["", 0] : tint(panel, item.v);
    return L.el(`td${item.v === null ? ".masked" : `.tint.${side}`}${item.f ? ".named" : ""}${item.t === undefined ? ".gone" : ""}`, {
      data: { row, pos }, style: { "--t": strength }, tabindex: -1, "aria-label": item.v === null ? `${item.t ?? ""} ${L.label("masked")}` : null,
    }, item.v === null ? null : L.number({ q: panel.quantity, r: row, p: pos, v: item.v }), item.t === undefined ? null : L.el("span.piece", { text: item.t }),
    item.f ? L.el("span.flag", { text: "▪", title: L.label("debug_named"), "aria-label": L.label("debug_named") }) : null);
  };

  const heading = (line) =>
    L.el("th", { scope: "row" }, L.el("span.row-name", { text: line.label }),
      line.named ? L.el("span.badge.found", { text: `${line.named} ✕`, title: L.label("debug_named") }) : null,
      L.el("span.row-facts", {}, ...line.facts.map((fact) => L.el("span", {}, `${L.label(`debug_fact_${fact.name}`)} `, L.number(fact)))));

  // One stop for the Tab key; the arrows move inside, Enter selects.
  const keys = (table) => (event) => {
    const here = event.target.closest("td");
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!here) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      event.stopPropagation();
      return L.choose(Number(here.dataset.row), Number(here.dataset.pos));
    }
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const lines = [...table.tBodies[0].rows];
    const line = lines[lines.indexOf(here.parentElement) + step[0]];
    const next = line?.cells[here.cellIndex + step[1]];
    if (next?.tagName === "TD") next.focus();
  };

  const table = (panel) => {
    const node = L.el("table.tensor-grid.batch-grid", { role: "grid" },
      L.el("thead", {}, L.el("tr", {}, L.el("th", { text: L.label("position") }), ...panel.positions.map((pos) => L.el("th", { scope: "col", text: pos })))),
      L.el("tbody", {}, ...panel.rows.map((line) => L.el("tr", {}, heading(line), ...line.cells.map((item, i) => cell(panel, line.row, panel.positions[i], item))))));
    const first = node.querySelector("tbody td");
    if (first) first.tabIndex = 0;
    node.addEventListener("keydown", keys(node));
    return L.scroller(node, L.label("debug_quantity"));
  };

  const chooser = (label, focus, value, items, act) =>
    L.el("label.control", {}, L.el("span", { text: label }), L.el("select", { data: { focus }, onchange: (event) => act(event.target.value) },
      ...items.map((item) => L.el("option", { value: item.name, text: item.label, selected: item.name === value }))));

  const controls = (panel) => {
    const falling = panel.sort.startsWith("-");
    const sort = panel.sort.replace("-", "");
    return L.el("div.grid-controls", {},
      chooser(L.label("debug_quantity"), "show", panel.quantity, panel.quantities, (show) => send({ show })),
      chooser(L.label("debug_sort"), "sort", sort, panel.sorts, (name) => send({ sort: name === "row" ? name : `-${name}` })),
      L.el("button.act.quiet.way", {
        type: "button", text: falling ? "▼" : "▲", title: L.label(falling ? "debug_falling" : "debug_rising"), "aria-label": L.label(falling ? "debug_falling" : "debug_rising"),
        data: { focus: "way" }, onclick: () => send({ sort: falling ? sort : `-${sort}` }),
      }),
      chooser(L.label("debug_filter"), "filter", panel.filter, panel.filters, (filter) => send({ filter })));
  };

  const move = (panel, key, name, by, all, size) => {
    const at = panel[name] + by * size;
    const off = by < 0 ? panel[name] <= 0 : panel[name] + size >= all;
    return L.el("button.act.quiet.move", { type: "button", text: { up: "↑", down: "↓", left: "←", right: "→" }[key], disabled: off, "aria-label": L.label(`debug_${key}`), title: L.label(`debug_${key}`),
      data: { focus: key }, onclick: () => send({ [name]: Math.max(0, Math.min(at, all - size)) }) });
  };

  const windowLine = (panel) => {
    const [high, wide] = panel.step;
    const texts = { first: panel.top + 1, last: panel.top + panel.rows.length, rows: panel.all_rows, from: panel.left + 1, to: panel.left + panel.positions.length, columns: panel.all_columns };
    const said = Object.entries(texts).reduce((text, [name, value]) => text.replace(`{${name}}`, value), L.label("debug_window"));
    const moves = [
      ...(panel.all_rows > high ? [move(panel, "up", "top", -1, panel.all_rows, high), move(panel, "down", "top", 1, panel.all_rows, high)] : []),
      ...(panel.all_columns > wide ? [move(panel, "left", "left", -1, panel.all_columns, wide), move(panel, "right", "left", 1, panel.all_columns, wide)] : []),
    ];
    return L.el("div.window-line", {}, L.el("span.note", { role: "status", text: said }), ...moves);
  };

  // ---- the whole batch in one picture -----------------------------------------------------------------------------------
  const overview = (panel) => {
    const { lines } = panel.overview;
    const canvas = L.el("canvas.overview", { role: "img", "aria-label": L.label("debug_overview_alt") });
    const [rows, columns] = [lines.length, lines[0].length];
    const tall = Math.max(3, Math.min(10, Math.floor(180 / rows)));
    const paint = () => {
      if (!canvas.isConnected) return;
      const [scale, wide, high] = [window.devicePixelRatio || 1, canvas.parentElement.clientWidth, tall * rows];
      Object.assign(canvas, { width: wide * scale, height: high * scale });
      Object.assign(canvas.style, { width: `${wide}px`, height: `${high}px` });
      const pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      const size = wide / columns;
      lines.forEach((line, i) => [...line].forEach((code, j) => {
        if (code === ".") return;
        pen.globalAlpha = code === "!" ? 1 : 0.08 + (0.9 * Number(code)) / 9;
        pen.fillStyle = color(code === "!" ? "--bad" : "--accent");
        pen.fillRect(j * size, i * tall, Math.max(1, size - 0.5), tall - 0.5);
      }));
      pen.globalAlpha = 1;
      pen.strokeStyle = color("--ink");
      pen.lineWidth = 2;
      const at = (from, all, room) => (from / all) * room;
      pen.strokeRect(at(panel.left, panel.all_columns, wide) + 1, at(panel.top, panel.all_rows, high) + 1,
        Math.max(6, at(panel.positions.length, panel.all_columns, wide) - 2), Math.max(6, at(panel.rows.length, panel.all_rows, high) - 2));
    };
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect();
      const place = (part, all, size) => Math.max(0, Math.min(Math.floor(part * all - size / 2), all - size));
      send({ top: place((event.clientY - box.top) / box.height, panel.all_rows, panel.rows.length),
        left: place((event.clientX - box.left) / box.width, panel.all_columns, panel.positions.length) });
    });
    L.listen(canvas, "lessons:theme", paint);
    const frame = L.el("div.overview-frame", {}, canvas);
    new ResizeObserver(() => requestAnimationFrame(paint)).observe(frame);
    return L.el("figure.overview-part", {}, frame, L.el("figcaption.note", { text: L.label(panel.overview.log ? "debug_overview_log" : "debug_overview").replace("{peak}", panel.overview.peak) }));
  };

  L.panels.batch_grid = (panel) =>
    L.el("div.grid-part", {}, controls(panel), L.el("p.note", { text: panel.caption }),
      panel.overview ? overview(panel) : null,
      panel.rows.length ? table(panel) : L.el("p.empty", { text: L.label("debug_no_rows") }),
      windowLine(panel),
      panel.missing.length ? L.el("p.note", { text: `${L.label("debug_missing")} ${panel.missing.join(", ")}` }) : null);

  L.panels.token_card = (panel) =>
    L.el("div.token-card", {},
      L.el("div.token-head", {}, L.el("span.chip.big", {}, L.el("span.piece", { text: panel.text })),
        L.el("p", {}, L.el("b", { text: panel.label }), ` · ${L.label("position")} ${panel.pos} · ${panel.said} `,
          ...panel.facts.flatMap((fact) => [L.el("span.note", {}, `${L.label(`debug_fact_${fact.name}`)} `, L.number(fact)), " "]))),
      L.el("dl.token-numbers.plain", {}, ...panel.lines.map((line) => L.el("div", {}, L.el("dt", { text: line.label, title: line.name }), L.el("dd", {}, L.number(line.n))))));

  // ---- what a trainer would print ------------------------------------------------------------------------------------------
  const line = (item) =>
    L.el("tr", { data: { logged: item.name } }, L.el("th", { scope: "row" }, L.el("code", { text: item.name })),
      L.el("td.n", {}, L.el("b", { text: item.value })), L.el("td.n", {}, item.reported ? L.el("b", { text: item.reported }) : L.el("span.none", { text: "–" })),
      L.el("td", {}, L.el("span", { text: `${item.honest_name} ` }), item.honest_value === null ? null : L.el("b", { text: item.honest_value })), L.el("td.note", { text: item.note }));

  L.panels.trainer_prints = (panel) => {
    const trainers = [...new Set(panel.presets.map((row) => row.trainer))];
    const option = (row) => L.el("option", { value: row.name, text: `${row.name}${row.version ? ` · ${row.version}` : ""}`, selected: row.name === panel.preset });
    const choice = L.el("select", { data: { focus: "as" }, onchange: (event) => send({ as: event.target.value }) },
      ...trainers.map((trainer) => L.el("optgroup", { label: trainer }, ...panel.presets.filter((row) => row.trainer === trainer).map(option))));
    return L.el("div.prints", {},
      L.el("div.grid-controls", {}, L.el("label.control", {}, L.el("span", { text: L.label("debug_as") }), choice),
        panel.own ? null : L.el("button.act.quiet", { type: "button", text: L.label("debug_own"), data: { focus: "own" }, onclick: () => send({ as: "" }) })),
      L.el("p.note", { text: panel.said }), panel.quirk ? L.el("p.note", { text: panel.quirk }) : null,
      panel.needs ? L.el("p.lacking", { role: "status", text: panel.needs }) : null,
      panel.lines.length ? L.scroller(L.el("table.logged-numbers", {},
        L.el("thead", {}, L.el("tr", {}, ...["compare_logs_as", "compare_value", "debug_file_says", "compare_honest", "compare_note"].map((key, i) => L.el(`th${i === 1 || i === 2 ? ".n" : ""}`, { scope: "col", text: L.label(key) })))),
        L.el("tbody", {}, ...panel.lines.map(line))), L.label("compare_logged")) : null,
      panel.derived.length ? L.el("details.fold", {}, L.el("summary", {}, L.label("debug_derived"), L.el("span.count", { text: panel.derived.length })),
        L.el("ul.remarks", {}, ...panel.derived.map((text) => L.el("li", { text })))) : null);
  };
})();
