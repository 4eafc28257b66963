// The record: decoded into arrays, and what can be asked of it. It knows nothing of how it is drawn.

const decode = text => {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
};

// The form is described in encode.rs.
const readRecord = bytes => {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const record = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const counts = { block: record.blocks, range: record.ranges, use: record.uses, times: record.moments };
  const types = { at: Float64Array, bytes: Float64Array, spare: Float64Array, home: Float64Array, times: Float64Array,
                  host: Uint8Array, kind: Uint8Array };
  const columns = {};
  let p = 4 + length;
  for (const [name, size] of record.columns) {
    const [of, field = of] = name.split(".");
    const out = new (types[field] || Uint32Array)(counts[of]);
    const end = p + size;
    let last = 0, n = 0;
    while (p < end) {
      // 2^53 is more than the operators on bits take.
      let z = 0, times = 1, b;
      do { b = bytes[p++]; z += (b & 127) * times; times *= 128; } while (b > 127);
      last += z % 2 ? -(z + 1) / 2 : z / 2;
      out[n++] = last;
    }
    if (of === "times") columns.times = out;
    else (columns[of] ||= {})[field] = out;
  }
  return { ...record, columns };
};

// Kinds of ranges, as record.rs numbers them.
const MEMORY = 0, SHOWN = 1, SCATTERED = 2, ASLEEP = 3;
const OTHER = 8; // the colour of all groups that have none of their own

class Model {
  constructor(record) {
    this.record = record;
    this.times = record.columns.times;
    this.last = record.moments - 1;
    const b = this.blocks = record.columns.block;
    this.ranges = record.columns.range;
    this.uses = record.columns.use;
    b.count = record.blocks;
    this.ranges.count = record.ranges;
    b.asked = new Uint32Array(b.count);
    b.done = new Uint32Array(b.count);
    for (let i = 0; i < b.count; i++) {
      b.asked[i] = b.born[i] + b.lived[i];
      b.done[i] = b.asked[i] + b.waited[i];
    }
    delete b.lived;
    delete b.waited;
    this.spaces = [0, 1].filter(s => b.host.includes(s) || this.ranges.host.includes(s));
    if (!this.spaces.length) this.spaces = [0];
    this.changes = [];
    this.totals = [];
    for (const s of this.spaces) {
      this.totals[s] = this.sum(s);
      this.changes[s] = this.order(s);
    }
    this.grouped = new Map();
  }

  // Bytes that are allocated, wait and are reserved, at each moment, and where the peaks are.
  sum(space) {
    const n = this.last + 2, b = this.blocks, r = this.ranges;
    const allocated = new Float64Array(n), active = new Float64Array(n), reserved = new Float64Array(n);
    for (let i = 0; i < b.count; i++) {
      if (b.host[i] !== space) continue;
      allocated[b.born[i]] += b.bytes[i];
      allocated[b.asked[i]] -= b.bytes[i];
      active[b.born[i]] += b.bytes[i];
      active[b.done[i]] -= b.bytes[i];
    }
    for (let i = 0; i < r.count; i++) {
      if (r.host[i] !== space || r.kind[i] === SHOWN || r.kind[i] === ASLEEP) continue;
      reserved[r.born[i]] += r.bytes[i];
      reserved[r.died[i]] -= r.bytes[i];
    }
    for (const a of [allocated, active, reserved]) for (let i = 1; i < n; i++) a[i] += a[i - 1];
    let peak = 0, reservedPeak = 0, waits = false;
    for (let i = 0; i <= this.last; i++) {
      if (allocated[i] > allocated[peak]) peak = i;
      if (reserved[i] > reserved[reservedPeak]) reservedPeak = i;
      waits ||= active[i] !== allocated[i];
    }
    return { allocated, active, reserved, peak, reservedPeak, waits };
  }

  // What changes at each moment: blocks that come (even numbers) and blocks whose free is asked for (odd ones).
  order(space) {
    const b = this.blocks, first = new Uint32Array(this.last + 3);
    const each = f => {
      for (let i = 0; i < b.count; i++) {
        if (b.host[i] !== space) continue;
        f(b.born[i], 2 * i);
        if (b.asked[i] <= this.last) f(b.asked[i], 2 * i + 1);
      }
    };
    each(m => first[m + 2]++);
    for (let m = 2; m < first.length; m++) first[m] += first[m - 1];
    const what = new Uint32Array(first[this.last + 2]);
    each((m, n) => { what[first[m + 1]++] = n; });
    return { first, what };
  }

  // The blocks that live at a moment, or wait.
  at(space, moment) {
    const b = this.blocks, out = [];
    for (let i = 0; i < b.count; i++)
      if (b.born[i] <= moment && moment < b.done[i] && b.host[i] === space) out.push(i);
    return out;
  }

  isLive(i, moment) { return this.blocks.born[i] <= moment && moment < this.blocks.asked[i]; }

  // The first moment at or after a time.
  momentAt(time) {
    let a = 0, z = this.last;
    while (a < z) { const m = (a + z) >> 1; if (this.times[m] < time) a = m + 1; else z = m; }
    return a;
  }

  // The last moment not after it.
  momentUpTo(time) {
    let a = 0, z = this.last;
    while (a < z) { const m = (a + z + 1) >> 1; if (this.times[m] > time) z = m - 1; else a = m; }
    return a;
  }

  regionOf(at) {
    const all = this.record.regions;
    let a = 0, z = all.length - 1;
    while (a < z) { const m = (a + z + 1) >> 1; if (all[m][2] > at) z = m - 1; else a = m; }
    return all[a];
  }

  address(at) {
    const region = this.regionOf(at);
    if (!region) return "?";
    return "0x" + (BigInt("0x" + region[0]) + BigInt(at - region[2])).toString(16);
  }

  position(address) {
    for (const [start, bytes, at] of this.record.regions) {
      const d = address - BigInt("0x" + start);
      if (d >= 0n && d < BigInt(bytes)) return at + Number(d);
    }
    return -1;
  }

  name(what, n) {
    if (what === "tag") return n === 0 ? "no tag" : visible(this.record.names.tag[n]);
    if (what === "stack") return this.stackName(n);
    return visible(this.record.names[what]?.[n] ?? "unknown");
  }

  // What tells a stack from the others: the first caller behind Millpond's own code, which is known by its names or its
  // module, and as far on as it takes.
  stackName(n) {
    this.stackNames ??= this.nameStacks();
    return this.stackNames.get(this.stackGroups[n]) ?? (n ? visible(this.record.frames[this.record.stacks[n][0]]) : "no callers recorded");
  }

  nameStacks() {
    const { frames, stacks } = this.record, module = f => frames[f].replace(/\+0x[0-9a-f]+$/, "");
    const short = f => visible(frames[f]).replace(/^\/\S*\//, "").replace(/ \(\/\S*\//, " (")
      .replace(/(\w)\((?!\/)(?:[^()]|\([^()]*\))*\)( const)?(?= at |$)/, "$1"); // the types of a function's arguments
    const first = stack => {
      let at = stack.findLastIndex(f => /^<?millpond(::|_)/.test(frames[f])) + 1;
      if (at === 0 && stack.every(f => frames[f].includes("+0x"))) at = stack.findIndex(f => module(f) !== module(stack[0]));
      return at < 1 || at >= stack.length ? Math.min(this.common(), stack.length - 1) : at;
    };
    const out = new Map();
    // Stacks that differ only in Millpond's own code are one group: the first of them stands for all.
    const alike = new Map();
    this.stackGroups = Uint32Array.from(stacks, (_, n) => n);
    for (const n of new Set(this.blocks.stack)) {
      if (n === 0) continue;
      const tail = stacks[n].slice(first(stacks[n])).join();
      if (!alike.has(tail)) alike.set(tail, n);
      this.stackGroups[n] = alike.get(tail);
    }
    let open = [...alike.values()].map(n => ({ n, stack: stacks[n], at: first(stacks[n]) }));
    for (let depth = 1; open.length && depth < 64; depth++) {
      const alike = Map.groupBy(open, ({ stack, at }) => stack.slice(at, at + depth).join());
      open = [];
      for (const all of alike.values()) {
        for (const o of all) {
          // In the order of the calls, so that what tells them apart comes first.
          const end = Math.min(o.at + depth, o.stack.length) - 1, names = [short(o.stack[o.at])];
          if (end > o.at) names.unshift(short(o.stack[end]), ...(end > o.at + 1 ? ["…"] : []));
          out.set(o.n, names.join(" → "));
        }
        // They are alike to the end, or differ further on.
        if (all.length > 1 && all.some(o => o.at + depth < o.stack.length)) open.push(...all);
      }
    }
    const seen = new Map();
    for (const [n, name] of out) {
      const times = (seen.get(name) ?? 0) + 1;
      seen.set(name, times);
      if (times > 1) out.set(n, name + " (" + times + ")");
    }
    return out;
  }

  // How many callers, from the innermost on, all stacks of allocations have in common.
  common() {
    if (this.shared === undefined) {
      const all = [...new Set(this.blocks.stack)].map(n => this.record.stacks[n]).filter(s => s.length), first = all[0] || [];
      let n = 0;
      while (n < first.length && all.every(s => s[n] === first[n])) n++;
      this.shared = n;
    }
    return this.shared;
  }

  stack(n) { return (this.record.stacks[n] || []).map(f => visible(this.record.frames[f])); }

  // Groups of blocks: the number of the group of each, their names, and their colours by what they hold at the peak.
  groups(space, by) {
    const key = space + by;
    if (this.grouped.has(key)) return this.grouped.get(key);
    const b = this.blocks;
    let of = b[by], count = (by === "stack" ? this.record.stacks : this.record.names[by] || []).length;
    if (by === "stack") {
      this.stackName(0); // which are alike
      of = b.stack.map(n => this.stackGroups[n]);
    }
    if (by === "size") {
      of = new Uint8Array(b.count);
      for (let i = 0; i < b.count; i++) of[i] = b.bytes[i] < 1 ? 0 : Math.floor(Math.log2(b.bytes[i]) / 2);
      count = 28;
    }
    const held = new Float64Array(count), ever = new Float64Array(count);
    const peak = this.totals[space].peak;
    for (let i = 0; i < b.count; i++) {
      if (b.host[i] !== space) continue;
      ever[of[i]] += b.bytes[i];
      if (this.isLive(i, peak)) held[of[i]] += b.bytes[i];
    }
    const order = [...held.keys()].filter(g => ever[g] > 0).sort((x, y) => held[y] - held[x] || ever[y] - ever[x]);
    const colour = new Uint8Array(count).fill(OTHER);
    order.slice(0, OTHER).forEach((g, n) => { colour[g] = n; });
    const names = g => by === "size" ? size(4 ** g) + " to " + size(4 ** (g + 1)) : this.name(by, g);
    const groups = { by, of, count, colour, order, name: names };
    this.grouped.set(key, groups);
    return groups;
  }

  // What there is to draw between two moments, in so many columns: in each the moment at which most is allocated, with
  // what is reserved at most, and what each colour holds.
  columns(space, groups, from, to, x, x0, x1, width) {
    const { allocated, active, reserved } = this.totals[space], { first, what } = this.changes[space];
    const b = this.blocks, moments = [], most = [];
    const scale = width / Math.max(x1 - x0, 1e-9);
    for (let m = from; m <= to;) {
      const column = Math.floor((x(m) - x0) * scale);
      let best = m, highest = reserved[m], end = m + 1;
      for (; end <= to && Math.floor((x(end) - x0) * scale) === column; end++) {
        if (allocated[end] > allocated[best]) best = end;
        if (reserved[end] > highest) highest = reserved[end];
      }
      moments.push(best);
      most.push(highest);
      m = end;
    }
    const sums = new Float64Array(OTHER + 1), held = Array.from(sums, () => new Float64Array(moments.length));
    const { of, colour } = groups;
    if (moments.length) {
      for (let i = 0; i < b.count; i++)
        if (b.host[i] === space && this.isLive(i, from)) sums[colour[of[i]]] += b.bytes[i];
      let m = from;
      moments.forEach((stop, n) => {
        for (let c = first[m + 1]; c < first[stop + 1]; c++) {
          const i = what[c] >>> 1;
          sums[colour[of[i]]] += what[c] & 1 ? -b.bytes[i] : b.bytes[i];
        }
        m = stop;
        for (let g = 0; g <= OTHER; g++) held[g][n] = sums[g];
      });
    }
    return { moments, reserved: most, active: moments.map(m => active[m]), held };
  }
}

// A name with what would not be seen, or would change what is seen, written out.
const visible = text => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu,
  c => "\\u{" + c.codePointAt(0).toString(16) + "}");

const duration = ns => {
  if (ns < 1e3) return ns + " ns";
  for (const [unit, n] of [["µs", 1e3], ["ms", 1e6]]) if (ns < n * 1e3) return (ns / n).toFixed(2) + " " + unit;
  return (ns / 1e9).toFixed(ns < 1e11 ? 3 : 1) + " s";
};
