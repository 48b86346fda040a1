// The address bar always holds the whole state; back and forward ask Python for the state of the address.
(() => {
  const L = window.Lessons;
  let restoring = true; // the first picture belongs to the address that was opened

  // Gradio's own ?__theme= is kept: it is the reader's choice, not part of the lesson.
  L.withTheme = (query) => {
    const theme = new URLSearchParams(location.search).get("__theme");
    return theme ? `${query}${query.includes("?") ? "&" : "?"}__theme=${encodeURIComponent(theme)}` : query;
  };

  let wanted = null; // the lesson that back or forward went to, until its answer is there

  // An answer that was under way when the reader went back belongs to the page that was left: it must not write its address
  // over the one that Python is about to be asked for.
  L.address = (query, lesson) => {
    if (typeof query !== "string" || (wanted && lesson !== wanted)) return;
    wanted = null;
    const address = location.pathname + L.withTheme(query);
    const push = !restoring && lesson !== history.state?.lesson;
    if (push) history.pushState({ lesson }, "", address);
    else history.replaceState({ lesson }, "", address);
    restoring = false;
  };

  L.leaves = () => { wanted = null; }; // the reader asks for something else meanwhile

  window.addEventListener("popstate", () => {
    restoring = true;
    wanted = history.state?.lesson ?? null;
    const host = document.getElementById("lessons-back");
    (host?.matches("button") ? host : host?.querySelector("button"))?.click();
  });
})();
