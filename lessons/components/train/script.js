// The page Train. What a run changes is drawn into nodes that stay, so that nothing flickers and nothing loses the focus.
(() => {
  const L = window.Lessons;
  const PAUSE = 400; // ms between an answer and the next question
  const LOST = 6000; // ms after which a question without an answer is asked again
  const ACTS = { start: "start", again: "start", pause: "pause", resume: "resume", stop: "stop" };
  let page = null; // the whole value of the page as it stands
  let parts = null; // its nodes
  let points = { run: "", x: [], y: {} };
  let picked = null; // the kept step that somebody chose; null: the newest
  let timer = null;

  const place = () => ({ run: points.run, since: points.x.length });
  const ask = (delay) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      L.send("train", "poll", place());
      ask(LOST);
    }, delay);
  };

  const button = (act) => L.el(`button.act.${act === "start" || act === "again" || act === "resume" ? "primary" : "quiet"}`, {
    type: "button", text: L.label(`train_${act}`), data: { act, focus: act }, onclick: () => L.send("train", ACTS[act], place()),
  });

  // ---- the parts that stay ---------------------------------------------------------------------------------------------
  const buildRun = () => {
    const nodes = {
      acts: Object.keys(ACTS).map(button), said: L.el("p.said", { role: "status" }), bar: L.el("progress", { "aria-label": L.label("train_step") }),
      count: L.el("span.count"), speed: L.el("span.speed"), settings: L.el("details.settings-place", { open: true }),
    };
    nodes.root = L.el("section.panel.wide.run", {},
      L.el("div.acts", {}, ...nodes.acts, nodes.said),
      L.el("div.progress", {}, nodes.bar, nodes.count, nodes.speed), nodes.settings);
    return nodes;
  };

  const buildOpener = () => {
    const nodes = {
      title: L.el("h3"), caption: L.el("p.caption"), said: L.el("p.note"), link: L.el("a.open"), label: L.el("label", { for: "train-pick" }),
      range: L.el("input", { id: "train-pick", type: "range", min: 0, step: 1, data: { focus: "pick" } }),
    };
    nodes.range.addEventListener("input", () => {
      picked = page.kept.steps[Number(nodes.range.value)] ?? null;
      drawPicked();
    });
    nodes.pick = L.el("div.pick", {}, nodes.label, nodes.range, nodes.link);
    nodes.root = L.el("section.panel.wide.opener", {}, nodes.title, nodes.pick, nodes.said, nodes.caption);
    return nodes;
  };

  // The nearest kept step to a point of a curve.
  const pick = (point) => {
    const steps = page.kept.steps;
    if (!point || !steps.length) return;
    picked = steps.reduce((best, step) => (Math.abs(step + 1 - point.x) < Math.abs(best + 1 - point.x) ? step : best));
    drawOpener();
  };

  const build = (root, value) => {
    const known = new Map((parts?.charts || []).map((item) => [item.json, item]));
    const charts = value.charts.map((panel) => {
      const json = JSON.stringify(panel);
      if (known.has(json)) return known.get(json);
      const node = L.panel(panel);
      const chart = node.querySelector(".chart");
      if (chart) chart.onpoint = pick;
      return { json, panel, node, chart };
    });
    parts = parts && parts.lang === value.lang ? { ...parts, charts } : {
      lang: value.lang, charts, run: buildRun(), opener: buildOpener(), notices: L.el("div.notices", { role: "status" }),
      numbers: L.el("section.panel.wide.numbers"), answers: L.el("div.answers"),
    };
    const header = L.el("header", {}, L.el("div.title-line", {}, L.el("h2", { text: value.title })), L.trusted("div.lead", value.lead_html));
    root.replaceChildren(
      L.el("article", { id: `lesson-${value.slug}`, "aria-busy": "false" }, header, parts.notices, parts.run.root, parts.numbers,
        L.el("div.panels", {}, ...charts.map((item) => item.node), parts.opener.root, parts.answers), L.turns()));
  };

  // ---- what is drawn into them -----------------------------------------------------------------------------------------
  const drawRun = () => {
    const { run, nodes } = { run: page.run, nodes: parts.run };
    for (const node of nodes.acts) node.hidden = !run.acts.includes(node.dataset.act);
    nodes.root.dataset.state = run.state;
    if (nodes.said.textContent !== run.said) nodes.said.textContent = run.said;
    nodes.bar.max = run.steps || 1;
    nodes.bar.value = run.done || 0;
    nodes.count.replaceChildren(...(run.step ? [`${L.label("train_step")} `, L.number(run.step), ` ${run.of}`] : []));
    nodes.speed.replaceChildren(...(run.speed ? [L.number(run.speed), ` ${L.label("train_speed")}`] : []));
  };

  const drawForm = () => {
    const locked = Boolean(page.run.id) && !page.run.acts.includes("again");
    const json = JSON.stringify([page.form, locked]);
    if (json === parts.run.form) return;
    if (locked && !parts.run.locked) parts.run.settings.open = false; // the curves come up
    [parts.run.form, parts.run.locked] = [json, locked];
    parts.run.settings.replaceChildren(L.el("summary", { text: L.label("train_form") }), L.trainForm(page.form, locked));
  };

  const drawNumbers = () => {
    parts.numbers.hidden = !page.numbers.length;
    parts.numbers.replaceChildren(L.el("h3", { text: L.label("train_numbers") }),
      L.el("dl", {}, ...page.numbers.map((item) => L.el("div", {}, L.el("dt", { text: item.label }), L.el("dd", {}, L.number(item.n))))));
  };

  const drawCharts = () => {
    for (const item of parts.charts) {
      const key = `${points.run} ${points.x.length}`;
      if (!item.chart || item.drawn === key) continue;
      item.drawn = key;
      const data = item.panel.figure.data.map((trace) => ({ ...trace, x: points.x.slice(), y: [...(points.y[trace.series] || [])] }));
      item.chart.redraw({ ...item.panel, figure: { ...item.panel.figure, data } });
    }
  };

  const drawPicked = () => {
    const { steps, name } = page.kept;
    const step = picked !== null && steps.includes(picked) ? picked : steps[steps.length - 1];
    const nodes = parts.opener;
    nodes.range.value = steps.indexOf(step);
    nodes.range.setAttribute("aria-valuetext", `${L.label("train_open_pick")} ${step + 1}`);
    nodes.label.textContent = `${L.label("train_open_pick")} ${step + 1}`;
    nodes.link.textContent = L.label("train_open_link").replace("{step}", step + 1);
    const hide = page.hide.length ? `&hide=${page.hide.map(encodeURIComponent).join()}` : "";
    nodes.link.href = L.withTheme(`./?lesson=prompt&lang=${page.lang}${hide}&model=${name}${step}`);
    nodes.link.dataset.step = step;
  };

  const drawOpener = () => {
    const { kept, nodes } = { kept: page.kept, nodes: parts.opener };
    nodes.title.textContent = kept.title;
    nodes.caption.textContent = kept.caption;
    nodes.said.textContent = kept.said;
    nodes.said.hidden = !kept.said;
    nodes.pick.hidden = !kept.steps.length;
    nodes.range.max = Math.max(0, kept.steps.length - 1);
    if (kept.steps.length) drawPicked();
  };

  const drawAnswers = () => {
    const json = JSON.stringify(page.answers);
    if (json === parts.answers.dataset.json) return;
    parts.answers.dataset.json = json;
    parts.answers.replaceChildren(L.panel(page.answers));
  };

  const take = (value) => {
    const run = value.run.id;
    if (!value.points) points = { run, x: [], y: {} };
    else {
      const { from, x, y } = value.points;
      const old = from ? points : { x: [], y: {} };
      const joined = (name) => [...(old.y[name] || []).slice(0, from), ...y[name]];
      points = { run, x: [...old.x.slice(0, from), ...x], y: Object.fromEntries(Object.keys(y).map((name) => [name, joined(name)])) };
    }
    if (page?.run.id !== run) picked = null;
    page = { ...page, ...value };
  };

  L.views.train = (root, value) => {
    root.classList.add("lv-picture");
    const focus = root.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    take(value);
    if (!value.part) build(root, value);
    parts.notices.replaceChildren(...page.notice.map((text) => L.el("p.notice", { text })));
    for (const draw of [drawRun, drawForm, drawNumbers, drawCharts, drawOpener, drawAnswers]) draw();
    const keeps = focus && [...root.querySelectorAll(`[data-focus="${focus}"]`)].find((node) => !node.hidden);
    if (focus && !root.contains(document.activeElement)) (keeps || root.querySelector(".acts button:not([hidden])"))?.focus({ preventScroll: true });
    if (!value.part) {
      document.documentElement.dataset.hide = page.hide.join(" ");
      document.documentElement.lang = page.lang;
      document.title = `${page.title} · ${L.label("brand")}`;
      L.address(page.query, page.slug);
    }
    clearTimeout(timer);
    if (page.run.active) ask(PAUSE);
    L.answered();
  };
})();
