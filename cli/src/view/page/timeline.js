// The timeline: what is allocated, by group, and what is reserved, drawn by uPlot. The record may have a million events:
// what is drawn is one moment for each column of pixels, the one at which most is allocated.

const colourOf = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

class Timeline {
  // `chosen` is called with the moment that was clicked, `looked` with how much is shown of the whole.
  constructor(model, box, tip, chosen) {
    Object.assign(this, { model, box, tip, chosen, plot: null, view: null });
    new ResizeObserver(() => this.resize()).observe(box);
    let down = 0;
    box.addEventListener("pointerdown", e => { down = e.clientX; });
    box.addEventListener("click", e => {
      const at = this.plot?.cursor.idx;
      if (at != null && Math.abs(e.clientX - down) < 4 && e.target.closest(".u-over")) chosen(this.data.moments[at]);
    });
  }

  x(m) { return this.state.axis === "time" ? this.model.times[m] : m; }

  whole() {
    const x1 = this.x(this.model.last), x0 = this.x(0);
    return [x0, Math.max(x1, x0 + 1)];
  }

  // Draws anew: the memory, groups, axis or moment is another one.
  show(state) {
    const before = this.state?.axis;
    this.state = { ...state };
    if (!this.view || before !== state.axis) this.view = this.whole();
    this.build();
  }

  // Another moment only.
  mark(moment) {
    this.state.moment = moment;
    this.plot?.redraw(false, false);
  }

  zoom(by) {
    const [a, z] = this.view, x = this.x(this.state.moment), whole = this.whole();
    if (by === 0) this.look(whole);
    else {
      const centre = x >= a && x <= z ? x : (a + z) / 2;
      this.look([centre - (centre - a) * by, centre + (z - centre) * by]);
    }
  }

  look([a, z]) {
    const whole = this.whole();
    const least = this.state.axis === "time" ? 100 : 4;
    if (z - a < least) [a, z] = [(a + z - least) / 2, (a + z + least) / 2];
    this.view = [Math.max(a, whole[0]), Math.min(z, whole[1])];
    if (this.view[1] <= this.view[0]) this.view = whole;
    this.fill();
  }

  // Shows the moment, if it is outside of what is shown.
  follow(moment) {
    const x = this.x(moment), [a, z] = this.view;
    if (x >= a && x <= z) return;
    const half = (z - a) / 2;
    this.look([x - half, x + half]);
  }

  compute() {
    const { model, state } = this, [x0, x1] = this.view, width = Math.max(50, this.box.clientWidth - 90);
    const of = m => this.x(m), time = state.axis === "time";
    const from = time ? model.momentUpTo(x0) : Math.floor(x0), to = time ? model.momentUpTo(x1) : Math.ceil(x1);
    this.data = model.columns(state.space, state.groups, from, Math.min(to, model.last), of, x0, x1, width);
    const xs = this.data.moments.map(of);
    // What held before the view holds at its left edge, and what held last until its right one.
    const rows = [this.data.reserved.slice()];
    if (model.totals[state.space].waits) rows.push(this.data.active.slice());
    const { held } = this.data, count = xs.length;
    const top = new Float64Array(count), stack = [];
    for (let g = 0; g < held.length; g++) {
      for (let i = 0; i < count; i++) top[i] += held[g][i];
      stack.push(Array.from(top));
    }
    rows.push(...stack.reverse());
    xs.push(Math.max(x1, xs.at(-1) ?? x1));
    if (xs[0] < x0) xs[0] = x0;
    rows.forEach(r => r.push(r.at(-1) ?? 0));
    return [xs, ...rows];
  }

  fill() {
    if (!this.plot) return this.build();
    performance.mark("fill");
    const data = this.compute();
    this.plot.setData(data, false);
    this.highest = data.slice(1).reduce((most, row) => Math.max(most, ...row), 1);
    this.plot.batch(() => {
      this.plot.setScale("x", { min: this.view[0], max: this.view[1] });
      this.plot.setScale("y", { min: 0, max: this.highest * 1.12 });
    });
    performance.measure("timeline", "fill");
  }

  build() {
    this.plot?.destroy();
    this.plot = null;
    if (this.model.last < 1 || this.box.clientWidth < 100) return;
    const { model, state } = this, ink = colourOf("ink"), soft = colourOf("soft"), rule = colourOf("rule");
    const card = colourOf("card"), waits = model.totals[state.space].waits;
    const stepped = uPlot.paths.stepped({ align: 1 });
    const series = [{}, { stroke: colourOf("reserved-line"), fill: colourOf("reserved") + "60", width: 1.5 }];
    if (waits) series.push({ stroke: colourOf("active"), width: 1.25 });
    for (let g = OTHER; g >= 0; g--) series.push({ stroke: colourOf("g" + g), width: .5, fill: colourOf("g" + g) });
    // The line of what is active lies above the areas.
    series.slice(1).forEach(s => Object.assign(s, { paths: stepped, points: { show: false } }));
    const time = state.axis === "time";
    const incrs = time ? [] : [1, 2, 5];
    for (let n = time ? 1 : 10; n < 1e19; n *= 10) incrs.push(n, 2 * n, 5 * n);
    const binary = Array.from({ length: 61 }, (_, n) => 2 ** n);
    const font = "13px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
    const axis = { stroke: soft, font, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1, size: 5 } };
    const ticks = (_, splits, __, ___, step) => {
      if (!time) return splits.map(v => v === Math.round(v) ? count(v) : "");
      const far = Math.max(Math.abs(this.view[1]), 1);
      const [unit, n] = far >= 1e9 ? ["s", 1e9] : far >= 1e6 ? ["ms", 1e6] : far >= 1e3 ? ["µs", 1e3] : ["ns", 1];
      const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / n) - 1e-9)));
      return splits.map(v => (v / n).toFixed(digits) + " " + unit);
    };
    const data = this.compute();
    this.highest = data.slice(1).reduce((most, row) => Math.max(most, ...row), 1);
    this.plot = new uPlot({
      width: this.box.clientWidth, height: this.height(), series, legend: { show: false },
      scales: { x: { time: false, auto: false, min: this.view[0], max: this.view[1] },
                y: { auto: false, min: 0, max: this.highest * 1.12, range: (_, min, max) => [min ?? 0, max ?? this.highest * 1.12] } },
      axes: [{ ...axis, incrs, size: 34, space: time ? 95 : 80, values: ticks },
             { ...axis, incrs: binary, size: 82, space: 34, values: (_, splits) => splits.map(v => v ? size(v).replace(/\.0+ /, " ") : "0") }],
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false },
                bind: { dblclick: () => () => { this.zoom(0); return null; } } },
      hooks: {
        setSelect: [u => {
          if (u.select.width > 3) {
            this.look([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
            u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          }
        }],
        setCursor: [u => this.hover(u)],
        draw: [u => this.decorate(u, ink, card)],
      },
    }, data, this.box);
    this.box.addEventListener("pointerleave", () => { this.tip.hidden = true; });
  }

  height() { return this.box.clientWidth < 700 ? 250 : 330; }

  resize() {
    if (!this.state) return;
    if (!this.plot) return this.build();
    if (this.plot.width === this.box.clientWidth) return;
    this.plot.setSize({ width: this.box.clientWidth, height: this.height() });
    this.fill();
  }

  // The moment, the peak and the marks, above the areas.
  decorate(u, ink, card) {
    const { ctx, bbox } = u, { model, state } = this, px = uPlot.pxRatio;
    const at = m => Math.round(u.valToPos(this.x(m), "x", true)) + .5;
    const inside = x => x >= bbox.left && x <= bbox.left + bbox.width;
    ctx.save();
    const line = (x, colour, width, dash, top = 0) => {
      ctx.beginPath();
      ctx.strokeStyle = colour;
      ctx.lineWidth = width * px;
      ctx.setLineDash(dash.map(d => d * px));
      ctx.moveTo(x, bbox.top + top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    };
    let drawn = -9;
    for (const [moment, what] of model.record.marks) {
      const x = at(moment);
      if (!inside(x) || x - drawn < 2 * px) continue;
      drawn = x;
      const bad = what === "oom" || what === "refused";
      line(x, bad ? colourOf("bad") : colourOf("soft"), bad ? 1.5 : .75, bad ? [4, 3] : [2, 3]);
    }
    const peak = model.totals[state.space].peak, x = at(peak);
    if (inside(x)) {
      line(x, ink, 1, [5, 4]);
      const text = "peak " + size(model.totals[state.space].allocated[peak]);
      ctx.font = "600 " + 13 * px + "px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
      ctx.textBaseline = "top";
      ctx.textAlign = "left";
      const width = ctx.measureText(text).width;
      // Beside the line, as that of the moment may be the same.
      const left = x + width + 12 * px < bbox.left + bbox.width ? x + 8 * px : x - width - 8 * px;
      ctx.fillStyle = card;
      ctx.fillRect(left - 4 * px, bbox.top, width + 8 * px, 18 * px);
      ctx.fillStyle = ink;
      ctx.fillText(text, left, bbox.top + 2 * px);
    }
    const now = at(state.moment);
    if (inside(now)) {
      line(now, ink, 2, []);
      ctx.setLineDash([]);
      ctx.fillStyle = ink;
      ctx.beginPath();
      ctx.moveTo(now - 6 * px, bbox.top + bbox.height + 7 * px);
      ctx.lineTo(now + 6 * px, bbox.top + bbox.height + 7 * px);
      ctx.lineTo(now, bbox.top + bbox.height - px);
      ctx.fill();
    }
    ctx.restore();
  }

  hover(u) {
    const at = u.cursor.idx, { model, tip, state } = this;
    if (at == null || u.cursor.left < 0 || !(at in this.data.moments)) { tip.hidden = true; return; }
    const m = this.data.moments[at], t = model.totals[state.space];
    const rows = [["reserved", size(t.reserved[m])], ["allocated", size(t.allocated[m])]];
    if (t.waits) rows.splice(1, 0, ["with what waits", size(t.active[m])]);
    const marks = model.record.marks.filter(([n]) => n <= m).slice(-1).filter(([, what]) => what === "step" || what === "note");
    fillTip(tip, model.momentName(m), [...rows, ...marks.map(([,, text]) => ["since", visible(text).slice(0, 80)])]);
    const box = u.over.getBoundingClientRect();
    placeTip(tip, box.left + u.cursor.left, box.top + 12);
  }
}

const fillTip = (tip, title, rows) => {
  const p = document.createElement("p"), table = document.createElement("table");
  p.textContent = title;
  for (const row of rows) {
    const tr = table.insertRow();
    for (const cell of row) tr.insertCell().textContent = cell;
  }
  tip.replaceChildren(p, table);
  tip.hidden = false;
};

const placeTip = (tip, x, y) => {
  const { offsetWidth: w, offsetHeight: h } = tip;
  const left = x + 16 + w > innerWidth ? x - 16 - w : x + 16;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, Math.min(y, innerHeight - h - 4)) + "px";
};
