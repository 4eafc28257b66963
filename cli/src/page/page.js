// Shows the values under the pointer. The page is complete without it.
for (const plot of document.querySelectorAll(".plot")) {
  const d = JSON.parse(plot.querySelector("script").textContent);
  const svg = plot.querySelector("svg"), line = svg.querySelector(".cursor"), tip = plot.querySelector(".tip");
  let at = -1;
  const show = bucket => {
    at = Math.max(0, Math.min(d.start.length - 1, bucket));
    const first = d.start[at], next = at + 1 < d.start.length ? d.start[at + 1] : d.done;
    const x = d.left + d.width * (first + next) / 2 / d.operations;
    line.setAttribute("x1", x); line.setAttribute("x2", x); line.removeAttribute("hidden");
    const step = d.steps.filter(s => s <= first).length;
    const range = (a, b) => a === b ? size(a) : size(a) + " – " + size(b);
    const rows = [["reserved", range(d.reserved[0][at], d.reserved[1][at])],
                  ["allocated", range(d.allocated[0][at], d.allocated[1][at])]];
    if (d.active) rows.splice(1, 0, ["active", range(d.active[0][at], d.active[1][at])]);
    tip.textContent = "";
    const p = tip.appendChild(document.createElement("p"));
    p.textContent = "operation " + count(first) + (next - 1 > first ? " – " + count(next - 1) : "") +
      (d.steps.length ? (step ? " · step " + step : " · set-up") : "");
    const table = tip.appendChild(document.createElement("table"));
    for (const row of rows) {
      const tr = table.insertRow();
      for (const cell of row) tr.insertCell().textContent = cell;
    }
    tip.hidden = false;
    const scale = svg.clientWidth / d.viewWidth, px = x * scale;
    const left = px + 16 + tip.offsetWidth > svg.clientWidth ? px - 16 - tip.offsetWidth : px + 16;
    tip.style.left = Math.max(0, left) + "px";
  };
  const hide = () => { tip.hidden = true; line.setAttribute("hidden", ""); at = -1; };
  svg.addEventListener("pointermove", e => {
    const box = svg.getBoundingClientRect();
    const op = ((e.clientX - box.left) * d.viewWidth / box.width - d.left) / d.width * d.operations;
    if (op < 0 || op > d.done) return hide();
    let bucket = d.start.findIndex(s => s > op);
    show(bucket < 0 ? d.start.length - 1 : bucket - 1);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", e => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (by) { show(at < 0 ? 0 : at + by * (e.shiftKey ? 20 : 1)); e.preventDefault(); }
  });
}
