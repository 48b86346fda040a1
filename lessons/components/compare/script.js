// The Compare page: heading, notices, sections of panels. A panel whose value is as before keeps its node and its chart.
(() => {
  const L = window.Lessons;
  let known = new Map(); // value as JSON -> node, of the page as it stands

  // A number that says what it is of which preset or knob.
  L.figure = (quantity, n, data = {}) =>
    n === null || n === undefined ? L.el("span.none", { text: "–" })
      : L.el(`span.num${n.s ? (n.s < 0 ? ".neg" : ".pos") : ""}`, { text: n.v, data: { quantity, ...data } });

  const nodes = (panels, kept) => panels.map((panel) => {
    const json = JSON.stringify(panel);
    const node = (!kept.has(json) && known.get(json)) || L.panel(panel);
    kept.set(json, node);
    return node;
  });

  const section = (item, kept) =>
    L.el("section.part", { id: `compare-${item.id}`, "aria-label": item.title },
      L.el("h3.part-title", {}, L.el("span.number", { text: item.number, "aria-hidden": "true" }), item.title),
      item.lead_html && L.trusted("div.part-lead", item.lead_html),
      L.el("div.panels", {}, ...nodes(item.panels, kept)));

  const running = () =>
    L.el("div.running", { role: "status" }, L.el("span.text", { text: L.label("compare_running") }), L.el("span.seconds"),
      L.el("span.track", {}, L.el("span.fill")));

  let clock = null;
  const count = (root, on) => {
    clearInterval(clock);
    const since = Date.now();
    clock = on ? setInterval(() => {
      const node = root.querySelector(".running .seconds");
      if (node) node.textContent = `${Math.round((Date.now() - since) / 1000)} s`;
    }, 500) : null;
  };

  // What had the focus has it again: controls are found by their `data-focus`, tokens by their place.
  const focusKey = (root) => {
    const node = document.activeElement;
    if (!root.contains(node)) return null;
    if (node.dataset.focus) return `[data-focus="${CSS.escape(node.dataset.focus)}"]`;
    return node.dataset.row && node.dataset.pos ? `[role=button][data-row="${node.dataset.row}"][data-pos="${node.dataset.pos}"]` : null;
  };

  const save = (value) => {
    const link = L.el("a", { href: URL.createObjectURL(new Blob([value.csv], { type: "text/csv" })), download: value.file });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  const later = (value) => {
    L.current.compare = { ...L.shownPage, ...value };
    if (value.csv) save(value);
    L.tableDetails?.(value.details);
    L.address(value.query, L.shownPage?.place);
    L.answered();
  };

  // A change on its way is seen after a moment: nothing else moves meanwhile.
  let waiting = null;
  L.compare = (name, data) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => document.querySelector(".lv-compare article")?.classList.add("waiting"), 180);
    L.send("compare", name, data);
  };

  const frames = (root) => [...root.querySelectorAll(".scroller")].map((frame) => [frame, frame.scrollLeft]);

  L.views.compare = (root, value) => {
    clearTimeout(waiting);
    L.triggers.picture = L.triggers.compare; // grids and strips send their token to the page's picture
    if (value.part) return later(value);
    L.shownPage = value;
    root.classList.add("lv-picture");
    const [focus, scrolled, kept] = [focusKey(root), frames(root), new Map()];
    document.documentElement.dataset.hide = (value.hide || []).join(" ");
    document.documentElement.lang = value.lang;
    const drawn = value.sections.map((item) => section(item, kept));
    const notices = (value.notice || []).length
      ? L.el("div.notices", { role: "status" }, ...value.notice.map((text) => L.el("p.notice", { text }))) : null;
    root.replaceChildren(
      L.el("article", { "aria-busy": value.running ? "true" : "false" },
        L.el("header", {}, L.el("h2", { text: value.title }), L.trusted("div.lead", value.lead_html)),
        notices, value.running ? running() : null, ...drawn));
    known = kept;
    for (const [frame, left] of scrolled) frame.scrollLeft = left;
    L.tableState?.(value.table, value.fresh);
    L.tableDetails?.(value.details);
    L.select(value.selected || null);
    count(root, value.running);
    if (focus) root.querySelector(focus)?.focus({ preventScroll: true });
    document.title = `${value.title} · ${L.label("brand")}`;
    L.address(value.query, value.place);
    L.answered();
  };
})();
