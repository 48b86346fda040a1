// The picture: heading, notices, panels. A panel whose value is as before keeps its nodes, its scroll and its chart,
// also when somebody comes back to a lesson.
(() => {
  const L = window.Lessons;
  const MOST = 48; // panels remembered
  const drawn = new Map(); // value as JSON -> node, the newest last
  let shown = null;

  const panels = (value) => {
    const used = new Set();
    return (value.panels || []).map((panel) => {
      const json = JSON.stringify(panel);
      const known = drawn.get(json);
      const node = known && !used.has(known) ? known : L.panel(panel); // two equal panels are two nodes
      used.add(node);
      if (node === known) L.restore(node);
      drawn.delete(json);
      drawn.set(json, node);
      if (drawn.size > MOST) drawn.delete(drawn.keys().next().value);
      return node;
    });
  };

  const notices = (value) =>
    (value.notice || []).length
      ? L.el("div.notices", { role: "status" }, ...value.notice.map((text) => L.el("p.notice", { text })))
      : null;

  const state = (value) => {
    if (value.running) {
      return L.el("div.running", { role: "status" }, L.el("span.text", { text: L.label(value.stale ? "stale" : value.title ? "running" : "running_first") }), L.el("span.seconds"),
        L.el("span.track", {}, L.el("span.fill")));
    }
    return value.stale ? L.el("div.stale", { role: "status", text: L.label("stale") }) : null;
  };

  // The optimizer steps on this rollout: every lesson shows the numbers of one of them.
  const updates = (value) =>
    (value.updates || []).length > 1
      ? L.el("div.updates", { role: "group", "aria-label": L.label("which_update"), title: L.label("update_info") },
        L.el("span.which", { text: L.label("which_update") }), ...value.updates.map((item) =>
        L.el(`button.update${item.index === value.update ? ".current" : ""}`, {
          type: "button", text: item.label, "aria-pressed": item.index === value.update ? "true" : "false",
          onclick: () => L.send("picture", "go", { update: item.index }),
        })))
      : null;

  // A batch file: its name, where the loss comes from, what was filled in, and whether the selected token counts.
  const batch = (item) =>
    L.el("div.origin.batch", {},
      L.el("p", {}, L.el("code.file", { text: item.file }), " ", item.text),
      ...item.untrained.map((text) => L.el("p.untrained", { role: "status", text })),
      item.notes.length
        ? L.el("details", {}, L.el("summary", { text: `${item.summary} (${item.notes.length})` }),
          L.el("ul", {}, ...item.notes.map((text) => L.el("li", { text }))))
        : null);

  let clock = null;
  let since = 0;
  const count = (root, running) => {
    if (!running) {
      clearInterval(clock);
      clock = null;
      return;
    }
    if (!clock) since = Date.now();
    clearInterval(clock);
    clock = setInterval(() => {
      const node = root.querySelector(".running .seconds");
      if (node) node.textContent = `${Math.round((Date.now() - since) / 1000)} s`;
    }, 500);
  };

  // What had the keyboard's focus has it again after the redraw: the chip of a token, or the field being filled in.
  const focusKey = () => {
    const node = document.activeElement;
    if (!node?.closest?.(".lv-picture")) return null;
    if (node.dataset.edit) return `[data-edit="${node.dataset.edit}"]`;
    return node.dataset.row && node.dataset.pos
      ? `[role=button][data-row="${node.dataset.row}"][data-pos="${node.dataset.pos}"]` : null;
  };

  L.views.picture = (root, value) => {
    const moved = value.slug !== shown;
    const focus = moved ? null : focusKey();
    const scrolls = moved ? [] : [...root.querySelectorAll(".panels > *")].map((node) =>
      [...node.querySelectorAll(".scroller")].map((frame) => frame.scrollLeft));
    shown = value.slug;
    const hide = value.hide || [];
    document.documentElement.dataset.hide = hide.join(" ");
    if (value.lang) document.documentElement.lang = value.lang;
    const nodes = panels(value);
    root.replaceChildren(
      L.el(`article${value.running && !value.stale ? ".out-of-date" : ""}`, { id: `lesson-${value.slug}`, "aria-busy": value.running ? "true" : "false" },
        L.el("header", {},
          L.el("div.title-line", {}, L.el("h2", { text: value.title ?? "" }), updates(value)),
          value.lead_html && L.trusted("div.lead", value.lead_html),
          value.preset && L.el("p.preset-line", {}, `${L.label("preset")} `, L.changedNote(value.preset.name, value.preset.changed)),
          value.origin_html && L.trusted("div.origin", value.origin_html),
          value.batch && batch(value.batch)),
        notices(value), state(value),
        L.el("div.panels", {}, ...nodes),
        value.title ? L.turns() : null));
    nodes.forEach((node, i) => {
      L.beforePaint(() => {
        node.querySelectorAll(".scroller").forEach((frame, j) => (frame.scrollLeft = scrolls[i]?.[j] || 0));
        L.bringIntoView(node, value.selected);
      });
    });
    L.select(value.selected || null);
    count(root, value.running);
    if (focus) root.querySelector(focus)?.focus({ preventScroll: true });
    if (moved) window.scrollTo(0, 0);
    if (value.title) document.title = `${value.title} · ${L.label("brand")}`;
    L.address(value.query, value.slug);
    L.answered();
    document.dispatchEvent(new CustomEvent("view_change", { detail: { lesson: value.slug, query: value.query } }));
  };
})();
