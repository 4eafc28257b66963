// The map: every address that has memory at a moment, row by row, with the blocks that lie there and the holes between
// them. A scattered block is shown at its own addresses, and where its granules are.

const ROW = 16, GAP = 5, BETWEEN = 7, GUTTER = 118, HEAD = 26;

class AddressMap {
  constructor(model, box, spacer, canvas, tip, chosen) {
    Object.assign(this, { model, box, spacer, canvas, tip, chosen, zoom: 0, pieces: null });
    new ResizeObserver(() => { if (this.state && this.width !== box.clientWidth) { this.arrange(); this.draw(); } }).observe(box);
    box.addEventListener("scroll", () => this.soon());
    canvas.addEventListener("click", e => {
      const hit = this.hit(e);
      if (hit?.block >= 0) chosen(hit.block);
    });
    canvas.addEventListener("pointermove", e => this.hover(e));
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    box.addEventListener("keydown", e => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
      if (!by || !this.blocks.length) return;
      e.preventDefault();
      const at = this.blocks.indexOf(this.state.selected);
      chosen(this.blocks[at < 0 ? 0 : Math.max(0, Math.min(this.blocks.length - 1, at + by))]);
    });
  }

  // What there is at the moment, in the order of addresses: runs of memory, and pieces of blocks.
  show(state) {
    performance.mark("map");
    this.state = { ...state };
    const { model } = this, { space, moment } = state, b = model.blocks, r = model.ranges;
    let runs = [], shown = [];
    for (let i = 0; i < r.count; i++) {
      if (r.host[i] !== space || r.born[i] > moment || moment >= r.died[i] || !r.bytes[i]) continue;
      const own = r.kind[i] === SHOWN || r.kind[i] === SCATTERED;
      runs.push({ at: r.at[i], end: r.at[i] + r.bytes[i], own, asleep: r.kind[i] === ASLEEP, stream: r.stream[i], pool: r.pool[i] });
      if (r.kind[i] === SHOWN && r.home[i]) shown.push({ at: r.at[i], end: r.at[i] + r.bytes[i], home: r.home[i] - 1 });
    }
    runs.sort((x, y) => x.own - y.own || x.at - y.at);
    const blocks = model.at(space, moment);
    for (let i = 1; i < blocks.length; i++)
      if (b.at[blocks[i - 1]] > b.at[blocks[i]]) { blocks.sort((x, y) => b.at[x] - b.at[y]); break; }
    this.blocks = blocks;
    // Addresses of a scattered block stay for the next one; without a block there is nothing at them.
    const taken = run => {
      let a = 0, z = blocks.length;
      while (a < z) { const n = (a + z) >> 1; if (b.at[blocks[n]] + b.bytes[blocks[n]] <= run.at) a = n + 1; else z = n; }
      return a < blocks.length && b.at[blocks[a]] < run.end;
    };
    runs = runs.filter(run => !run.own || taken(run));
    this.ranges = runs;
    const joined = [];
    for (const run of runs) {
      const before = joined.at(-1);
      if (before && before.own === run.own && before.asleep === run.asleep && before.end === run.at &&
          model.regionOf(before.at) === model.regionOf(run.at)) before.end = run.end;
      else joined.push({ ...run });
    }
    this.runs = joined;
    const first = new Set(joined.map(r => r.at));
    this.starts = runs.filter(r => !r.own && !first.has(r.at)).map(r => r.at);
    const pieces = blocks.map(i => ({ at: b.at[i], end: b.at[i] + b.bytes[i], block: i }));
    if (shown.length) {
      shown.sort((x, y) => x.at - y.at);
      let from = 0;
      for (const s of shown) {
        while (from < blocks.length && b.at[blocks[from]] + b.bytes[blocks[from]] <= s.at) from++;
        for (let n = from; n < blocks.length && b.at[blocks[n]] < s.end; n++) {
          const i = blocks[n], start = Math.max(s.at, b.at[i]), end = Math.min(s.end, b.at[i] + b.bytes[i]);
          pieces.push({ at: s.home + start - s.at, end: s.home + end - s.at, block: i, home: true });
        }
      }
      pieces.sort((x, y) => x.at - y.at);
    }
    this.pieces = pieces;
    this.arrange();
    this.draw();
    performance.measure("map", "map");
  }

  select(block) {
    this.state.selected = block;
    const piece = block < 0 ? undefined : this.pieces.find(p => p.block === block);
    const part = piece && this.parts.find(p => p.from <= piece.at && piece.at < p.to);
    if (part && (part.y < this.box.scrollTop || part.y + ROW > this.box.scrollTop + this.box.clientHeight))
      this.box.scrollTop = part.y - this.box.clientHeight / 2;
    this.draw();
  }

  // Where each run lies on the canvas: they flow like text.
  arrange() {
    this.width = this.box.clientWidth;
    const gutter = this.gutter = this.width < 560 ? 0 : GUTTER, room = Math.max(60, this.width - gutter - 12);
    const total = this.runs.reduce((sum, r) => sum + r.end - r.at, 0);
    // About 20 rows, at full view, of a length that makes their addresses round.
    const least = Math.max(64 * room, total / 20 / 2 ** this.zoom), power = 2 ** Math.floor(Math.log2(least));
    this.finest = least <= 64 * room;
    this.scale = [1, 1.25, 1.5, 1.75, 2].find(n => n * power >= least) * power / room; // [B] a pixel
    this.parts = [];
    this.heads = [];
    let x = 0, y = 4, own = null;
    const line = () => { x = 0; y += ROW + GAP; };
    for (const run of this.runs) {
      if (run.own !== own) {
        if (x > 0) line();
        if (own !== null || run.own) { this.heads.push({ y: y + 4, own: run.own }); y += HEAD; }
        own = run.own;
        x = 0;
      }
      let at = run.at;
      if (x > 0 && x + BETWEEN + Math.min(12, (run.end - at) / this.scale) > room) line();
      while (at < run.end) {
        const left = room - x, w = Math.max((run.end - at) / this.scale, 2), fits = w <= left + .01;
        const to = fits ? run.end : Math.min(run.end, Math.max(at + 1, Math.round(at + left * this.scale)));
        this.parts.push({ x: gutter + x + 4, y, w: Math.min(w, left), from: at, to, run });
        at = to;
        x += Math.min(w, left) + BETWEEN;
        if (!fits || x >= room - 2) line();
      }
    }
    this.height = y + (x > 0 ? ROW + GAP : 0) + 4;
    this.spacer.style.height = this.height + "px";
  }

  soon() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.draw(); });
  }

  // The first piece that ends after a position.
  first(position) {
    let a = 0, z = this.pieces.length;
    while (a < z) { const m = (a + z) >> 1; if (this.pieces[m].end <= position) a = m + 1; else z = m; }
    return a;
  }

  draw() {
    if (!this.state) return;
    const { model, canvas, state, box } = this, { groups, moment, test, selected } = state;
    const ratio = devicePixelRatio || 1, width = box.clientWidth, height = Math.min(box.clientHeight || 430, this.height, 430);
    const top = box.scrollTop;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = height + "px";
    const c = canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.translate(0, -top);
    const colours = Array.from({ length: OTHER + 1 }, (_, g) => colourOf("g" + g));
    const ink = colourOf("ink"), soft = colourOf("soft"), hole = colourOf("gap"), rule = colourOf("rule");
    const hatch = this.hatch(colourOf("card"));
    c.textBaseline = "middle";
    c.font = "600 13px system-ui, sans-serif";
    c.fillStyle = soft;
    for (const h of this.heads)
      c.fillText(h.own ? "Scattered blocks, at addresses of their own" : "Memory", 8, h.y + HEAD / 2 - 4);
    c.font = "11px ui-monospace, monospace";
    const outlines = [], cover = new Float32Array(OTHER + 1);
    let row = -1;
    for (const part of this.parts) {
      if (part.y + ROW < top || part.y > top + height) continue;
      if (part.y !== row && this.gutter) {
        row = part.y;
        c.fillStyle = soft;
        c.textAlign = "left";
        c.fillText(model.address(part.from), 8, part.y + ROW / 2 + 1, GUTTER - 10);
      }
      c.fillStyle = hole;
      c.fillRect(part.x, part.y, part.w, ROW);
      c.strokeStyle = part.run.asleep ? soft : rule;
      c.setLineDash(part.run.asleep ? [3, 3] : []);
      c.lineWidth = 1;
      c.strokeRect(part.x - .5, part.y - .5, part.w + 1, ROW + 1);
      c.setLineDash([]);
      const scale = part.w / (part.to - part.from);
      // Pieces that are less than a pixel wide are summed up, and the pixel is filled as far as they fill it.
      let pixel = -1;
      const flush = () => {
        if (pixel < 0) return;
        let sum = 0, most = 0;
        for (let g = 0; g <= OTHER; g++) { sum += cover[g]; if (cover[g] > cover[most]) most = g; }
        if (sum > 0) {
          c.globalAlpha = Math.min(1, .25 + .75 * sum);
          c.fillStyle = colours[most];
          const h = Math.max(2, ROW * Math.min(1, sum));
          c.fillRect(part.x + pixel, part.y + ROW - h, 1, h);
          c.globalAlpha = 1;
        }
        cover.fill(0);
        pixel = -1;
      };
      const end = part.to;
      for (let n = this.first(part.from); n < this.pieces.length && this.pieces[n].at < end; n++) {
        const p = this.pieces[n];
        const from = Math.max(p.at, part.from), to = Math.min(p.end, end);
        const x = (from - part.from) * scale, w = (to - from) * scale;
        const found = !test || test(p.block, moment), colour = groups.colour[groups.of[p.block]];
        if (w < 1.5 && p.block !== selected) {
          const at = Math.floor(x);
          if (at !== pixel) { flush(); pixel = at; }
          cover[colour] += found ? w : w * .12;
          continue;
        }
        flush();
        c.globalAlpha = found ? 1 : .16;
        c.fillStyle = colours[colour];
        const wide = w > 4 && to === p.end ? w - 1 : w;
        c.fillRect(part.x + x, part.y, wide, ROW);
        if (!model.isLive(p.block, moment)) { c.fillStyle = hatch; c.fillRect(part.x + x, part.y, wide, ROW); }
        c.globalAlpha = 1;
        if (p.block === selected) outlines.push([part.x + x, part.y, Math.max(w, 2)]);
      }
      flush();
    }
    // A notch where a range begins in the middle of a run.
    c.fillStyle = ink;
    for (const part of this.parts) {
      if (part.y + ROW < top || part.y > top + height) continue;
      const scale = part.w / (part.to - part.from);
      let a = 0, z = this.starts.length, drawn = -9;
      while (a < z) { const n = (a + z) >> 1; if (this.starts[n] < part.from) a = n + 1; else z = n; }
      for (; a < this.starts.length && this.starts[a] < part.to; a++) {
        const x = part.x + (this.starts[a] - part.from) * scale;
        if (x - drawn < 3) continue;
        drawn = x;
        c.beginPath();
        c.moveTo(x - 3, part.y - 3);
        c.lineTo(x + 3, part.y - 3);
        c.lineTo(x, part.y + 3);
        c.fill();
      }
    }
    c.strokeStyle = ink;
    c.lineWidth = 2;
    for (const [x, y, w] of outlines) c.strokeRect(x - 1, y - 2, w + 2, ROW + 4);
  }

  hatch(colour) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const t = tile.getContext("2d");
    t.strokeStyle = colour;
    t.lineWidth = 1.6;
    for (const d of [-6, 0, 6]) { t.beginPath(); t.moveTo(d - 1, 7); t.lineTo(d + 7, -1); t.stroke(); }
    return this.canvas.getContext("2d").createPattern(tile, "repeat");
  }

  // What lies under the pointer.
  hit(e) {
    const box = this.canvas.getBoundingClientRect();
    const x = e.clientX - box.left, y = e.clientY - box.top + this.box.scrollTop;
    const part = this.parts.find(p => y >= p.y - 2 && y <= p.y + ROW + 2 && x >= p.x - 1 && x <= p.x + p.w + 1);
    if (!part) return null;
    const per = (part.to - part.from) / part.w, at = part.from + Math.min(part.w, Math.max(0, x - part.x)) * per;
    let best = -1, gap = 2.5 * per;
    for (let n = Math.max(0, this.first(at - gap)); n < this.pieces.length && this.pieces[n].at <= at + gap; n++) {
      const p = this.pieces[n], d = Math.max(p.at - at, at - p.end, 0);
      if (d < gap) { gap = d; best = p.block; if (d === 0) break; }
    }
    return { block: best, at, part };
  }

  hover(e) {
    const hit = this.hit(e), { model, tip } = this;
    if (!hit) { tip.hidden = true; return; }
    if (hit.block >= 0) {
      const b = model.blocks, i = hit.block, { groups } = this.state;
      fillTip(tip, model.address(b.at[i]), [["block", size(b.bytes[i])],
        [groups.by, groups.name(groups.of[i]).slice(0, 80)], ["", model.isLive(i, this.state.moment) ? "live" : "waits for streams"]]);
    } else {
      const n = this.first(hit.at), before = this.pieces[n - 1], after = this.pieces[n];
      const from = Math.max(before && before.end <= hit.at ? before.end : 0, hit.part.run.at);
      const to = Math.min(after ? after.at : Infinity, hit.part.run.end);
      const of = this.ranges.find(r => r.at <= hit.at && hit.at < r.end);
      const rows = [[hit.part.run.asleep ? "asleep" : "free", size(Math.max(0, to - from))]];
      if (of?.stream) rows.push(["stream", model.name("stream", of.stream)]);
      if (of?.pool) rows.push(["pool", model.name("pool", of.pool)]);
      fillTip(tip, model.address(Math.floor(hit.at)), rows);
    }
    placeTip(tip, e.clientX, e.clientY + 14);
  }
}
