// The list of lessons as real links; on a phone it is a bar that scrolls sideways.
(() => {
  const L = window.Lessons;

  const entry = (lesson, current) => {
    const here = lesson.slug === current;
    const link = L.el(`a${here ? ".current" : ""}`, { href: L.lessonHref(lesson), "aria-current": here ? "page" : null },
      L.el("span.number", { text: lesson.number }), L.el("span.name", { text: lesson.title }));
    return L.el("li", {}, L.lessonLink(link, lesson));
  };

  const page = (item) =>
    L.el("li", {}, L.el(`a${item.current ? ".current" : ""}`, {
      href: L.withTheme(item.href), text: item.title, lang: item.lang, "aria-current": item.current ? "page" : null,
    }));

  // A section of this page: it comes into view, the address stays.
  const section = (page) => (item) =>
    L.el("li", {}, L.el("a", {
      href: `#${page}-${item.id}`, onclick: (event) => {
        event.preventDefault();
        document.getElementById(`${page}-${item.id}`)?.scrollIntoView();
      },
    }, L.el("span.number", { text: item.number }), L.el("span.name", { text: item.title })));

  const list = (name, label, items) =>
    items?.length ? L.el(`nav.${name}`, { "aria-label": L.label(label) }, L.el("ol", {}, ...items)) : null;

  // Previous and next at the end of a lesson, for whoever has no keys: below the picture, on small screens below the rest.
  const turn = (lesson, name, label, arrow) =>
    lesson
      ? L.lessonLink(L.el(`a.${name}`, { href: L.lessonHref(lesson), rel: name },
        L.el("span.way", {}, L.el("kbd", { text: arrow, "aria-hidden": "true" }), L.label(label)),
        L.el("span.to", { text: `${lesson.number} ${lesson.title}` })), lesson)
      : L.el("span");

  L.turns = () => {
    const { lessons = [], current } = L.current.nav || {};
    const at = lessons.findIndex((lesson) => lesson.slug === current);
    return L.el("nav.turns", { "aria-label": L.label("lessons") },
      turn(at >= 0 && lessons[at - 1], "prev", "previous", "←"), turn(at >= 0 && lessons[at + 1], "next", "next", "→"));
  };

  L.views.nav = (root, value) => {
    L.heading = null;
    root.replaceChildren(
      L.el("div.brand", {}, L.el("span.logo", { text: "∇", "aria-hidden": "true" }), L.el("span", { text: L.label("brand") })),
      list("pages", "pages", (value.pages || []).map(page)) || "",
      list("sections", "sections", (value.sections || []).map(section(value.anchor || "compare"))) || "",
      list("lessons", "lessons", (value.lessons || []).map((lesson) => entry(lesson, value.current))) || "",
      list("languages", "languages", (value.languages || []).map(page)) || "",
    );
    document.querySelectorAll("nav.turns").forEach((old) => old.replaceWith(L.turns()));
    const [bar, here] = [root.querySelector("nav.lessons ol"), root.querySelector("nav.lessons a.current")];
    if (bar && here) L.beforePaint(() => {
      if (bar.scrollWidth > bar.clientWidth) bar.scrollLeft = here.offsetLeft - bar.clientWidth / 3;
    });
  };
})();
