// The Debug page.
(() => {
  const L = window.Lessons;

  L.debug = (name, data) => {
    if (name !== "save") L.waits("debug");
    L.send("debug", name, data);
  };

  L.views.debug = (root, value) => {
    L.waited("debug");
    L.triggers.picture = L.triggers.debug; // tokens are selected as in a lesson's picture
    if (value.part) {
      L.download(value.text, value.type, value.file);
      return L.answered();
    }
    root.classList.add("lv-picture", "lv-compare");
    L.article("debug", root, value, { label: "debug_reading", waitsBehind: 1 });
  };
})();
