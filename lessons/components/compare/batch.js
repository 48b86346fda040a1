// Which batch is compared: the step's update, or a file.
(() => {
  const L = window.Lessons;

  const updates = (panel) =>
    panel.updates.length > 1
      ? L.el("div.updates", { role: "group", "aria-label": L.label("which_update"), title: L.label("update_info") },
        L.el("span.which", { text: L.label("which_update") }), ...panel.updates.map((item) =>
          L.el(`button.update${item.current ? ".current" : ""}`, {
            type: "button", text: item.label, "aria-pressed": item.current ? "true" : "false",
            data: { focus: `update-${item.index}` }, onclick: () => L.compare("choose", { update: item.index }),
          })))
      : null;

  const open = () => {
    const host = document.getElementById("compare-file");
    (host?.matches("button") ? host.parentElement : host)?.querySelector("input[type=file]")?.click();
  };

  L.panels.batch_source = (panel) =>
    L.el("div.batch-source", {},
      L.el("div.batch-line", {},
        L.el("p.batch-name", {}, L.el("strong", { text: panel.name }), L.el("span.note", { text: panel.size })),
        updates(panel),
        L.el("div.batch-acts", {},
          L.el("button.act", { type: "button", text: L.label("compare_open_file"), data: { focus: "open-file" }, onclick: open }),
          panel.other && L.el("button.act.quiet", {
            type: "button", text: panel.other.label, data: { focus: "other-batch" },
            onclick: () => L.compare("choose", { batch: panel.other.batch }),
          }))),
      panel.note_html && L.trusted("div.batch-note", panel.note_html),
      panel.remarks.length ? L.el("p.note", { text: L.label("batch_remarks") }) : null,
      panel.remarks.length ? L.el("ul.remarks", {}, ...panel.remarks.map((text) => L.el("li", { text }))) : null,
      L.withCode("p.note", L.label("compare_open_hint")));
})();
