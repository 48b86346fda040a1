// Every seen preset's loss as a dot on one axis; equal numbers are one dot. Labels stand in lanes above it and never overlap.
(() => {
  const L = window.Lessons;
  const [LANE, AXIS, SIDE, LANES] = [19, 26, 28, 14];
  const pen = document.createElement("canvas").getContext("2d");
  const widthOf = (text) => pen.measureText(text).width;

  const groups = (rows) => {
    const found = new Map();
    for (const row of rows) {
      const cell = row.cells[0];
      if (!cell || cell.x === null) continue;
      if (!found.has(cell.v)) found.set(cell.v, { x: cell.x, v: cell.v, names: [], labelled: false });
      const group = found.get(cell.v);
      group.names.push(row.name);
    }
    return [...found.values()].sort((one, other) => one.x - other.x);
  };

  // The axis is as long as most losses need; the few that lie far off stand at its end, with an arrow.
  const domain = (xs) => {
    const at = (share) => xs[Math.floor(share * (xs.length - 1))];
    const room = 3 * (at(0.75) - at(0.25)) || Infinity;
    const [low, high] = [Math.max(xs[0], at(0.25) - room), Math.min(xs[xs.length - 1], at(0.75) + room)];
    const within = xs.filter((x) => x >= low && x <= high);
    return [within[0], within[within.length - 1]];
  };

  // As many names as a third of the axis holds, at least one.
  const labelOf = (group, panel, room) => {
    const names = [...group.names].sort((one, other) => [panel.a, panel.b].includes(other) - [panel.a, panel.b].includes(one));
    const of = (count) => `${names.slice(0, count).join(", ")}${names.length > count ? ` +${names.length - count}` : ""}`;
    return [3, 2].map(of).find((text) => widthOf(text) < room) ?? of(1);
  };

  // The lowest lane with room for the label, as near its dot as the edges allow.
  const place = (items, width) => {
    const ends = [];
    for (const item of items) {
      item.left = Math.max(0, Math.min(width - item.wide, item.at - item.wide / 2));
      item.lane = ends.findIndex((end) => end + 10 <= item.left);
      if (item.lane < 0) item.lane = ends.length;
      if (item.lane < LANES) ends[item.lane] = item.left + item.wide;
    }
    return ends.length;
  };

  const ticks = (low, high, most) => {
    const raw = (high - low) / Math.max(1, most);
    const power = 10 ** Math.floor(Math.log10(raw || 1));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw) || power;
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, i) => (first + i) * step);
  };

  const drawn = (panel, rows, width) => {
    pen.font = `12px ${getComputedStyle(document.body).getPropertyValue("--font") || "sans-serif"}`;
    const found = groups(rows);
    if (!found.length) return { nodes: [], height: 0 };
    const [low, high] = domain(found.map((group) => group.x));
    const span = high - low || 1;
    const scale = (x) => SIDE + ((Math.max(low, Math.min(high, x)) - low) / span) * (width - 2 * SIDE);
    const few = found.length <= 24;
    const named = new Set(rows.filter((row) => row.default || row.name === panel.a || row.name === panel.b).map((row) => row.name));
    const items = found.map((group) => {
      const off = group.x < low ? "◀ " : group.x > high ? "▶ " : "";
      const names = labelOf(group, panel, Math.max(180, width / 3));
      const label = off ? `${off}${names} ${group.v}` : names;
      return { ...group, label, at: off.startsWith("◀") ? 7 : off ? width - 7 : scale(group.x), wide: widthOf(label) + 4, off };
    });
    const lanes = place(items.filter((item) => few || item.names.some((name) => named.has(name))), width);
    const height = Math.min(lanes, LANES) * LANE + 20 + AXIS;
    const axis = height - AXIS;
    const line = L.svg("line", { class: "axis", x1: 0, x2: width, y1: axis, y2: axis });
    const marks = ticks(low, high, width / 110).flatMap((x) => [
      L.svg("line", { class: "tick", x1: scale(x), x2: scale(x), y1: axis, y2: axis + 5 }),
      L.svg("text", { class: "tick", x: scale(x), y: axis + 18, "text-anchor": "middle" }, `${Number(x.toPrecision(6))}`.replace("-", "−")),
    ]);
    const low0 = low < 0 && high > 0 ? [L.svg("line", { class: "zero", x1: scale(0), x2: scale(0), y1: 0, y2: axis })] : [];
    const parts = items.flatMap((item) => dot(panel, item, axis));
    const last = (node) => ["line", "text", "circle"].indexOf(node.tagName); // names over the lines, dots over both
    return { nodes: [line, ...low0, ...marks, ...parts.sort((one, other) => last(one) - last(other))], height };
  };

  const dot = (panel, item, axis) => {
    const side = item.names.includes(panel.a) ? " a" : item.names.includes(panel.b) ? " b" : "";
    const said = L.svg("title", {}, `${item.v}: ${item.names.join(", ")}`);
    const circle = L.svg("circle", {
      class: `dot${side}`, cx: item.at, cy: axis, r: side ? 7 : 5, "data-quantity": "loss", "data-preset": item.names.join(" "), "data-value": item.v,
    }, said);
    circle.addEventListener("click", () => L.unfold(item.names[0]));
    if (item.lane === undefined || item.lane >= LANES) return [circle];
    const top = axis - 20 - item.lane * LANE;
    const text = L.svg("text", { class: `name${side}`, x: item.left + 2, y: top }, item.label);
    text.addEventListener("click", () => L.unfold(item.names[0]));
    return [L.svg("line", { class: `leader${side}`, x1: item.at, x2: item.at, y1: top + 4, y2: axis - 5 }), circle, text];
  };

  // rows(): the presets that the table shows now.
  L.lossStrip = (panel, rows) => {
    const svg = L.svg("svg", { role: "img", "aria-label": L.label("compare_strip") });
    const node = L.el("figure.loss-strip", {}, svg, L.el("figcaption.note", { text: L.label("compare_strip") }));
    node.redraw = () => {
      const width = Math.floor(node.clientWidth);
      if (!width) return;
      const { nodes, height } = drawn(panel, rows(), width);
      svg.replaceChildren(...nodes);
      svg.setAttribute("width", width);
      svg.setAttribute("height", height);
    };
    new ResizeObserver(() => requestAnimationFrame(node.redraw)).observe(node);
    return node;
  };
})();
