// The Compare page.
(() => {
  const L = window.Lessons;

  // A number that says what it is of which preset or knob.
  L.figure = (quantity, n, data = {}) =>
    n === null || n === undefined ? L.el("span.none", { text: "–" })
      : L.el(`span.num${n.s ? (n.s < 0 ? ".neg" : ".pos") : ""}`, { text: n.v, data: { quantity, ...data } });

  const later = (value) => {
    L.current.compare = { ...L.shownPage, ...value };
    if (value.csv) L.download(value.csv, "text/csv", value.file);
    L.tableDetails?.(value.details);
    L.address(value.query, L.shownPage?.place);
    L.answered();
  };

  L.compare = (name, data) => {
    L.waits("compare");
    L.send("compare", name, data);
  };

  L.views.compare = (root, value) => {
    L.waited("compare");
    L.triggers.picture = L.triggers.compare; // grids and strips send their token to the page's picture
    if (value.part) return later(value);
    L.shownPage = value;
    root.classList.add("lv-picture");
    const drawn = () => {
      L.tableState?.(value.table, value.fresh);
      L.tableDetails?.(value.details);
    };
    L.article("compare", root, value, { label: "compare_running", drawn });
  };
})();
