// Numbers for people, as units.rs has them.
"use strict";
const size = n => {
  for (const [unit, s] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]])
    if (n >= s) return (n / s).toFixed(n / s < 100 ? 2 : 1) + " " + unit;
  return n + " B";
};
const count = n => String(n).replace(/\B(?=(\d{3})+$)/g, " ");
