// The search: words that all must hold of a block. It knows nothing of how it is drawn.

const UNITS = { "": 1, b: 1, k: 1024, kib: 1024, kb: 1024, m: 2 ** 20, mib: 2 ** 20, mb: 2 ** 20,
                g: 2 ** 30, gib: 2 ** 30, gb: 2 ** 30, t: 2 ** 40, tib: 2 ** 40 };
const TIMES = { ns: 1, us: 1e3, "µs": 1e3, ms: 1e6, s: 1e9, "": 1 };
const NAMED = ["tag", "stream", "pool", "thread", "stack"];

// Words, apart by spaces; "quotes" keep them together and mean the whole name.
const words = text => {
  const out = [];
  const form = /\s*(?:(\w+)(:|>=|<=|>|<|=))?(?:"((?:[^"\\]|\\.)*)"|([^\s"]+))/gy;
  let at = 0;
  while (text.slice(at).trim()) {
    form.lastIndex = at;
    const found = form.exec(text);
    if (!found) return { error: text.slice(at).trim() };
    const [, key, op, quoted, plain] = found;
    out.push({ key, op, whole: quoted !== undefined, value: quoted?.replace(/\\(.)/g, "$1") ?? plain,
               text: found[0].trim() });
    at = form.lastIndex;
  }
  return { all: out };
};

const compare = { ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b,
                  "=": (a, b) => a === b, ":": (a, b) => a === b };

// What a query means: a test of blocks, or what of it is not understood.
const compile = (model, query) => {
  const { all, error } = words(query);
  if (error) return { error };
  const b = model.blocks, tests = [];
  const matching = (what, word) => {
    const count = (what === "stack" ? model.record.stacks : model.record.names[what]).length;
    const wanted = word.value.toLowerCase(), hit = new Uint8Array(count);
    for (let n = 0; n < count; n++) {
      const names = what === "stack" ? [model.stackName(n), ...model.stack(n)] : [model.name(what, n)];
      hit[n] = names.some(s => word.whole ? s === word.value : s.toLowerCase().includes(wanted));
    }
    return hit;
  };
  const number = (text, units) => {
    const found = /^([0-9]+(?:\.[0-9]+)?)\s*(\D*)$/.exec(text);
    const unit = found && units[found[2].toLowerCase()];
    return unit ? found[1] * unit : NaN;
  };
  const holding = address => {
    const at = model.position(BigInt("0x" + address.replace(/^0x/i, "")));
    return i => at >= b.at[i] && at < b.at[i] + b.bytes[i];
  };
  const time = i => model.times[Math.min(b.asked[i], model.last)] - model.times[b.born[i]];
  const wait = i => model.times[Math.min(b.done[i], model.last)] - model.times[Math.min(b.asked[i], model.last)];
  for (const word of all) {
    const { key, op, value } = word;
    const refused = { error: word.text };
    if (key === "size" || key === "life" || key === "waited" || key === "line") {
      const units = key === "size" ? UNITS : key === "line" ? { "": 1 } : TIMES;
      const wanted = number(value, units);
      if (Number.isNaN(wanted)) return refused;
      const is = compare[op];
      tests.push({ size: i => is(b.bytes[i], wanted), life: i => is(time(i), wanted),
                   waited: i => is(wait(i), wanted), line: i => is(b.line[i], wanted) }[key]);
    } else if (NAMED.includes(key) && op === ":") {
      const hit = matching(key, word), of = b[key];
      tests.push(i => hit[of[i]]);
    } else if (key === "state" && op === ":") {
      if (!["live", "waiting", "freed"].some(s => s.startsWith(value))) return refused;
      tests.push((i, moment) => (moment < b.asked[i] ? "live" : moment < b.done[i] ? "waiting" : "freed").startsWith(value));
    } else if (key === "addr" && op === ":") {
      if (!/^(0x)?[0-9a-f]{1,16}$/i.test(value)) return refused;
      tests.push(holding(value));
    } else if (key) {
      return refused;
    } else {
      const hits = NAMED.map(what => [matching(what, word), b[what]]);
      const holds = /^0x[0-9a-f]{1,16}$/i.test(value) ? holding(value) : () => false;
      tests.push(i => holds(i) || hits.some(([hit, of]) => hit[of[i]]));
    }
  }
  return { test: (i, moment) => { for (const t of tests) if (!t(i, moment)) return false; return true; },
           empty: !tests.length };
};

// A word that means one name.
const exactly = (what, name) => what + ':"' + name.replace(/["\\]/g, "\\$&") + '"';
