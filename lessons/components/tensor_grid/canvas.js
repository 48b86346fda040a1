// The canvas of a large grid: same hover and selection as the spans of a small one; the number shows below it.
(() => {
  const L = window.Lessons;
  const GUTTER = 76; // px for row labels
  const ROW = 20;

  const color = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();

  const hatch = (context) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = tile.getContext("2d");
    pen.strokeStyle = color("--line-strong");
    pen.beginPath();
    pen.moveTo(0, 6);
    pen.lineTo(6, 0);
    pen.stroke();
    return context.createPattern(tile, "repeat");
  };

  const ring = (context, grid, place, stroke) => {
    const i = grid.panel.rows.findIndex((line) => line.row === place?.row);
    const j = grid.panel.positions.indexOf(place?.pos);
    if (i < 0 || j < 0) return;
    context.strokeStyle = stroke;
    context.lineWidth = 2;
    context.strokeRect(GUTTER + j * grid.width - 1, i * ROW, Math.max(4, grid.width) + 1, ROW - 1);
  };

  const paint = (grid) => {
    const { panel, canvas } = grid;
    const scale = window.devicePixelRatio || 1;
    const room = (canvas.parentElement?.clientWidth || 900) - GUTTER - 4;
    grid.width = Math.max(4, room / panel.positions.length);
    const [wide, high] = [GUTTER + grid.width * panel.positions.length + 2, ROW * panel.rows.length];
    Object.assign(canvas, { width: wide * scale, height: high * scale });
    Object.assign(canvas.style, { width: `${wide}px`, height: `${high}px` });
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const [masked, positive, negative] = [hatch(context), color("--pos"), color("--neg")];
    context.font = `12px ${color("--font-mono") || "monospace"}`;
    context.textBaseline = "middle";
    panel.rows.forEach((line, i) => {
      context.fillStyle = color("--muted");
      context.fillText(line.label, 0, i * ROW + ROW / 2, GUTTER - 8);
      line.cells.forEach((text, j) => {
        const minus = panel.diverging && text !== null && /^[−-]/.test(text);
        context.globalAlpha = text === null ? 0.6 : 0.06 + 0.9 * L.strength(text, panel.max);
        context.fillStyle = text === null ? masked : minus ? negative : positive;
        context.fillRect(GUTTER + j * grid.width, i * ROW, grid.width - (grid.width > 6 ? 1 : 0), ROW - 2);
      });
      context.globalAlpha = 1;
    });
    ring(context, grid, L.selected, color("--accent"));
    ring(context, grid, grid.hovered, color("--hover"));
  };

  const textAt = (panel, place) => {
    const line = panel.rows.find((entry) => entry.row === place?.row);
    const j = panel.positions.indexOf(place?.pos);
    return line && j >= 0 ? { line, text: line.cells[j] } : null;
  };

  const readout = (grid) => {
    const place = grid.hovered || L.selected;
    const found = textAt(grid.panel, place);
    grid.out.replaceChildren();
    if (!found) return grid.out.append(L.label("no_token"));
    const shown = found.text === null ? L.label("masked")
      : L.number({ q: grid.panel.quantity, r: place.row, p: place.pos, v: found.text });
    grid.out.append(`${found.line.label} · ${L.label("position")} ${place.pos}: `, shown);
  };

  const under = (grid, event) => {
    const box = grid.canvas.getBoundingClientRect();
    const line = grid.panel.rows[Math.floor((event.clientY - box.top) / ROW)];
    const pos = grid.panel.positions[Math.floor((event.clientX - box.left - GUTTER) / grid.width)];
    return line && pos !== undefined ? { row: line.row, pos } : null;
  };

  L.canvasGrid = (panel) => {
    const canvas = L.el("canvas", { role: "img", "aria-label": panel.title || panel.quantity });
    const grid = { panel, canvas, out: L.el("div.readout"), hovered: null, width: 4 };
    const refresh = () => {
      if (!canvas.isConnected) return;
      paint(grid);
      readout(grid);
    };
    canvas.addEventListener("pointermove", (event) => L.hover(under(grid, event)));
    canvas.addEventListener("pointerleave", () => L.hover(null));
    canvas.addEventListener("click", (event) => {
      const place = under(grid, event);
      if (place) L.choose(place.row, place.pos);
    });
    L.listen(canvas, "lessons:hover", (event) => {
      if (grid.hovered?.row === event.detail?.row && grid.hovered?.pos === event.detail?.pos) return;
      grid.hovered = event.detail;
      refresh();
    });
    L.listen(canvas, "lessons:select", refresh);
    L.listen(canvas, "lessons:theme", refresh);
    const frame = L.scroller(canvas, panel.title);
    new ResizeObserver(refresh).observe(frame);
    return L.el("div", {}, frame, grid.out);
  };
})();
