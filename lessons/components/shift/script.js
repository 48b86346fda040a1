// Two aligned strips; an arrow leads from position t to the token at t + 1 that its logits predict.
(() => {
  const L = window.Lessons;
  const CELL = 72; // px; the same as --cell in style.css
  const HIGH = 74;

  const arrow = (from, to, trained) => {
    const [x1, x2] = [from * CELL + CELL / 2, to * CELL + CELL / 2];
    return L.svg("path", {
      d: `M${x1},2 C${x1},${HIGH * 0.55} ${x2},${HIGH * 0.4} ${x2},${HIGH - 9}`,
      class: `arrow${trained ? "" : " untrained"}`,
      "marker-end": trained ? "url(#arrow-head)" : "url(#arrow-head-off)",
    });
  };

  const head = (id, name) =>
    L.svg("marker", { id, viewBox: "0 0 8 8", refX: 4, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      L.svg("path", { d: "M0,0 L8,4 L0,8 z", class: name }));

  // A row of logits belongs to the token that it forecasts: the one at the next position.
  const placeOf = (panel, name, token, beyond) =>
    name === "bottom" ? { row: panel.row, pos: token.p } : beyond ? {} : { row: panel.row, pos: token.p + 1, from: token.p };

  const strip = (panel, tokens, name) =>
    L.el(`div.shift-strip.${name}`, {}, ...tokens.map((token, i) => {
      const beyond = name === "top" && !panel.bottom.some((below) => below.p === token.p + 1);
      const off = name === "bottom" && !token.trained;
      return L.el(`span.shift-cell${beyond ? ".beyond" : ""}${off ? ".off" : ""}`,
        { data: placeOf(panel, name, token, beyond), title: beyond ? L.label("beyond_end") : token.text },
        L.el("span.piece", { text: token.text }), L.el("span.at", { text: token.p }));
    }));

  const arrows = (panel) => {
    const columns = Math.max(panel.top.length, panel.bottom.length);
    const pairs = panel.top.map((token, i) => [i, panel.bottom.findIndex((below) => below.p === token.p + 1)]);
    return L.svg("svg", { width: columns * CELL, height: HIGH, class: "shift-arrows", "aria-hidden": "true" },
      L.svg("defs", {}, head("arrow-head", "head"), head("arrow-head-off", "head untrained")),
      ...pairs.filter(([, j]) => j >= 0).map(([i, j]) => arrow(i + offset(panel, "top"), j + offset(panel, "bottom"),
        panel.bottom[j].trained)));
  };

  // Both strips share one axis of positions: a strip that starts later is moved right.
  const first = (panel) => Math.min(panel.top[0]?.p ?? 0, panel.bottom[0]?.p ?? 0);
  const offset = (panel, name) => (panel[name][0]?.p ?? 0) - first(panel);

  L.panels.shift = (panel) => {
    const place = (node, name) => {
      node.style.setProperty("--offset", offset(panel, name));
      return node;
    };
    return L.scroller(
      L.el("div.shift", {},
        L.el("div.shift-label", { text: panel.label_top }),
        place(strip(panel, panel.top, "top"), "top"),
        arrows(panel),
        place(strip(panel, panel.bottom, "bottom"), "bottom"),
        L.el("div.shift-label", { text: panel.label_bottom })),
      panel.title,
    );
  };
})();
