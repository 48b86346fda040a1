// A page of its own as one article: heading, notices, sections of panels. A panel whose value is as before keeps its node, and
// with it its chart; what had the focus has it again; what takes long says for how long already.
(() => {
  const L = window.Lessons;
  const pages = {}; // name -> { known: value as JSON -> node of the page as it stands, clock, waiting }
  const page = (name) => pages[name] ??= { known: new Map(), clock: null, waiting: null };

  const nodes = (panels, known, kept) => panels.map((panel) => {
    const json = JSON.stringify(panel);
    const node = (!kept.has(json) && known.get(json)) || L.panel(panel);
    kept.set(json, node);
    return node;
  });

  const section = (name, item, known, kept) =>
    L.el("section.part", { id: `${name}-${item.id}`, "aria-label": item.title },
      L.el("h3.part-title", {}, L.el("span.number", { text: item.number, "aria-hidden": "true" }), item.title),
      item.lead_html && L.trusted("div.part-lead", item.lead_html),
      L.el("div.panels", {}, ...nodes(item.panels, known, kept)));

  const running = (label) =>
    L.el("div.running", { role: "status" }, L.el("span.text", { text: L.label(label) }), L.el("span.seconds"),
      L.el("span.track", {}, L.el("span.fill")));

  const count = (state, root, on) => {
    clearInterval(state.clock);
    const since = Date.now();
    state.clock = on ? setInterval(() => {
      const node = root.querySelector(".running .seconds");
      if (node) node.textContent = `${Math.round((Date.now() - since) / 1000)} s`;
    }, 500) : null;
  };

  // Controls are found by their `data-focus`, tokens by their place.
  const focusKey = (root) => {
    const node = document.activeElement;
    if (!root.contains(node)) return null;
    if (node.dataset.focus) return `[data-focus="${CSS.escape(node.dataset.focus)}"]`;
    return node.dataset.row && node.dataset.pos ? `:is([tabindex], [role=button])[data-row="${node.dataset.row}"][data-pos="${node.dataset.pos}"]` : null;
  };

  const frames = (root) => [...root.querySelectorAll(".scroller")].map((frame) => [frame, frame.scrollLeft]);

  // A change on its way is seen after a moment: nothing else moves meanwhile.
  L.waits = (name) => {
    const state = page(name);
    clearTimeout(state.waiting);
    state.waiting = setTimeout(() => document.querySelector(`.lv-${name} article`)?.classList.add("waiting"), 180);
  };
  L.waited = (name) => clearTimeout(page(name).waiting);

  L.download = (text, type, file) => {
    const link = L.el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: file });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  // `waitsBehind`: how many sections stand before the word that the rest is under way; `drawn()` is called with all in place.
  L.article = (name, root, value, { label, waitsBehind = 0, drawn = () => {} }) => {
    const state = page(name);
    const [focus, scrolled, kept] = [focusKey(root), frames(root), new Map()];
    document.documentElement.dataset.hide = (value.hide || []).join(" ");
    document.documentElement.lang = value.lang;
    const parts = value.sections.map((item) => section(name, item, state.known, kept));
    if (value.running) parts.splice(waitsBehind, 0, running(label));
    const notices = (value.notice || []).length
      ? L.el("div.notices", { role: "status" }, ...value.notice.map((text) => L.el("p.notice", { text }))) : null;
    root.replaceChildren(
      L.el("article", { "aria-busy": value.running ? "true" : "false" },
        L.el("header", {}, L.el("h2", { text: value.title }), L.trusted("div.lead", value.lead_html)), notices, ...parts));
    state.known = kept;
    for (const [frame, left] of scrolled) frame.scrollLeft = left;
    drawn();
    L.select(value.selected || null);
    count(state, root, value.running);
    if (focus) root.querySelector(focus)?.focus({ preventScroll: true });
    document.title = `${value.title} · ${L.label("brand")}`;
    L.address(value.query, value.place);
    L.answered();
  };
})();
