// Plotly figures. The library comes from our own server, once, when the page is idle; a figure waits for it.
(() => {
  const L = window.Lessons;
  const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, topojsonURL: "", scrollZoom: false };
  let library = null;

  L.plotly = () => (library ??= new Promise((resolve, reject) => {
    const script = L.el("script", { src: L.plotlyAddress, async: true });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", reject);
    document.head.append(script);
  }));

  const variable = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();

  // "var(--accent)" anywhere in a figure stands for the theme's colour, which light and dark have different.
  const resolved = (value) => {
    if (typeof value === "string") return value.replace(/var\((--[\w-]+)\)/g, (_, name) => variable(name));
    if (Array.isArray(value)) return value.map(resolved);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolved(item)]));
  };

  const axis = (own) => ({
    gridcolor: variable("--line"), zerolinecolor: variable("--line-strong"), linecolor: variable("--line-strong"),
    tickcolor: variable("--line-strong"), automargin: true, ...own,
  });

  const layout = (panel) => {
    const own = resolved(panel.figure.layout || {});
    const axes = Object.keys(own).filter((key) => /^[xy]axis/.test(key));
    const themed = Object.fromEntries([...new Set([...axes, "xaxis", "yaxis"])].map((key) => [key, axis(own[key])]));
    const { template, ...rest } = own; // the template's colours are for white paper
    return {
      margin: { l: 48, r: 16, t: 16, b: 40 }, ...rest, ...themed, height: panel.height || 340, autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: variable("--font"), size: 14, ...own.font, color: variable("--ink") },
      hoverlabel: {
        bgcolor: variable("--card"), bordercolor: variable("--line-strong"),
        font: { color: variable("--ink"), family: variable("--font") }, ...own.hoverlabel,
      },
      legend: { bgcolor: "rgba(0,0,0,0)", ...own.legend },
    };
  };

  const placeOf = (event) => {
    const data = event.points?.[0]?.customdata;
    return Array.isArray(data) && data.length >= 2 ? { row: Number(data[0]), pos: Number(data[1]) } : null;
  };

  const pointsAt = (panel, place) =>
    (panel.figure.data || []).flatMap((trace, curveNumber) => {
      if (!place || !Array.isArray(trace.customdata)) return [];
      const pointNumber = trace.customdata.findIndex((at) => at?.[0] === place.row && at?.[1] === place.pos);
      return pointNumber < 0 ? [] : [{ curveNumber, pointNumber }];
    });

  const lightUp = (node, panel, place) => {
    if (!node.data || node.matches(":hover")) return;
    const points = pointsAt(panel, place);
    if (points.length) window.Plotly.Fx.hover(node, points);
    else window.Plotly.Fx.unhover(node);
  };

  // The selected token's point is the full one; the others of its trace step back.
  const marked = (panel) =>
    resolved(panel.figure.data || []).map((trace, i) => {
      const point = pointsAt(panel, L.selected).find((found) => found.curveNumber === i);
      if (!point || !/markers/.test(trace.mode || "") && trace.type !== "bar") return trace;
      const unselected = { marker: { opacity: 0.45 } };
      return { ...trace, selectedpoints: [point.pointNumber], selected: { marker: { opacity: 1 } }, unselected };
    });

  L.panels.chart = (panel) => {
    const node = L.el("div.chart", {
      role: "img", "aria-label": panel.alt, style: { "min-height": `${panel.height || 340}px` },
    }, L.el("span.loading", { text: L.label("chart_loading") }));
    let drawn = null;
    const draw = async () => {
      const plotly = await L.plotly();
      const state = [L.selected?.row, L.selected?.pos, variable("--ink"), node.clientWidth].join();
      if (!node.isConnected || state === drawn) return;
      drawn = state;
      const first = !node.data;
      if (first) node.replaceChildren();
      await plotly.react(node, marked(panel), layout(panel), CONFIG);
      if (!first) return;
      node.on("plotly_hover", (event) => L.hover(placeOf(event)));
      node.on("plotly_unhover", () => L.hover(null));
      node.on("plotly_click", (event) => {
        node.onpoint?.(event.points?.[0]);
        const place = placeOf(event);
        if (place) L.choose(place.row, place.pos);
      });
    };
    // Another figure in the same place, without building it anew: for what changes while one looks.
    node.redraw = (next) => {
      [panel, drawn] = [next, null];
      return draw();
    };
    L.listen(node, "lessons:hover", (event) => lightUp(node, panel, event.detail));
    L.listen(node, "lessons:select", draw);
    L.listen(node, "lessons:theme", draw);
    L.afterPaint(draw);
    return node;
  };

  L.afterPaint = (act) => requestAnimationFrame(() => setTimeout(act, 0));
  const idle = window.requestIdleCallback || ((act) => setTimeout(act, 300));
  // The first figure compiles most of the library: one nobody sees is drawn while nothing else is going on.
  const warmUp = async () => {
    const plotly = await L.plotly();
    idle(async () => {
      const unseen = L.el("div", { style: { position: "absolute", left: "-9999px", width: "300px", height: "200px" } });
      document.body.append(unseen);
      const of = (type, mode, more) => ({ type, mode, x: [0, 1], y: [0, 1], name: "x", text: ["x", "y"], customdata: [[0, 0], [0, 1]], ...more });
      const data = [of("scatter", "lines"), of("scatter", "markers", { marker: { size: [9, 14] }, selectedpoints: [1] }), of("scatter", "markers+text"), of("bar")];
      await plotly.newPlot(unseen, data, layout({ height: 200, figure: { layout: { legend: { orientation: "h" } } } }), CONFIG);
      plotly.purge(unseen);
      unseen.remove();
    });
  };
  const soon = () => setTimeout(() => idle(warmUp), 1200);
  if (document.readyState === "complete") soon();
  else window.addEventListener("load", soon);
})();
