// One token's way through the step; each stage is a link to the lesson that explains it.
(() => {
  const L = window.Lessons;

  const step = (item, current) => {
    const here = item.lesson === current;
    const link = L.el(`a.step${here ? ".current" : ""}`, { href: item.href || `?lesson=${encodeURIComponent(item.lesson)}`,
      "aria-current": here ? "step" : null },
      L.el("span.stage", { text: L.labels[`short_${item.label}`] ?? item.label }),
      item.value === null || item.value === undefined ? L.el("span.value.none", { text: "–" }) : L.number(item.value, "span.value"));
    return L.el("li", {}, L.lessonLink(link, { slug: item.lesson }));
  };

  const token = (value) =>
    L.el("div.who", { data: L.place(value.token.row, value.token.pos) },
      L.el("span.piece", { text: value.token.text }),
      L.el("span.where", { text: `${L.label("column_row")} ${value.token.label} · ${L.label("position")} ${value.token.pos}` }));

  L.views.journey = (root, value) => {
    if (!value.steps?.length) return root.replaceChildren(); // before the first step there is nothing to follow
    const current = value.current || L.current.nav?.current;
    root.replaceChildren(
      L.el("nav.journey", { "aria-label": L.label("journey") },
        value.token ? token(value) : L.el("div.who", {}, L.el("span.where", { text: L.label("no_token") })),
        L.el("ol", {}, ...(value.steps || []).map((item) => step(item, current))),
        value.loss ? L.el("div.total", {}, L.el("span.stage", { text: L.label("total") }), L.number(value.loss, "span.value")) : null));
    const [bar, here] = [root.querySelector("ol"), root.querySelector("a.current")];
    if (bar && here) L.beforePaint(() => {
      if (bar.scrollWidth > bar.clientWidth) bar.scrollLeft = here.offsetLeft - bar.offsetLeft - bar.clientWidth / 2.5;
    });
  };
})();
