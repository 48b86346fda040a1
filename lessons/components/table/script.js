// A small table; a cell may be a number, or a field to type in.
(() => {
  const L = window.Lessons;

  const field = (cell, name) => {
    const send = (change) => L.send("picture", "edit", { ...cell.edit, ...change });
    const input = L.el(`input.edit${cell.edited ? ".edited" : ""}`, {
      type: "text",
      inputmode: "decimal",
      autocomplete: "off",
      placeholder: cell.placeholder,
      "aria-label": name,
      data: { edit: `${cell.edit.row}.${cell.edit.function}`, quantity: cell.q, row: cell.r, function: cell.function },
      onchange: (event) => {
        event.target.dataset.sent = ""; // refused, the cell shows its number again: see `restore`
        send({ value: event.target.value });
      },
    });
    input.defaultValue = cell.value ?? "";
    const reset = cell.edited && L.el("button.reset", {
      type: "button", text: "↺", title: L.label("reset_cell"), "aria-label": L.label("reset_cell"), onclick: () => send({ reset: true }),
    });
    return L.el("span.field", {}, input, reset);
  };

  // A panel that is drawn again unchanged: what was sent from it was refused. What is still being typed stays.
  L.restore = (node) => node.querySelectorAll("input[data-sent]").forEach((input) => {
    input.value = input.defaultValue;
    delete input.dataset.sent;
  });

  const content = (cell, name) => {
    if (cell === null || cell === undefined) return L.masked();
    if (typeof cell !== "object") return L.el("span", { text: String(cell) });
    if (cell.edit) return field(cell, name);
    if ("html" in cell) return L.trusted("span", cell.html);
    return L.number(cell);
  };

  const line = (panel, cells, i) => {
    const row = panel.row_ids?.[i];
    return L.el("tr", { data: { line: row } }, ...cells.map((cell, j) => {
      const numeric = L.isNumber(cell) || cell?.edit;
      const flags = `${cell?.hot ? ".hot" : ""}${cell?.off ? ".off" : ""}${numeric ? ".n" : ""}`;
      const name = `${panel.columns[j]}, ${typeof cells[0] === "string" ? cells[0] : i}`;
      return L.el(j ? `td${flags}` : "th", j ? {} : { scope: "row" }, content(cell, name));
    }));
  };

  // A column of numbers has its heading above the numbers: at the right.
  const numeric = (panel, j) => panel.rows.some((cells) => L.isNumber(cells[j]) || cells[j]?.edit);

  L.panels.table = (panel) =>
    L.scroller(
      L.el("table.plain", {},
        L.el("thead", {}, L.el("tr", {}, ...panel.columns.map((name, j) =>
          L.el(`th${j && numeric(panel, j) ? ".n" : ""}`, { scope: "col", text: name })))),
        L.el("tbody", {}, ...panel.rows.map((cells, i) => line(panel, cells, i)))),
      panel.title,
    );
})();
