// The picture: heading, notices, panels. A panel whose value did not change keeps its nodes, its scroll and its chart.
(() => {
  const L = window.Lessons;
  let kept = []; // [{json, node}] of the panels on screen
  let shown = null;

  const panels = (value) => {
    const before = new Map(kept.map((entry) => [entry.json, entry.node]));
    kept = (value.panels || []).map((panel) => {
      const json = JSON.stringify(panel);
      const node = before.get(json) || draw(panel);
      before.delete(json); // two equal panels are two nodes
      return { json, node };
    });
    return kept.map((entry) => entry.node);
  };

  const draw = (panel) => {
    try {
      return L.panel(panel);
    } catch (error) {
      console.error("a panel could not be drawn", panel.kind, error);
      return L.el("section.panel.failed", { text: `${panel.kind}: ${error.message}` });
    }
  };

  const notices = (value) =>
    (value.notice || []).length
      ? L.el("div.notices", { role: "status" }, ...value.notice.map((text) => L.el("p.notice", { text })))
      : null;

  const state = (value) => {
    if (value.running) {
      return L.el("div.running", { role: "status" }, L.el("span.text", { text: L.label("running") }), L.el("span.seconds"),
        L.el("span.track", {}, L.el("span.fill")));
    }
    return value.stale ? L.el("div.stale", { role: "status", text: L.label("stale") }) : null;
  };

  // The optimizer steps on this rollout: every lesson shows the numbers of one of them.
  const updates = (value) =>
    (value.updates || []).length > 1
      ? L.el("div.updates", { role: "group", "aria-label": L.label("which_update") }, ...value.updates.map((item) =>
        L.el(`button.update${item.index === value.update ? ".current" : ""}`, {
          type: "button", text: item.label, "aria-pressed": item.index === value.update ? "true" : "false",
          onclick: () => L.send("picture", "go", { update: item.index }),
        })))
      : null;

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
    const scrolls = moved ? [] : kept.map(({ node }) => [...node.querySelectorAll(".scroller")].map((s) => s.scrollLeft));
    if (moved) kept = [];
    shown = value.slug;
    const hide = value.hide || [];
    document.documentElement.dataset.hide = hide.join(" ");
    if (value.lang) document.documentElement.lang = value.lang;
    L.select(value.selected || null);
    root.replaceChildren(
      L.el(`article${value.stale || value.running ? ".out-of-date" : ""}`, { id: `lesson-${value.slug}`, "aria-busy": !!value.running },
        L.el("header", {},
          L.el("div.title-line", {}, L.el("h2", { text: value.title ?? "" }), updates(value)),
          value.lead_html && L.trusted("div.lead", value.lead_html)),
        notices(value), state(value),
        L.el("div.panels", {}, ...panels(value))));
    scrolls.forEach((lefts, i) => kept[i]?.node.querySelectorAll(".scroller").forEach((s, j) => (s.scrollLeft = lefts[j] || 0)));
    count(root, value.running);
    if (focus) root.querySelector(focus)?.focus({ preventScroll: true });
    if (moved) window.scrollTo(0, 0);
    if (value.title) document.title = `${value.title} · ${L.label("brand")}`;
    L.address(value.query, value.slug);
    L.answered();
    document.dispatchEvent(new CustomEvent("view_change", { detail: { lesson: value.slug, query: value.query } }));
  };
})();
