// The page: what is chosen, and the tables and texts that follow from it.

const $ = id => document.getElementById(id);
const element = (tag, text, cls) => {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (cls) e.className = cls;
  return e;
};
const shortened = (text, most) => [...text].length > most ? [...text].slice(0, most - 1).join("") + "…" : text;
const plural = (n, what) => count(n) + " " + what + (n === 1 ? "" : "s");
const PAGE = 50; // rows of blocks at a time
const GROUPS = 60; // rows of groups at most

const start = () => {
  performance.mark("begin");
  const source = $("data");
  const model = new Model(readRecord(decode(source.textContent)));
  source.remove();
  const { record } = model, b = model.blocks;
  const snapshot = model.last === 0;
  model.momentName = m => {
    const event = m === 0 ? "before the first event" : "event " + count(m);
    return record.timed ? duration(model.times[m]) + ", " + event : event;
  };
  const uses = new Map();
  for (let n = 0; n < record.uses; n++) {
    const i = model.uses.block[n];
    if (!uses.has(i)) uses.set(i, []);
    uses.get(i).push(n);
  }

  const state = { space: model.spaces[0], moment: 0, by: "tag", axis: record.timed ? "time" : "event",
                  query: "", scope: "moment", sort: "bytes", selected: -1, shown: PAGE, test: null };
  state.moment = model.totals[state.space].peak;

  const timeline = new Timeline(model, $("plot"), $("plot-tip"), m => go(m));
  const map = new AddressMap(model, $("map"), $("map-space"), $("map-canvas"), $("map-tip"), i => select(i));

  // The head.
  document.title = visible(record.title) + " · Millpond";
  $("title").textContent = visible(record.title);
  $("facts").textContent = record.facts.map(([what, value]) => what + ": " + visible(value)).join(" · ");
  for (const note of record.notes) $("notes").append(element("p", visible(note), "bad"));
  $("made").textContent = "Made by millpond view, Millpond " + record.version + ". Nothing here is fetched from anywhere.";

  const tiles = () => {
    const t = model.totals[state.space], at = t.peak;
    const lost = t.reserved[at] - t.active[at];
    const all = snapshot
      ? [[size(t.allocated[0]), "allocated"], [size(t.active[0] - t.allocated[0]), "waits for streams"], [size(t.reserved[0]), "reserved"],
         [size(Math.max(0, t.reserved[0] - t.active[0])), "free within it"], [count(model.at(state.space, 0).length), "blocks"]]
      : [[size(t.allocated[at]), "peak allocated"], record.timed ? [duration(model.times[at]), "when"] : [count(at), "event of the peak"],
         [size(t.reserved[at]), "reserved then"], [size(Math.max(0, lost)), "of it free"], [size(t.reserved[t.reservedPeak]), "peak reserved"],
         [count(model.last), "events"], [count(b.count), "blocks"]];
    $("tiles").replaceChildren(...all.map(([value, what]) => {
      const tile = element("div", undefined, "tile");
      tile.append(element("b", value), element("span", what));
      return tile;
    }));
  };

  // The choices.
  const options = (select, all) => select.replaceChildren(...all.map(([value, text]) => {
    const o = element("option", text);
    o.value = value;
    return o;
  }));
  options($("space"), model.spaces.map(s => [s, s ? "pinned host memory" : "the device's"]));
  $("space-choice").hidden = model.spaces.length < 2;
  const kinds = [["tag", "tag"], ["stream", "stream"], ["pool", "pool"], ["size", "size"], ["thread", "thread"], ["stack", "caller"]]
    .filter(([k]) => k === "size" || k === "stream" || (b[k].some(n => n !== 0)));
  options($("by"), kinds);
  // What tells most of the peak's holders from each other: tags, or callers, if most of it has one.
  const has = k => kinds.some(([n]) => n === k);
  const named = k => {
    let of = 0, all = 0;
    for (const i of model.at(state.space, state.moment)) {
      all += b.bytes[i];
      if (b[k][i] !== 0) of += b.bytes[i];
    }
    return has(k) && of > 0 && of >= all / 2;
  };
  const several = k => k === "tag" ? has(k) : model.groups(state.space, k).order.length > 1;
  state.by = ["tag", "stack"].find(k => named(k) && several(k)) ?? ["tag", "stack"].find(k => k === "tag" ? has(k) : named(k)) ??
    ["stream", "pool"].find(several) ?? "size";
  $("by").value = state.by;
  $("axis").value = state.axis;
  if (!record.timed) $("axis").parentElement.hidden = true;
  if (snapshot) {
    $("timeline").hidden = true;
    $("scope").parentElement.hidden = true;
  }
  $("moment").max = model.last;
  const marks = record.marks;
  if (marks.length) {
    $("marks").hidden = false;
    $("marks").querySelector("summary").textContent = plural(marks.length, "mark") + ": notes, steps, snapshots, and failures";
    $("marks").querySelector("ol").append(...marks.slice(0, 500).map(([moment, , text]) => {
      const li = element("li"), button = element("button", visible(text).slice(0, 300) || "(no text)", "link");
      button.type = "button";
      button.onclick = () => go(moment);
      li.append(button, " " + model.momentName(moment));
      return li;
    }));
    if (marks.length > 500) $("marks").append(element("p", count(marks.length - 500) + " more are not listed.", "note"));
  }

  const swatch = colour => {
    const i = element("i", undefined, "swatch");
    i.style.background = "var(--g" + colour + ")";
    i.setAttribute("aria-hidden", "true");
    return i;
  };

  const search = what => { state.query = what; $("search").value = what; searched(); };

  const describe = () => {
    const t = model.totals[state.space];
    $("plot").setAttribute("aria-label", "Allocated memory by " + state.by + ", and reserved memory; the peak is " +
      size(t.allocated[t.peak]) + ", at " + model.momentName(t.peak));
  };

  const holders = () => {
    const groups = model.groups(state.space, state.by), t = model.totals[state.space], m = state.moment;
    const all = model.at(state.space, m), bytes = new Float64Array(groups.count), blocks = new Uint32Array(groups.count);
    let waiting = 0, live = 0;
    for (const i of all) {
      if (!model.isLive(i, m)) { waiting++; continue; }
      live++;
      bytes[groups.of[i]] += b.bytes[i];
      blocks[groups.of[i]]++;
    }
    const order = [...blocks.keys()].filter(g => blocks[g]).sort((x, y) => bytes[y] - bytes[x]);
    const where = snapshot ? "" : "At " + model.momentName(m) + (m === t.peak ? ", the peak" : "") + ": ";
    $("moment-text").textContent = where + size(t.allocated[m]) + " in " + plural(live, "block") +
      (waiting ? ", " + size(t.active[m] - t.allocated[m]) + " more waits in " + plural(waiting, "block") : "") +
      ", " + size(t.reserved[m]) + " reserved.";
    $("holders").tBodies[0].replaceChildren(...order.slice(0, GROUPS).map(g => {
      const tr = element("tr"), share = t.allocated[m] ? bytes[g] / t.allocated[m] : 0;
      const name = element("div", undefined, "name"), button = element("button", undefined, "link");
      button.type = "button";
      button.append(element("span", groups.name(g), "clip"));
      button.title = "Search for these blocks";
      button.onclick = () => search(state.by === "size" ? "size>=" + 4 ** g + " size<" + 4 ** (g + 1)
        : state.by === "tag" && g === 0 ? exactly("tag", "no tag") : exactly(state.by, groups.name(g)));
      name.append(swatch(groups.colour[g]), button);
      tr.insertCell().append(name);
      tr.insertCell().textContent = count(blocks[g]);
      tr.insertCell().textContent = size(bytes[g]);
      const cell = tr.insertCell(), bar = element("i");
      cell.className = "share";
      bar.style.cssText = "width:" + 100 * share + "%;background:var(--g" + groups.colour[g] + ")";
      cell.append((100 * share).toFixed(1) + " %", bar);
      return tr;
    }));
    $("holders-more").textContent = order.length > GROUPS ? plural(order.length - GROUPS, "more group") + " hold less." :
      order.length ? "" : "No block lives at this moment.";
    const legend = groups.order.slice(0, OTHER).map(g => [groups.colour[g], shortened(groups.name(g), 40)]);
    const key = (style, text, cls) => {
      const span = element("span"), i = element("i", undefined, cls);
      i.style.cssText = style;
      span.append(i, text);
      return span;
    };
    const box = "background:var(--reserved);outline:1px solid var(--reserved-line)";
    $("legend").replaceChildren(key(box, "reserved"),
      ...(t.waits ? [key("background:var(--active);height:3px", "with what waits for streams")] : []),
      ...legend.map(([n, text]) => key("background:var(--g" + n + ")", text)),
      ...(groups.order.length > OTHER ? [key("background:var(--g8)", "all others")] : []), element("span", "Each column of pixels shows the moment at which most is allocated."));
    $("map-legend").replaceChildren(key("background:var(--gap);outline:1px solid var(--rule)", "free"),
      key("background-color:var(--g0)", "waits for streams", "hatch"),
      element("span", "A notch marks where memory begins that was taken from the device with another call, or is of another stream or pool. Where blocks are narrower than a pixel, a column is as high as it is full."));
  };

  const texts = () => {
    const used = map.runs.filter(r => !r.own && !r.asleep), own = map.runs.filter(r => r.own);
    const holes = { count: 0, bytes: 0, most: 0 };
    for (const run of used) {
      let at = run.at;
      const hole = to => {
        if (to <= at) return;
        holes.count++;
        holes.bytes += to - at;
        holes.most = Math.max(holes.most, to - at);
      };
      for (let n = map.first(run.at); n < map.pieces.length && map.pieces[n].at < run.end; n++) {
        hole(map.pieces[n].at);
        at = Math.max(at, map.pieces[n].end);
      }
      hole(run.end);
    }
    const scattered = map.blocks.filter(i => own.some(r => r.at <= b.at[i] && b.at[i] < r.end)).length;
    $("map-text").textContent = map.runs.length ? plural(used.length, "stretch").replace("stretchs", "stretches") + " of memory, " +
      size(used.reduce((s, r) => s + r.end - r.at, 0)) + "; " +
      (holes.count ? plural(holes.count, "hole") + " with " + size(holes.bytes) + ", the largest " + size(holes.most) : "no holes") +
      (scattered ? "; " + plural(scattered, "scattered block") + ", whose granules lie among the others" : "") + "."
      : "No memory is reserved at this moment.";
    $("map-in").disabled = map.finest;
    $("map-out").disabled = map.zoom === 0;
  };

  // The blocks that are looked for: all are counted, and the first few kept, in order.
  const list = () => {
    performance.mark("list");
    const m = state.moment, all = state.scope === "all", key = {
      bytes: i => -b.bytes[i], age: i => b.born[i], at: i => b.at[i],
      waited: i => model.times[Math.min(b.asked[i], model.last)] - model.times[Math.min(b.done[i], model.last)],
    }[state.sort];
    const keep = [], keys = [];
    let found = 0, bytes = 0;
    const offer = i => {
      if (state.test && !state.test(i, m)) return;
      found++;
      bytes += b.bytes[i];
      const k = key(i);
      if (keep.length === state.shown && k >= keys[keys.length - 1]) return;
      let a = 0, z = keep.length;
      while (a < z) { const mid = (a + z) >> 1; if (keys[mid] <= k) a = mid + 1; else z = mid; }
      keep.splice(a, 0, i);
      keys.splice(a, 0, k);
      if (keep.length > state.shown) { keep.pop(); keys.pop(); }
    };
    if (all) { for (let i = 0; i < b.count; i++) if (b.host[i] === state.space) offer(i); }
    else map.blocks.forEach(offer);
    const groups = model.groups(state.space, state.by);
    $("found").textContent = state.refused ? "Not understood: " + visible(state.refused)
      : plural(found, "block") + (state.test ? " found" : "") + ", " + size(bytes) + (all ? " in all the record" : "") + ".";
    $("found").classList.toggle("refused", !!state.refused);
    $("blocks").tBodies[0].replaceChildren(...keep.map(i => {
      const tr = element("tr"), button = element("button", model.address(b.at[i]), "link mono");
      button.type = "button";
      button.onclick = () => select(i);
      tr.dataset.block = i;
      tr.setAttribute("aria-selected", i === state.selected);
      tr.insertCell().append(button);
      tr.insertCell().textContent = size(b.bytes[i]);
      const name = element("div", undefined, "name"), text = element("span", groups.name(groups.of[i]), "clip");
      name.append(swatch(groups.colour[groups.of[i]]), text);
      tr.insertCell().append(name);
      tr.insertCell().textContent = m < b.born[i] ? "not yet" : m < b.asked[i] ? "live" : m < b.done[i] ? "waits" : "freed";
      tr.insertCell().textContent = b.born[i] === 0 ? (snapshot ? "" : "earlier") : record.timed ? duration(model.times[b.born[i]]) : "event " + count(b.born[i]);
      return tr;
    }));
    $("more").hidden = found <= state.shown;
    performance.measure("list", "list");
  };

  // What became of a block.
  const story = () => {
    const i = state.selected, box = $("story-text");
    $("story").classList.toggle("empty", i < 0);
    document.body.classList.toggle("telling", i >= 0);
    $("story-close").hidden = i < 0;
    if (i < 0) {
      $("story-title").textContent = "The story of a block";
      box.replaceChildren(element("p", "Select a block: on the map, or in the table.", "what"));
      return;
    }
    $("story-title").textContent = "Block " + model.address(b.at[i]);
    const dl = element("dl");
    const fact = (what, value) => dl.append(element("dt", what), element("dd", value));
    fact("size", size(b.bytes[i]) + " (" + plural(b.bytes[i], "byte") + "; " + count(b.bytes[i] - b.spare[i]) + " asked for)");
    fact("tag", model.name("tag", b.tag[i]));
    fact("stream", model.name("stream", b.stream[i]));
    if (b.pool[i]) fact("pool", model.name("pool", b.pool[i]));
    if (b.line[i]) fact("trace", "line " + count(b.line[i]));
    const ol = element("ol");
    const event = (moment, text, stack) => {
      const li = element("li"), when = element("button", moment === 0 ? "Before the record" : model.momentName(moment), "link");
      when.type = "button";
      when.onclick = () => go(moment);
      li.append(...(snapshot ? [text] : [when, ": " + text]));
      const frames = model.stack(stack ?? 0);
      if (frames.length) {
        const d = element("details");
        d.append(element("summary", plural(frames.length, "caller")), element("div", frames.join("\n"), "frames"));
        li.append(d);
      }
      ol.append(li);
    };
    const by = n => n ? " by thread " + model.name("thread", n) : "";
    const last = model.last;
    if (b.born[i] > 0) event(b.born[i], "allocated" + by(b.thread[i]) + ", for " + model.name("stream", b.stream[i]), b.stack[i]);
    else event(0, snapshot ? "Nothing is recorded of its allocation: a snapshot is one moment. With a history beside it, its events are in the snapshot." : "it was there already, or its allocation is not in the record");
    const used = uses.get(i) || [];
    for (const n of used) event(model.uses.moment[n], "used by " + model.name("stream", model.uses.stream[n]) + ", too, as thread " + model.name("thread", model.uses.thread[n]) + " said");
    const streams = [...new Set(used.map(n => model.name("stream", model.uses.stream[n])))];
    if (b.asked[i] <= last && !(snapshot && b.asked[i] === 0)) {
      const atOnce = b.done[i] === b.asked[i];
      event(b.asked[i], "its free was asked for" + by(b.freed_by[i]) +
        (atOnce ? "; nothing had to be waited for, so it could be used again at once" : ""), b.freed_stack[i]);
      if (!atOnce) {
        const what = streams.length ? "the work of " + streams.join(", ") + " and of its own stream" : "the work of its own stream, or of the stream of the free";
        if (b.done[i] <= last)
          event(b.done[i], "could be used again" + (record.timed ? ", after waiting " + duration(model.times[b.done[i]] - model.times[b.asked[i]]) : "") + " for " + what);
        else ol.append(element("li", "Waits still, at the end of the record, for " + what + "."));
      }
    } else if (snapshot && b.done[i] > last && b.asked[i] === 0) {
      ol.append(element("li", "Its free was asked for; it waits for streams that may still use it."));
    } else if (!snapshot) ol.append(element("li", "Lives still, at the end of the record."));
    const life = element("p", undefined, "what");
    if (record.timed && b.born[i] > 0 && b.asked[i] <= last) life.textContent = "It lived " + duration(model.times[b.asked[i]] - model.times[b.born[i]]) + ".";
    box.replaceChildren(dl, ol, life);
    const homes = map.pieces.filter(p => p.block === i && p.home);
    const region = model.regionOf(b.at[i]);
    if (region?.[4]) {
      box.append(element("h3", "Scattered"), element("p", homes.length
        ? "These addresses are its own; its memory lies in " + plural(homes.length, "piece") + ":"
        : "These addresses are its own; where its granules lie is not recorded, or it does not live at this moment.", "what"));
      if (homes.length) box.append(element("div", homes.sort((x, y) => x.at - y.at).slice(0, 64)
        .map(p => model.address(p.at) + "  " + size(p.end - p.at)).join("\n") + (homes.length > 64 ? "\n…" : ""), "frames"));
    }
    if (!snapshot) neighbours(i, box);
  };

  // Who had these addresses before and after.
  const neighbours = (i, box) => {
    let before = -1, after = -1;
    for (let n = 0; n < b.count; n++) {
      if (n === i || b.host[n] !== b.host[i] || b.at[n] >= b.at[i] + b.bytes[i] || b.at[i] >= b.at[n] + b.bytes[n]) continue;
      if (b.born[n] < b.born[i] ? before < 0 || b.born[n] > b.born[before] : false) before = n;
      if (b.born[n] > b.born[i] ? after < 0 || b.born[n] < b.born[after] : false) after = n;
    }
    if (before < 0 && after < 0) return;
    box.append(element("h3", "The same memory"));
    for (const [n, text] of [[before, "before: "], [after, "after: "]]) {
      if (n < 0) continue;
      const p = element("p", text, "what"), button = element("button", size(b.bytes[n]) + " at " + model.address(b.at[n]) + ", " + model.name("stream", b.stream[n]), "link");
      button.type = "button";
      button.onclick = () => select(n);
      p.append(button);
      box.append(p);
    }
  };

  const drawMap = () => {
    map.show({ space: state.space, moment: state.moment, groups: model.groups(state.space, state.by), test: state.test, selected: state.selected });
    texts();
  };

  const go = moment => {
    state.moment = Math.max(0, Math.min(model.last, moment));
    $("moment").value = state.moment;
    $("moment").setAttribute("aria-valuetext", model.momentName(state.moment));
    timeline.mark(state.moment);
    timeline.follow(state.moment);
    holders();
    drawMap();
    list();
    if (state.selected >= 0) story();
  };

  const select = i => {
    state.selected = i;
    // A block that is not there now is shown when it was.
    if (i >= 0 && !(b.born[i] <= state.moment && state.moment < b.done[i])) { go(b.born[i]); }
    for (const tr of $("blocks").tBodies[0].rows) tr.setAttribute("aria-selected", Number(tr.dataset.block) === i);
    map.select(i);
    story();
  };

  const searched = () => {
    const { test, error, empty } = compile(model, state.query);
    state.refused = error;
    state.test = error || empty ? null : test;
    state.shown = PAGE;
    drawMap();
    list();
  };

  const everything = () => {
    tiles();
    describe();
    timeline.show({ space: state.space, axis: state.axis, moment: state.moment, groups: model.groups(state.space, state.by) });
    holders();
    drawMap();
    list();
    story();
  };

  $("space").onchange = e => {
    state.space = Number(e.target.value);
    state.selected = -1;
    state.moment = model.totals[state.space].peak;
    everything();
    go(state.moment);
  };
  $("axis").onchange = e => { state.axis = e.target.value; everything(); };
  $("by").onchange = e => { state.by = e.target.value; everything(); };
  $("scope").onchange = e => { state.scope = e.target.value; list(); };
  $("sort").onchange = e => { state.sort = e.target.value; list(); };
  $("more").onclick = () => { state.shown += PAGE; list(); };
  $("zoom-in").onclick = () => timeline.zoom(.5);
  $("zoom-out").onclick = () => timeline.zoom(2);
  $("zoom-all").onclick = () => timeline.zoom(0);
  $("map-in").onclick = () => { map.zoom++; map.arrange(); map.select(state.selected); texts(); };
  $("map-out").onclick = () => { map.zoom = Math.max(0, map.zoom - 1); map.arrange(); map.select(state.selected); texts(); };
  $("to-peak").onclick = () => go(model.totals[state.space].peak);
  $("before").onclick = () => go(state.moment - 1);
  $("after").onclick = () => go(state.moment + 1);
  $("story-close").onclick = () => select(-1);
  let wanted = null;
  $("moment").oninput = e => {
    if (wanted === null) requestAnimationFrame(() => { go(wanted); wanted = null; });
    wanted = Number(e.target.value);
  };
  let later = 0;
  $("search").oninput = e => {
    clearTimeout(later);
    later = setTimeout(() => { state.query = e.target.value; searched(); }, 120);
  };
  document.addEventListener("keydown", e => { if (e.key === "Escape" && state.selected >= 0) select(-1); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", everything);

  everything();
  go(state.moment);
  performance.measure("load", "begin");
  document.documentElement.dataset.ready = "yes";
};
start();
