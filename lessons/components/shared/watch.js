// Listeners that live as long as the node they serve, and the news that light became dark.
(() => {
  const L = window.Lessons;

  L.listen = (node, name, act) => {
    const once = (event) => {
      if (node.isConnected) act(event);
      else if (node.dataset.shown) document.removeEventListener(name, once);
      if (node.isConnected) node.dataset.shown = "1"; // it was in the page once: gone means gone for good
    };
    document.addEventListener(name, once);
  };

  const tell = () => document.dispatchEvent(new CustomEvent("lessons:theme"));
  const start = () => {
    new MutationObserver(tell).observe(document.body, { attributes: true, attributeFilter: ["class"] });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
  };
  if (document.body) start();
  else document.addEventListener("DOMContentLoaded", start);
})();
