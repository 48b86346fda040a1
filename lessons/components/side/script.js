// Beside every picture, always in this order: question, formula, its numbers, words, checks, source, tensors.
(() => {
  const L = window.Lessons;
  const SIGNS = { pass: "✓", info: "i", warning: "!", error: "✗", skipped: "–" };

  const card = (name, label, ...children) =>
    L.el(`section.card.${name}`, {}, L.el("h3", { text: L.label(label) }), ...children);

  const answer = (option) => L.send("side", "answer", { option });

  const option = (question, item) => {
    const chosen = question.answer === item.id;
    const known = question.reveal_html !== null && question.reveal_html !== undefined;
    const verdict = chosen && known && typeof question.right === "boolean" ? (question.right ? ".right" : ".wrong") : "";
    return L.el(`button.option${chosen ? ".chosen" : ""}${verdict}`,
      { type: "button", "aria-pressed": chosen ? "true" : "false", onclick: () => answer(item.id) },
      L.el("span.sign", { text: verdict === ".right" ? "✓" : verdict === ".wrong" ? "✗" : "", "aria-hidden": "true" }),
      L.withCode("span", item.label));
  };

  const verdict = (question) =>
    question.right === true ? "answer_right" : question.right === false ? "answer_wrong" : "answer_shown";

  const question = (item) => {
    const known = item.reveal_html !== null && item.reveal_html !== undefined;
    return card("question", "predict",
      L.trusted("div.asked", item.text_html),
      item.options?.length ? L.el("div.options", {}, ...item.options.map((o) => option(item, o))) : null,
      known
        ? L.el("div.reveal", { role: "status" }, L.el("strong", { text: L.label(verdict(item)) }), L.trusted("div", item.reveal_html))
        : L.el("button.show", { type: "button", onclick: () => answer("") },
          L.el("span", { text: L.label("reveal") }), L.el("kbd", { text: L.label("key_space") })));
  };

  const formula = (value) => {
    const parts = [];
    if (value.formula?.mathml) parts.push(L.trusted("div.math", value.formula.mathml));
    if (value.formula?.caption_html) parts.push(L.trusted("div.caption", value.formula.caption_html));
    const numbers = value.formula?.numbers_mathml;
    if (numbers) parts.push(L.el("h4", { text: L.label("numbers") }), L.trusted("div.math.with-numbers", numbers));
    return parts.length ? card("formula", "formula", ...parts) : null;
  };

  const lines = (item) => {
    const place = `${item.file}:${item.line}`;
    return L.el("figure.code", {},
      L.el("figcaption", {}, item.url ? L.el("a", { href: item.url, rel: "noreferrer", text: place }) : place),
      L.el("pre", { tabindex: 0 }, L.el("code", { text: item.code })));
  };

  const tensors = (items) =>
    L.scroller(L.el("table.tensors", {}, L.el("tbody", {}, ...items.map((item) => L.el("tr", {},
      L.el("th", { scope: "row" }, L.el("code", { text: item.name }), item.symbol_mathml && L.trusted("i", item.symbol_mathml)),
      L.el("td", {}, item.axes && L.el("span.axes", { text: `[${item.axes}]` }), L.el("span.shape", { text: `[${item.shape.join(" ")}]` })),
      L.el("td", { text: item.dtype }))))));

  const check = (item) =>
    L.el(`li.check.${item.status}`, { data: { check: item.name, status: item.status } },
      L.el("span.sign", { text: SIGNS[item.status] || "?", "aria-hidden": "true" }),
      L.el("div", {},
        L.el("div.what", {}, L.el("span", { text: item.label || item.name }), L.el("span.word", { text: L.label(`status_${item.status}`) })),
        item.message && L.el("div.message", { text: item.message }),
        item.fix && L.el("div.fix", {}, L.el("b", { text: `${L.label("fix")} ` }), item.fix)));

  // A formula does not break onto lines: one that is too wide is set smaller, down to where it can still be read. Its
  // neighbours go half of the way with it.
  const fit = (frame) => {
    const lines = [...frame.querySelectorAll("math")];
    const sizes = lines.map((line) => Math.max(0.72, Math.min(1, 0.97 * (frame.clientWidth / line.scrollWidth))));
    const together = (1 + Math.min(...sizes)) / 2;
    if (together < 1) return () => lines.forEach((line, i) => line.style.setProperty("font-size", `${Math.min(sizes[i], together)}em`));
  };

  L.views.side = (root, value) => {
    const focused = [...root.querySelectorAll("button")].indexOf(document.activeElement);
    root.replaceChildren(...[
      value.question && question(value.question),
      formula(value),
      value.prose_html && card("prose", "about", L.trusted("div.prose-text", value.prose_html)),
      value.checks?.length && card("checks", "checks", L.el("ul", {}, ...value.checks.map(check))),
      value.source?.length && card("source", "source", ...value.source.map(lines)),
      value.tensors?.length && card("tensor-list", "tensors", tensors(value.tensors)),
      L.turns(),
    ].filter(Boolean));
    root.querySelectorAll(".math").forEach((frame) => L.beforePaint(() => fit(frame)));
    if (focused >= 0) root.querySelectorAll("button")[focused]?.focus({ preventScroll: true });
  };
})();
