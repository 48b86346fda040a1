// The address bar always holds the whole state; back and forward ask Python for the state of the address.
(() => {
  const L = window.Lessons;
  let restoring = true; // the first picture belongs to the address that was opened

  // Gradio's own ?__theme= is kept: it is the reader's choice, not part of the lesson.
  L.withTheme = (query) => {
    const theme = new URLSearchParams(location.search).get("__theme");
    return theme ? `${query}${query.includes("?") ? "&" : "?"}__theme=${encodeURIComponent(theme)}` : query;
  };

  L.address = (query, lesson) => {
    if (typeof query !== "string") return;
    const address = location.pathname + L.withTheme(query);
    const push = !restoring && lesson !== history.state?.lesson;
    if (push) history.pushState({ lesson }, "", address);
    else history.replaceState({ lesson }, "", address);
    restoring = false;
  };

  window.addEventListener("popstate", () => {
    restoring = true;
    const host = document.getElementById("lessons-back");
    (host?.matches("button") ? host : host?.querySelector("button"))?.click();
  });
})();
