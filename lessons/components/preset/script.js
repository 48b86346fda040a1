// The chosen preset in words. Controls that nothing reads are hidden by a rule, so that those built later are as well.
(() => {
  const L = window.Lessons;
  const rule = document.createElement("style");

  const hide = (fields, sections) => {
    if (!rule.isConnected) document.head.append(rule);
    const hidden = [...fields.map((field) => `#knob-${field}`), ...sections.map((section) => `#section-${section}`)];
    rule.textContent = hidden.length ? `${hidden.join(", ")} { display: none !important; }` : "";
  };

  // Whoever goes to the list types a name to search for: what stands there is replaced, not added to.
  document.addEventListener("focusin", (event) => {
    if (event.target.matches?.("#lessons-presets input")) setTimeout(() => event.target.select());
  });

  L.changedNote = (name, changed) =>
    L.el("span.changed", {}, L.el("code", { text: name }), changed.length ? `, ${L.label("preset_changed")} ` : "",
      ...changed.flatMap((field, i) => [i ? ", " : "", L.el("code", { text: field })]));

  L.views.preset = (root, value) => {
    hide(value.unread || [], value.unread_sections || []);
    const moved = value.changed || [];
    root.replaceChildren(...[
      value.summary && L.el("p.summary", { text: value.summary }),
      value.quirk && L.el("p.quirk", { text: value.quirk }),
      value.fixed && L.el("p.fixed", { text: value.fixed }),
      value.source && L.el("p.from", {}, L.el("span", { text: `${L.label("preset_source")} ` }), value.source),
      moved.length && L.el("div.moved", { role: "status" }, L.changedNote(value.name, moved),
        L.el("button.back", { type: "button", text: value.back, onclick: () => L.send("preset", "back", {}) })),
    ].filter(Boolean));
  };
})();
