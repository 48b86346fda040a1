// The bars of the bridge as cards, in their order; the sum that they make; what differs and changes nothing.
(() => {
  const L = window.Lessons;

  const step = (bar, by) => {
    const label = L.label(by < 0 ? "bridge_earlier" : "bridge_later");
    return L.el("button.move", {
      type: "button", text: by < 0 ? "↑" : "↓", title: label, "aria-label": `${bar.label}: ${label}`, disabled: by < 0 ? bar.first : bar.last,
      data: { focus: `move-${bar.knobs[0]}-${by}` }, onclick: () => L.compare("order", { knob: bar.knobs[0], by }),
    });
  };

  const change = (item) =>
    L.el("li", {}, L.el("span.what", { text: item.label }), L.el("code", { text: item.name }),
      L.el("span.values", {}, L.el("b", { text: item.before }), " → ", L.el("b", { text: item.after })));

  const formula = (bar) => {
    if (!bar.mathml && !bar.after_mathml) return null;
    if (!bar.after_mathml) return L.el("div.formulas", {}, L.trusted("div.math", bar.mathml));
    return L.el("div.formulas.two", {}, ...[["bridge_before", bar.mathml], ["bridge_after", bar.after_mathml]].map(([key, mathml]) =>
      L.el("div", {}, L.el("h5", { text: L.label(key) }), L.trusted("div.math", mathml || "–"))));
  };

  const chip = (token) =>
    L.el("span.chip.k-completion.mini", { role: "button", tabindex: 0, data: { row: token.r, pos: token.p }, title: `${token.label} · ${L.label("position")} ${token.p}` },
      L.el("span.piece", { text: token.text }));

  const card = (bar, place) =>
    L.el("li.bar-card", { data: { knob: bar.knobs.join(" ") } },
      L.el("div.bar-head", {},
        L.el("span.place", { text: place + 1 }), L.el("h4", { text: bar.label }),
        L.el("span.delta", {}, L.figure("delta", bar.delta, { knob: bar.knobs.join(" ") })),
        L.el("span.moves", {}, step(bar, -1), step(bar, 1))),
      L.el("div.bar-body", {},
        L.el("div.bar-words", {},
          L.el("ul.changes", {}, ...bar.changes.map(change)),
          L.el("p.note", { text: bar.gradient_only ? L.label("bridge_gradient_only") : `${bar.from} → ${bar.to}` }),
          formula(bar)),
        L.el("div.bar-tokens", {},
          L.el("p.touched", { text: bar.touched }),
          L.panels.token_map(bar.map),
          bar.chips.length ? L.el("div.chips", {}, ...bar.chips.map(chip), bar.more ? L.el("span.note", { text: L.label("bridge_more").replace("{count}", bar.more) }) : null) : null)));

  const sum = (item) =>
    L.el("p.sum", {}, L.el("code", { text: item.a.name }), " ", L.figure("loss", item.a, { preset: item.a.name }),
      ...item.deltas.flatMap((delta) => [" ", L.figure("delta", delta, { knob: delta.knob, sum: "" })]),
      " = ", L.figure("loss", item.b, { preset: item.b.name }), " ", L.el("code", { text: item.b.name }));

  const idle = (items) =>
    L.el("p.idle", {}, L.el("span", { text: `${L.label("bridge_idle")} ` }),
      ...items.flatMap((item, i) => [i ? ", " : "", L.el("span", { text: item.label, data: { idle: item.knob } })]), ".");

  L.panels.bridge_bars = (panel) =>
    L.el("div.bridge", {},
      panel.sentence && L.el("p.verdict", { text: panel.sentence }),
      panel.sum && sum(panel.sum),
      panel.sum && L.el("p.note", { text: `${L.label("bridge_together")} ` },
        panel.changed && L.el("button.link", { type: "button", text: L.label("bridge_usual"), data: { focus: "usual" }, onclick: () => L.compare("order", {}) })),
      panel.bars.length ? L.el("ol.bars", {}, ...panel.bars.map(card)) : null,
      panel.idle.length ? idle(panel.idle) : null);
})();
