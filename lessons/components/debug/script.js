// The Debug page: heading, notices, sections of panels. A panel whose value is as before keeps its node.
(() => {
  const L = window.Lessons;
  let known = new Map(); // value as JSON -> node, of the page as it stands

  const nodes = (panels, kept) => panels.map((panel) => {
    const json = JSON.stringify(panel);
    const node = (!kept.has(json) && known.get(json)) || L.panel(panel);
    kept.set(json, node);
    return node;
  });

  const section = (item, kept) =>
    L.el("section.part", { id: `debug-${item.id}`, "aria-label": item.title },
      L.el("h3.part-title", {}, L.el("span.number", { text: item.number, "aria-hidden": "true" }), item.title),
      item.lead_html && L.trusted("div.part-lead", item.lead_html),
      L.el("div.panels", {}, ...nodes(item.panels, kept)));

  const running = () =>
    L.el("div.running", { role: "status" }, L.el("span.text", { text: L.label("debug_reading") }), L.el("span.seconds"),
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

  // What had the focus has it again: controls by their `data-focus`, tokens by their place.
  const focusKey = (root) => {
    const node = document.activeElement;
    if (!root.contains(node)) return null;
    if (node.dataset.focus) return `[data-focus="${CSS.escape(node.dataset.focus)}"]`;
    return node.dataset.row && node.dataset.pos ? `[tabindex][data-row="${node.dataset.row}"][data-pos="${node.dataset.pos}"]` : null;
  };

  const save = (value) => {
    const link = L.el("a", { href: URL.createObjectURL(new Blob([value.text], { type: value.type })), download: value.file });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    L.answered();
  };

  let waiting = null;
  const wait = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => document.querySelector(".lv-debug article")?.classList.add("waiting"), 180);
  };
  L.debug = (name, data) => {
    if (name !== "save") wait();
    L.send("debug", name, data);
  };

  const frames = (root) => [...root.querySelectorAll(".scroller")].map((frame) => [frame, frame.scrollLeft]);

  L.views.debug = (root, value) => {
    clearTimeout(waiting);
    L.triggers.picture = L.triggers.debug; // tokens are selected as in a lesson's picture
    if (value.part) return save(value);
    root.classList.add("lv-picture", "lv-compare");
    const [focus, scrolled, kept] = [focusKey(root), frames(root), new Map()];
    document.documentElement.dataset.hide = (value.hide || []).join(" ");
    document.documentElement.lang = value.lang;
    const drawn = value.sections.map((item) => section(item, kept));
    const notices = value.notice.length
      ? L.el("div.notices", { role: "status" }, ...value.notice.map((text) => L.el("p.notice", { text }))) : null;
    root.replaceChildren(
      L.el("article", { "aria-busy": value.running ? "true" : "false" },
        L.el("header", {}, L.el("h2", { text: value.title }), L.trusted("div.lead", value.lead_html)),
        notices, ...drawn.slice(0, 1), value.running ? running() : null, ...drawn.slice(1)));
    known = kept;
    for (const [frame, left] of scrolled) frame.scrollLeft = left;
    L.select(value.selected || null);
    count(root, value.running);
    if (focus) root.querySelector(focus)?.focus({ preventScroll: true });
    document.title = `${value.title} · ${L.label("brand")}`;
    L.address(value.query, value.place);
    L.answered();
  };
})();
