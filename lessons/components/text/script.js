// Our own Markdown, rendered by our server.
(() => {
  const L = window.Lessons;
  L.panels.text = (panel) => L.trusted("div.prose-text", panel.html);
})();
