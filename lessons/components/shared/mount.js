// Where Gradio's component meets our drawing: the value arrives as JSON text, so that it is parsed and compared once.
(() => {
  const L = window.Lessons;

  // What must be measured waits for the frame, when all parts are drawn: one layout for everyone who asks. `measure`
  // reads, and may scroll; what changes sizes it returns, to be done when everybody has read.
  const asked = [];
  L.beforePaint = (measure) => {
    if (!asked.length) requestAnimationFrame(() => asked.splice(0).map((read) => read()).forEach((act) => act?.()));
    asked.push(measure);
  };

  L.mount = (view, element, props, watch, trigger) => {
    const root = element.querySelector(".lv");
    let last = null;
    L.triggers[view] = trigger;
    const draw = () => {
      if (!props.value || props.value === last) return;
      last = props.value;
      const value = JSON.parse(last);
      Object.assign(L.labels, value.labels);
      L.current[view] = value;
      L.views[view](root, value);
    };
    watch("value", draw);
    draw();
  };

  // Draws a panel; one that cannot be drawn says so and leaves the others alone.
  const framed = (panel) => {
    const body = L.panels[panel.kind](panel);
    return L.el(
      `section.panel.panel-${panel.kind}${panel.wide ? ".wide" : ""}`,
      { "aria-label": panel.title },
      panel.title && L.el("h3", { text: panel.title }),
      body,
      panel.caption_html && L.trusted("div.caption", panel.caption_html),
    );
  };

  // One panel that cannot be drawn does not take the others with it.
  L.panel = (panel) => {
    try {
      return framed(panel);
    } catch (error) {
      console.error("a panel could not be drawn", panel.kind, error);
      return L.el("section.panel.failed", { text: `${panel.kind}: ${error.message}` });
    }
  };
})();
