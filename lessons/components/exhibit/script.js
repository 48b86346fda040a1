// A mistake beside what is right: word, sign and number each, so that colour is not needed to tell them apart.
(() => {
  const L = window.Lessons;

  const half = (name, sign, text, value) =>
    L.el(`div.half.${name}`, {},
      L.el("div.verdict", {}, L.el("span.sign", { text: sign, "aria-hidden": "true" }), L.el("span", { text: L.label(name) })),
      L.el("div.said", { text }),
      L.el(`div.value${L.isNumber(value) ? "" : ".words"}`, {}, L.number(value)));

  L.panels.exhibit = (panel) =>
    L.el("div.exhibit", {},
      L.el("h4", { text: panel.name }),
      L.el("div.halves", {},
        half("wrong", "✗", panel.said, panel.said_value), half("right", "✓", panel.right, panel.right_value)),
      L.trusted("div.why", panel.why_html));
})();
