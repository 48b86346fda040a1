// Events go to Python one at a time: the next waits for the answer to the last, so none is lost and none overtakes.
(() => {
  const L = window.Lessons;
  const PATIENCE = 4000; // ms after which an answer that never came is no longer waited for
  const waiting = [];
  let sentAt = 0;

  const next = () => {
    const event = waiting.shift();
    if (!event) return;
    sentAt = performance.now();
    L.triggers[event.view]?.(event.name, event.data);
    setTimeout(() => sentAt && performance.now() - sentAt >= PATIENCE && L.answered(), PATIENCE + 50);
  };

  L.send = (view, name, data) => {
    L.leaves();
    const last = waiting[waiting.length - 1];
    if (last && last.view === view && last.name === name && name !== "edit") waiting.pop(); // only the newest counts
    waiting.push({ view, name, data: { ...data, at: Date.now() } });
    if (!sentAt) next();
  };

  L.answered = () => {
    sentAt = 0;
    next();
  };

  L.go = (lesson) => {
    document.querySelectorAll(".lv-nav [data-lesson]").forEach((link) =>
      link.classList.toggle("pending", link.dataset.lesson === lesson));
    L.send("nav", "go", { lesson });
  };

  // A lesson on another page is a page to load.
  L.lessonHref = (lesson) => (lesson.away ? L.withTheme(lesson.href) : lesson.href);

  // A link keeps what links can do (new tab, copy); only a plain click is ours.
  L.lessonLink = (node, lesson) => {
    node.dataset.lesson = lesson.slug;
    if (lesson.away) return node;
    node.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
      event.preventDefault();
      if (lesson.slug !== "train") L.go(lesson.slug);
    });
    return node;
  };
})();
