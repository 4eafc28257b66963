//! `millpond bisect`: the smallest device on which a trace completes. Each probe is a process of its own.

use crate::probe::{self, End, Setup};
use crate::units;
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;

/// [B] The grid of capacities: one granule.
const STEP: u64 = 2 << 20;
/// Probes above the peak that double the distance, before giving up: 2 MiB << 23 = 16 TiB.
const MOST_DOUBLINGS: u32 = 24;

/// The smallest multiple of `step` from `from` up, and `most` at most, at which `completes` holds, if it is monotone.
pub(crate) fn smallest(
    from: u64,
    most: u64,
    step: u64,
    mut completes: impl FnMut(u64) -> Result<bool>,
) -> Result<u64> {
    let first = from.div_ceil(step).max(1);
    let last = most / step;
    if first > last {
        bail!("it needs {} at least, and the device has {}", units::bytes(from), units::bytes(most));
    }
    if completes(first * step)? {
        return Ok(first * step);
    }
    // `low` fails, `high` completes.
    let mut low = first;
    let mut distance = (first / 64).max(1);
    let mut high = None;
    for _ in 0..MOST_DOUBLINGS {
        let at = low.saturating_add(distance).min(last);
        if at == low {
            break;
        }
        if completes(at * step)? {
            high = Some(at);
            break;
        }
        low = at;
        distance = distance.saturating_mul(2);
    }
    let Some(mut high) = high else {
        bail!("it does not complete with {} either", units::bytes(low * step));
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if completes(middle * step)? {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(high * step)
}

/// Finds the smallest capacity for the trace at `path`, which holds `peak` bytes at its peak, on a device that has `most`
/// bytes.
pub(crate) fn bisect(path: &Path, peak: u64, most: u64, setup: &Setup, quiet: bool) -> Result<u64> {
    ensure!(
        peak <= most || !setup.is_made_to_measure(),
        "no host device is large enough: it needs {} at least, and the largest has {}",
        units::bytes(peak),
        units::bytes(most)
    );
    smallest(peak, most, STEP, |capacity| {
        let end = probe::replay(path, setup, &["--touch=none", &format!("--capacity={capacity}")]);
        let end = end.with_context(|| format!("with {}", units::bytes(capacity)))?;
        let completes = matches!(end, End::Completed(_));
        if !quiet {
            let ratio = capacity as f64 / peak.max(1) as f64;
            let verdict = if completes { "completes" } else { "out of memory" };
            tell!("{:>12}  {ratio:.4} of peak live  {verdict}", units::bytes(capacity));
        }
        Ok(completes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_smallest() {
        for peak in [1u64, 10, 1000, 945 * 2] {
            for needed in [0, peak, peak + 1, peak + 2, peak + 13, peak * 2, peak * 7 + 3] {
                let mut probes = 0;
                let found = smallest(peak, u64::MAX, 2, |c| {
                    probes += 1;
                    Ok(c >= needed)
                });
                let wants = needed.max(peak).div_ceil(2) * 2;
                assert_eq!(found.unwrap(), wants, "peak {peak}, needed {needed}");
                assert!(probes < 30, "{probes} probes");
            }
        }
    }

    #[test]
    fn does_not_look_beyond_the_device() {
        let mut asked = Vec::new();
        let found = smallest(100, 1000, 2, |c| {
            asked.push(c);
            Ok(c >= 980)
        });
        assert_eq!(found.unwrap(), 980);
        assert!(smallest(100, 1000, 2, |_| Ok(false)).unwrap_err().to_string().contains("1000 B"));
        assert!(asked.iter().all(|&c| c <= 1000), "{asked:?}");
        assert!(smallest(2000, 1000, 2, |_| Ok(true)).unwrap_err().to_string().contains("needs"));
    }

    #[test]
    fn sums_do_not_overflow() {
        let e = smallest(u64::MAX, u64::MAX, 2 << 20, |_| Ok(true)).unwrap_err().to_string();
        assert!(e.starts_with("it needs 16777216.0 TiB at least"), "{e}");
        assert!(smallest(u64::MAX - 3, u64::MAX, 2, |_| Ok(false)).is_err());
        assert!(smallest(1 << 63, u64::MAX, 1, |_| Ok(false)).is_err());
    }

    #[test]
    fn gives_up_where_nothing_is_enough_and_passes_errors_on() {
        assert!(smallest(100, u64::MAX, 2, |_| Ok(false)).is_err());
        assert!(
            format!("{}", smallest(100, u64::MAX, 2, |_| bail!("broken")).unwrap_err()).contains("broken")
        );
    }
}
