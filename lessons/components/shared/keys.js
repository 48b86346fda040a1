// ← → lessons, space reveals and then goes on, Esc lets go of the token.
(() => {
  const L = window.Lessons;
  const FIELDS = "input, textarea, select, [contenteditable], [role=slider], [role=combobox], [role=listbox], [role=textbox]";
  const CONTROLS = `${FIELDS}, a, button, summary, label, [role=button], [role=radio], [role=tab]`;

  const step = (by) => {
    const lessons = L.current.nav?.lessons || [];
    const from = lessons.findIndex((lesson) => lesson.slug === (L.heading || L.current.nav.current));
    const to = lessons[from + by];
    if (!to) return;
    if (to.away) return location.assign(L.lessonHref(to));
    L.heading = to.slug; // keys pressed before the answer count from where they lead
    L.go(to.slug);
  };

  const space = () => {
    const question = L.current.side?.question;
    if (question && !question.reveal_html) L.send("side", "answer", { option: "" });
    else step(1);
  };

  const letGo = () => {
    L.hover(null);
    document.activeElement?.blur?.();
    if (L.selected) L.send("picture", "clear", {});
  };

  const ACTIONS = {
    ArrowLeft: [FIELDS, () => step(-1)],
    ArrowRight: [FIELDS, () => step(1)],
    " ": [CONTROLS, space],
    Escape: [null, letGo],
  };

  document.addEventListener("keydown", (event) => {
    const chip = event.target.closest?.("[role=button][data-row][data-pos]");
    if (chip && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      return L.choose(Number(chip.dataset.row), Number(chip.dataset.pos));
    }
    const action = ACTIONS[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || event.defaultPrevented) return;
    if (action[0] && event.target.closest?.(action[0])) return;
    if (event.key !== "Escape" && !L.current.nav?.lessons?.length) return; // a page without lessons: the keys are the browser's
    if (event.key !== "Escape") event.preventDefault();
    action[1]();
  });
})();
