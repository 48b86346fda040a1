// Our own Markdown, rendered by our server.
(() => {
  const L = window.Lessons;
  L.panels.text = (panel) =>
    L.el("div", {},
      L.trusted("div.prose-text", panel.html),
      panel.go && L.el("button.go", {
        type: "button", text: panel.go.label, onclick: () => L.send("picture", "go", { update: panel.go.update }),
      }));
})();
