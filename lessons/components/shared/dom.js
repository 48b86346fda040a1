// Building DOM from values. Data only ever becomes text; `trusted` is for strings that our own server code wrote.
(() => {
  const L = window.Lessons;
  Object.assign(L, { panels: {}, views: {}, labels: {}, triggers: {}, current: {} });

  const setAttribute = (node, name, value) => {
    if (value === null || value === undefined || value === false) return;
    if (name === "text") node.textContent = value;
    else if (name === "data") for (const key in value) setAttribute(node, `data-${key}`, value[key]);
    else if (name === "style") for (const key in value) node.style.setProperty(key, value[key]);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  };

  // el("span.num.pos", {text, data: {row: 1}, style: {"--t": .5}, onclick}, ...children)
  L.el = (path, attributes = {}, ...children) => {
    const [tag, ...classes] = path.split(".");
    const node = document.createElement(tag || "div");
    if (classes.length) node.className = classes.join(" ");
    for (const name in attributes) setAttribute(node, name, attributes[name]);
    for (const child of children) if (child !== null && child !== undefined && child !== false) node.append(child);
    return node;
  };

  const SVG = "http://www.w3.org/2000/svg";
  L.svg = (tag, attributes = {}, ...children) => {
    const node = document.createElementNS(SVG, tag);
    for (const name in attributes) setAttribute(node, name, attributes[name]);
    node.append(...children.filter(Boolean));
    return node;
  };

  // For `*_html` and `mathml` only: made by our server from our own Markdown, everything else escaped there.
  L.trusted = (path, html, attributes = {}) => {
    const node = L.el(path, attributes);
    node.innerHTML = html || "";
    return node;
  };

  // `code` in a label, without markup: every second piece between back ticks is code.
  L.withCode = (path, text) =>
    L.el(path, {}, ...String(text ?? "").split("`").map((part, i) => (i % 2 ? L.el("code", { text: part }) : part)));

  L.label = (key) => L.labels[key] ?? key;

  const isNumber = (cell) => cell !== null && typeof cell === "object" && "v" in cell;
  L.isNumber = isNumber;
  L.place = (row, pos) => (row === null || row === undefined || pos === null || pos === undefined ? {} : { row, pos });

  // The sign decides the colour; it is read off the text, which carries it anyway.
  const signOf = (n) => n.s ?? (/^[−-]/.test(n.v) ? -1 : /[1-9∞]/.test(n.v) ? 1 : 0);

  // A number that says which element of which tensor it is; its text is shown as it came.
  L.number = (n, path = "span") => {
    if (n === null || n === undefined) return L.masked(path);
    if (!isNumber(n)) return L.el(`${path}.num`, { text: String(n) });
    const node = L.el(`${path}.num${n.s === undefined ? "" : signOf(n) < 0 ? ".neg" : signOf(n) > 0 ? ".pos" : ""}`, {
      text: n.v,
      data: { quantity: n.q, row: n.r, pos: n.p, from: n.from, token: n.token, function: n.function, layer: n.layer },
    });
    if (n.hot) node.classList.add("hot");
    if (n.off) node.classList.add("off");
    return node;
  };

  L.masked = (path = "span") => L.el(`${path}.masked`, { title: L.label("masked"), "aria-label": L.label("masked") });

  L.signOf = signOf;
  // How strongly a text is coloured: its magnitude against `max`. For drawing only, never shown.
  L.strength = (text, max) => {
    const value = Number(String(text).replace(/−/g, "-").replace(/[^0-9eE+.\-]/g, ""));
    return Number.isFinite(value) && max > 0 ? Math.min(1, Math.abs(value) / max) : 0;
  };

  // A frame for what may be wider than the card: scrolls inside, never widens the page.
  L.scroller = (child, label) => L.el("div.scroller", { role: "region", "aria-label": label }, child);
})();
