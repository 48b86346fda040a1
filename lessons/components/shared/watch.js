// News for the drawings that need code to follow it: hover, selection, light and dark.
(() => {
  const L = window.Lessons;
  const NEWS = ["lessons:hover", "lessons:select", "lessons:theme"];

  // Kept on the node, so that a node that is dropped takes its listeners with it; only nodes in the page are called.
  L.listen = (node, name, act) => {
    node.dataset.listens = "";
    (node.listeners ??= {})[name] = act;
  };
  for (const name of NEWS) {
    document.addEventListener(name, (event) => {
      for (const node of document.querySelectorAll(".lv [data-listens]")) node.listeners[name]?.(event);
    });
  }

  const tell = () => document.dispatchEvent(new CustomEvent("lessons:theme"));
  const start = () => {
    new MutationObserver(tell).observe(document.body, { attributes: true, attributeFilter: ["class"] });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
  };
  if (document.body) start();
  else document.addEventListener("DOMContentLoaded", start);

  // A wide table opens where the selected token is.
  L.bringIntoView = (panel, place) => {
    if (!place) return;
    for (const frame of panel.querySelectorAll(".scroller")) {
      const cell = frame.querySelector(`[data-row="${place.row}"][data-pos="${place.pos}"]`);
      if (!cell || frame.scrollWidth <= frame.clientWidth) continue;
      const [box, at] = [frame.getBoundingClientRect(), cell.getBoundingClientRect()];
      const fixed = frame.querySelector("tr > :first-child")?.offsetWidth || 0;
      if (at.left >= box.left + fixed && at.right <= box.right) continue;
      frame.scrollLeft += at.left - box.left - fixed - (box.width - fixed) / 2;
    }
  };
})();
