// Where a batch comes from: a file that is dropped or opened, or something to try. And what the batch is.
(() => {
  const L = window.Lessons;
  let most = Infinity;

  const input = () => {
    const host = document.getElementById("debug-file");
    return (host?.matches("button") ? host.parentElement : host)?.querySelector("input[type=file]");
  };

  const say = (text, bad = false) => {
    const node = document.querySelector(".lv-debug .drop-said");
    if (!node) return;
    node.textContent = text;
    node.classList.toggle("bad", bad);
  };

  // `files` as the browser gives them; one is read, by Gradio's own upload.
  const take = (files) => {
    const [file] = files;
    if (!file) return;
    if (file.size > most) return say(L.label("debug_too_large").replace("{name}", file.name).replace("{most}", Math.floor(most / 2 ** 20)), true);
    say(`${L.label("debug_reading")} ${file.name}`);
    const field = input();
    if (field.files !== files) {
      const carrier = new DataTransfer();
      carrier.items.add(file);
      field.files = carrier.files;
      field.dispatchEvent(new Event("change", { bubbles: true }));
    }
  };

  // Dropped anywhere on the page: nobody aims at a frame with a file in the hand.
  const holds = (event) => [...(event.dataTransfer?.types || [])].includes("Files") && document.querySelector(".lv-debug .drop");
  const light = (on) => document.querySelector(".lv-debug .drop")?.classList.toggle("over", on);
  document.addEventListener("dragover", (event) => {
    if (!holds(event)) return;
    event.preventDefault();
    light(true);
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget || light(false));
  document.addEventListener("drop", (event) => {
    if (!holds(event)) return;
    event.preventDefault();
    light(false);
    take(event.dataTransfer.files);
  });
  document.addEventListener("change", (event) => {
    if (event.target === input() && document.querySelector(".lv-debug .drop")) take(event.target.files);
  }, true);

  const card = (item) =>
    L.el(`button.try${item.current ? ".current" : ""}`, {
      type: "button", "aria-pressed": item.current ? "true" : "false", data: { batch: item.batch, focus: `try-${item.batch}` },
      onclick: () => L.debug("choose", { batch: item.batch }),
    }, L.el("strong", { text: item.label }), L.el("span", { text: item.info }));

  L.panels.batch_chooser = (panel) => {
    most = panel.most;
    const open = () => input()?.click();
    return L.el(`div.chooser${panel.open ? ".open" : ""}`, {},
      L.el("div.drop", {},
        L.el("p.drop-title", { text: L.label("debug_drop") }),
        L.el("button.act", { type: "button", text: L.label("debug_open"), data: { focus: "open-file" }, onclick: open }),
        L.withCode("p.note", L.label("debug_drop_hint")), L.el("p.drop-said", { role: "status" })),
      L.el("div.tries", { role: "group", "aria-label": L.label("debug_try") }, L.el("p.tries-title", { text: L.label("debug_try") }), ...panel.cards.map(card)));
  };

  // ---- what it is --------------------------------------------------------------------------------------------------------
  const figure = (item) =>
    L.el("div.figure", { data: { said: item.name } }, L.el("dt", { text: item.label }),
      L.el("dd", {}, L.el("b", { text: item.value, data: { quantity: `summary_${item.name}` } }), item.note && L.el("span.note", { text: item.note })));

  const updates = (panel) =>
    panel.updates.length
      ? L.el("div.updates", { role: "group", "aria-label": L.label("which_update") }, L.el("span.which", { text: L.label("which_update") }),
        ...panel.updates.map((item) => L.el(`button.update${item.current ? ".current" : ""}`, {
          type: "button", text: item.label, "aria-pressed": item.current ? "true" : "false", data: { focus: `update-${item.index}` },
          onclick: () => L.debug("choose", { update: item.index }),
        })))
      : null;

  const pairs = (items) => L.el("dl.pairs", {}, ...items.flatMap((item) => [L.el("dt", {}, L.el("code", { text: item.name })), L.el("dd", { text: item.value })]));

  const fold = (label, count, body) =>
    count ? L.el("details.fold", {}, L.el("summary", {}, label, L.el("span.count", { text: count })), body) : null;

  L.panels.batch_about = (panel) =>
    L.el("div.about-batch", {},
      L.el("div.batch-line", {}, L.el("p.batch-name", {}, L.el("strong", { text: panel.name }), panel.recognised ? L.el("span.note", { text: panel.recognised }) : null), updates(panel),
        panel.compare ? L.el("a.act.quiet", { href: L.withTheme(panel.compare), text: L.label("debug_compare") }) : null),
      L.el("dl.figures", {}, ...panel.numbers.map(figure),
        figure({ name: "framework", label: L.label("debug_framework"), value: panel.framework || "–", note: `${L.label("debug_preset")} ${panel.preset}` })),
      fold(L.label("debug_holds"), `${panel.present.length} + ${panel.absent.length}`, L.el("div.holds", {},
        L.el("div.there", {}, L.el("h4", { text: L.label("debug_present") }),
          L.el("ul.names", {}, ...panel.present.map((item) => L.el("li", { title: item.shape, data: { present: item.name } }, L.el("span", { text: "✓ ", "aria-hidden": "true" }), L.el("code", { text: item.name }), L.el("span.note", { text: item.shape }))))),
        panel.absent.length ? L.el("div.lacks", {}, L.el("h4", { text: L.label("debug_absent") }),
          L.el("ul.names", {}, ...panel.absent.map((item) => L.el("li", { data: { absent: item.name } }, L.el("span", { text: "– ", "aria-hidden": "true" }), L.el("code", { text: item.name }), L.el("span.note", { text: item.enables }))))) : null)),
      panel.remarks.length ? L.el("div.batch-note", {}, L.el("p", { text: L.label("debug_remarks") }), L.el("ul.remarks", {}, ...panel.remarks.map((text) => L.el("li", { text })))) : null,
      fold(L.label("debug_settings"), panel.settings.length, pairs(panel.settings)),
      fold(L.label("debug_reported"), panel.reported.length, pairs(panel.reported)));

  L.panels.report_saver = (panel) =>
    L.el("div.savers", {}, ...panel.kinds.map((kind) => L.el(`button.act${kind === "html" ? "" : ".quiet"}`, {
      type: "button", text: L.label(`debug_save_${kind}`), data: { focus: `save-${kind}`, save: kind }, onclick: () => L.debug("save", { kind }),
    })));
})();
