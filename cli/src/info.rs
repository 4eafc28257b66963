//! `millpond info`: lists the device types, and what each device is and can do.

use crate::api::{self, Device};
use crate::units::bytes;
use std::fmt::Write;

/// The text, with a paragraph for each device, and the number of types and devices that could not be queried; their
/// paragraphs say so.
pub(crate) fn describe() -> api::ApiResult<(String, usize)> {
    let mut failed = 0;
    let mut out = format!("Millpond {}\n", api::version());
    for name in api::type_names()? {
        match api::device_count(&name) {
            Ok(n) => {
                let why = if n == 0 { api::reason(&name).unwrap_or_default() } else { String::new() };
                let why = if why.is_empty() { why } else { format!(" ({why})") };
                let _ = writeln!(out, "\n{name}: {n} device{}{why}", if n == 1 { "" } else { "s" });
                for ordinal in 0..n {
                    failed += usize::from(!device(&mut out, &name, ordinal));
                }
            }
            Err(e) => {
                let _ = writeln!(out, "\n{name}: {e}");
                failed += 1;
            }
        }
    }
    Ok((out, failed))
}

/// The device's memory as text. Memory of the processor is taken only when it is touched, and other programs take it
/// too, so the machine may have less to spare than the device has free.
fn memory(info: &api::Info) -> String {
    let (total, free) = (bytes(info.total), bytes(info.free));
    match crate::machine::available_memory() {
        Some(most) if info.host_access() && most < info.free => {
            format!("{total}, {free} not taken; the machine has {} to spare", bytes(most))
        }
        _ => format!("{total}, {free} free"),
    }
}

/// Writes a device's paragraph. `false`: the device could not be queried.
fn device(out: &mut String, name: &str, ordinal: usize) -> bool {
    let info = match Device::get(name, ordinal as i32).and_then(|d| d.info()) {
        Ok(info) => info,
        Err(e) => {
            let _ = writeln!(out, "  {name}:{ordinal}  {e}");
            return false;
        }
    };
    let _ = writeln!(out, "  {name}:{ordinal}");
    let most = |n: u64| if n == u64::MAX { "no bound".to_string() } else { bytes(n) };
    let caps = info.cap_names();
    let rows = [
        ("memory", memory(&info)),
        ("capabilities", if caps.is_empty() { "none".to_string() } else { caps.join(", ") }),
        ("min chunk", bytes(info.min_chunk)),
        ("max chunk", most(info.max_chunk)),
        ("max alloc", most(info.max_alloc)),
        ("extra padding", bytes(info.padding)),
        ("first chunk", bytes(info.init_alloc)),
        ("later chunks", bytes(info.realloc)),
        (
            "versions",
            format!(
                "compute capability {}, runtime {}, driver {}",
                info.compute_capability, info.runtime_version, info.driver_version
            ),
        ),
    ];
    for (label, value) in rows {
        let _ = writeln!(out, "    {label:<14} {value}");
    }
    true
}
