// The museum: a shelf of cards, and the exhibit on the table: symptom, walk, guess, answer. What was solved stays in this browser.
(() => {
  const L = window.Lessons;
  const KEY = "grpo-museum";

  const solved = () => {
    try {
      const kept = JSON.parse(localStorage.getItem(KEY) || "{}");
      return kept && typeof kept === "object" ? kept : {};
    } catch {
      return {};
    }
  };
  const keep = (kept) => {
    try {
      localStorage.setItem(KEY, JSON.stringify(kept));
    } catch { /* a browser that keeps nothing: progress lasts as long as the page */ }
  };

  const send = (name, data = {}) => {
    document.querySelector(".lv-museum article")?.classList.add("waiting");
    L.send("museum", name, data);
  };
  const fill = (text, values) => L.label(text).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
  const act = (label, name, data, quiet = true) =>
    L.el(`button.act${quiet ? ".quiet" : ""}`, { type: "button", text: label, data: { focus: name }, onclick: () => send(name, data) });

  // ---- the shelf ---------------------------------------------------------------------------------------------------------
  const MARKS = { found: "✓", told: "○" };
  const card = (item, kept) => {
    const mark = MARKS[kept[item.slug]] ? kept[item.slug] : "";
    return L.el("li", {}, L.el(`button.exhibit-card${item.current ? ".current" : ""}`, {
      type: "button", "aria-current": item.current ? "true" : null, data: { exhibit: item.slug, focus: `card-${item.slug}`, solved: mark },
      onclick: () => send("choose", { exhibit: item.slug }),
    },
    L.el("span.card-head", {}, L.el("span.number", { text: item.number, "aria-hidden": "true" }), L.el("strong", { text: item.title }),
      mark ? L.el(`span.mark.${mark}`, {}, L.el("span", { text: MARKS[mark], "aria-hidden": "true" }), ` ${L.label(`museum_done_${mark}`)}`) : null),
    L.el("span.told", { text: item.told })));
  };

  const shelf = (value) => {
    const kept = solved();
    const done = value.shelf.filter((item) => MARKS[kept[item.slug]]).length;
    return L.el("section.part", { id: "museum-shelf", "aria-label": L.label("museum_shelf") },
      L.el("div.shelf-head", {}, L.el("h3.part-title", { text: L.label("museum_shelf") }),
        L.el("span.progress", { text: fill("museum_progress", { done, all: value.shelf.length }), data: { done } }),
        done ? L.el("button.act.quiet", {
          type: "button", text: L.label("museum_forget"), data: { focus: "forget" }, onclick: () => {
            keep({});
            L.views.museum(document.querySelector(".lv-museum"), value);
          },
        }) : null),
      L.el("ol.shelf", {}, ...value.shelf.map((item) => card(item, kept))));
  };

  // ---- the exhibit -------------------------------------------------------------------------------------------------------
  const walk = (item) =>
    L.el("div.panel.walk-part", {}, L.el("h4", { text: L.label("museum_walk") }), L.el("p.note", { text: L.label("museum_walk_hint") }),
      L.el("ol.walk", {}, ...item.walk.map((lesson) => L.el("li", {}, L.el("a.chip-link", { href: L.withTheme(lesson.href), data: { lesson: lesson.slug, focus: `walk-${lesson.slug}` } },
        L.el("span.number", { text: lesson.number }), lesson.title)))));

  const option = (item, check, label) =>
    L.el("label.option", {}, L.el("input", {
      type: "radio", name: "museum-guess", value: check, checked: item.guess === check, disabled: item.known, data: { focus: `guess-${check}` },
    }), L.el("span", { text: label }));

  const guessing = (item) => {
    const form = L.el("form.guess", {
      onsubmit: (event) => {
        event.preventDefault();
        const picked = form.querySelector("input:checked");
        if (picked) send("guess", { guess: picked.value });
      },
    },
    L.el(item.known ? "details.badges-fold" : "div", {}, item.known ? L.el("summary", { text: L.label("museum_all_badges") }) : null, L.el("div.badge-groups", {},
      ...item.options.map((group) => L.el("fieldset", {}, L.el("legend", {}, L.el("span.number", { text: group.number }), group.title),
        ...group.checks.map((one) => option(item, one.check, one.label)))),
      L.el("fieldset.quiet", {}, L.el("legend", { text: L.label("museum_none") }), option(item, "none", L.label("museum_none_info"))))),
    L.el("div.guess-acts", {},
      item.known ? null : L.el("button.act", { type: "submit", text: L.label("museum_say"), data: { focus: "say" } }),
      item.known ? null : act(L.label("museum_tell"), "tell", {}),
      L.el(`p.said${item.right ? ".good" : ".bad"}`, {
        role: "status",
        text: item.right === null ? "" : item.right ? L.label("museum_right") : `${L.label("museum_wrong")} ${item.hint}`,
      })));
    return L.el("div.panel.guess-part", {}, L.el("h4", { text: L.label("museum_question") }), item.known ? null : L.el("p.note", { text: L.label("museum_guess_hint") }), form);
  };

  const numbers = (items) =>
    items.length ? L.el("div.scroller", { tabindex: "0" }, L.el("table.numbers", {},
      L.el("thead", {}, L.el("tr", {}, ...["debug_quantity_name", "debug_found", "debug_expected"].map((key) => L.el("th", { scope: "col", text: L.label(key) })))),
      L.el("tbody", {}, ...items.map((one) => L.el("tr", { data: { number: one.name } }, L.el("th", { scope: "row" }, L.el("code", { text: one.name })),
        L.el("td.found", { text: one.found }), L.el("td.right", { text: one.expected })))))) : null;

  const places = (one) => {
    if (!one.tokens.length && !one.rows.length) return null;
    const label = L.label(one.tokens.length ? "debug_tokens_named" : "debug_rows_named");
    const named = one.tokens.length
      ? one.tokens.map((token) => L.el("span.chip.place", { data: { row: token.row, pos: token.pos } }, L.el("span.piece", { text: token.text }), L.el("span.sub", { text: `${token.row + 1} · ${token.pos}` })))
      : one.rows.slice(0, 12).map((row) => L.el("span.row-name", { text: row + 1 }));
    const more = one.tokens.length ? one.all_tokens - one.tokens.length : one.rows.length - 12;
    return L.el("p.places", {}, L.el("span.what", { text: `${label} ` }), ...named, more > 0 ? L.el("span.what", { text: ` +${more}` }) : null);
  };

  const badge = (one) =>
    L.el(`div.finding.${one.status}`, { data: { check: one.check, status: one.status } },
      L.el("div.finding-head", {}, L.el("span.severity", {}, L.el("span", { text: one.sign, "aria-hidden": "true" }), L.el("span", { text: one.label })),
        L.el("span.where", { text: `${one.number} ${one.title}` })),
      L.el("p.message", { text: one.message }), numbers(one.numbers), places(one),
      one.fix ? L.el("p.fix", {}, L.el("strong", { text: `${L.label("debug_fix")} ` }), one.fix) : null,
      L.el("div.finding-acts", {}, L.el("a.act", { href: L.withTheme(one.href), text: fill("museum_see", { number: one.number, title: one.title }), data: { focus: "see" } }),
        L.el("code.check-name", { text: one.check })));

  const answer = (item) => {
    const said = item.answer;
    return L.el("div.panel.answer", { data: { answer: said.badge?.check || "" } },
      L.el("h4", { text: said.verdict }), said.badge ? badge(said.badge) : null,
      said.turned.length ? L.el("div.then", {}, L.el("p.note", { text: L.label("museum_then") }),
        L.el("ul.chain", {}, ...said.turned.map((one) => L.el(`li.${one.status}`, { data: { check: one.check, status: one.status } },
          L.el("span.sign", { text: one.sign, "aria-hidden": "true" }), L.el("span", { text: one.label }), L.el("span.note", { text: `${one.number} ${one.title}` }))))) : null,
      said.cause ? L.el("p.note.cause", { text: said.cause }) : null,
      L.el("div.why", {}, L.el("h5", { text: L.label("museum_why") }), L.trusted("div.why-text", said.why_html)),
      L.el("p.reports", {}, L.el("span.note", { text: `${L.label("museum_report")} ` }), ...said.reports.map((report) => L.el("code.report", { text: report }))),
      L.el("div.answer-acts", {}, act(L.label("museum_next"), "choose", { exhibit: item.following }, false),
        L.el("a.act.quiet", { href: L.withTheme(said.debug), text: L.label("museum_debug") })));
  };

  const table = (value) => {
    const item = value.open;
    if (!item) return null;
    return L.el("section.part.table", { id: "museum-open", "aria-label": item.title, data: { open: item.slug } },
      L.el("div.table-head", {}, L.el("div", {}, L.el("p.note", { text: fill("museum_exhibit", { number: item.number }) }), L.el("h3.part-title", { text: item.title })),
        act(L.label("museum_back"), "choose", { exhibit: "" })),
      L.el("blockquote.symptom", { text: item.told }),
      value.running ? L.el("div.running", { role: "status" }, L.el("span.text", { text: L.label("museum_running") }), L.el("span.track", {}, L.el("span.fill"))) : null,
      item.lacks ? L.el("div.panel.lacking", { role: "status" }, L.el("p", { text: item.lacks }), act(item.carries, "carry", {}, false)) : null,
      item.walk ? walk(item) : null, item.options ? guessing(item) : null, item.answer ? answer(item) : null);
  };

  L.views.museum = (root, value) => {
    root.classList.add("lv-picture", "lv-compare");
    document.documentElement.dataset.hide = (value.hide || []).join(" ");
    document.documentElement.lang = value.lang;
    const had = root.querySelector("[data-open]")?.dataset.open || "";
    const focus = root.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const picked = root.querySelector("input[name=museum-guess]:checked")?.value;
    if (value.open?.known) {
      const kept = solved();
      keep({ ...kept, [value.open.slug]: kept[value.open.slug] === "found" || value.open.right ? "found" : "told" });
    }
    const notices = value.notice.length
      ? L.el("div.notices", { role: "status" }, ...value.notice.map((text) => L.el("p.notice", { text }))) : null;
    root.replaceChildren(L.el("article", { "aria-busy": value.running ? "true" : "false" },
      L.el("header", {}, L.el("h2", { text: value.title }), value.open ? null : L.trusted("div.lead", value.lead_html)),
      notices || "", table(value) || "", shelf(value)));
    const open = value.open?.slug || "";
    if (open === had && picked && !value.open?.guess) {
      const again = root.querySelector(`input[value="${CSS.escape(picked)}"]`);
      if (again) again.checked = true;
    }
    if (open !== had && (had || open)) scrollTo({ top: 0 });
    if (focus) root.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
    document.title = `${value.open?.title || value.title} · ${L.label("brand")}`;
    L.address(value.query, value.place);
    L.answered();
  };
})();
