// One token under the pointer or selected is lit in every component: one style rule each, no round trip.
(() => {
  const L = window.Lessons;
  const sheets = {};
  let hovered = null;

  // Only the outermost element of a token is framed: its chip or cell, not the number inside it as well.
  const rule = (name, place, where, css, except = "") => {
    if (!sheets[name]) document.head.append((sheets[name] = L.el("style")));
    const token = place && `[data-row="${Number(place.row)}"][data-pos="${Number(place.pos)}"]`;
    const inner = `${token} ${token}, [data-token], .readout *${except}`; // a whole vocabulary row stands for one token: no frame each
    sheets[name].textContent = token ? `${where} ${token}:not(${inner}){${css}}` : "";
  };

  L.hover = (place) => {
    if (hovered?.row === place?.row && hovered?.pos === place?.pos) return;
    hovered = place;
    rule("hover", place, ".lv", "outline:2px solid var(--hover);outline-offset:-1px;background-color:var(--hover-fill);");
    document.dispatchEvent(new CustomEvent("lessons:hover", { detail: place }));
  };

  L.select = (place) => {
    L.selected = place;
    rule("select", place, ".lv-picture", "box-shadow:inset 0 0 0 2px var(--accent);border-radius:var(--r-s);",
      ", .plain *");
    document.dispatchEvent(new CustomEvent("lessons:select", { detail: place }));
  };

  const placeOf = (target) => {
    const node = target.closest?.(".lv [data-row][data-pos]");
    return node ? { row: Number(node.dataset.row), pos: Number(node.dataset.pos), node } : null;
  };

  document.addEventListener("pointerover", (event) => {
    if (event.target.closest?.("canvas, .js-plotly-plot")) return; // these say themselves what is under the pointer
    L.hover(placeOf(event.target));
  });
  document.addEventListener("focusin", (event) => L.hover(placeOf(event.target)));

  document.addEventListener("click", (event) => {
    if (event.target.closest?.("a, button, input, select, textarea, canvas")) return;
    const place = placeOf(event.target);
    if (!place || String(window.getSelection()).trim()) return; // somebody is copying text
    L.choose(place.row, place.pos);
  });

  L.choose = (row, pos) => {
    L.select({ row, pos });
    L.send("picture", "select", { row, pos });
  };
})();
