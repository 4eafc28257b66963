//! `millpond info`: the device types, and what each device is, can do, and why not more; as text and as JSON.

use crate::api::{self, ApiResult, Capability, Device, Info, OptionValue};
use crate::units::bytes;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// What the library reads when a type or a device is first used.
const VARIABLES: [&str; 25] = [
    "MILLPOND_HOST_DEVICES",
    "MILLPOND_HOST_CAPACITY",
    "MILLPOND_HOST_MAPPING",
    "MILLPOND_ALLOC_CONF",
    "MILLPOND_CUDA_LIBRARY",
    "MILLPOND_NVML_LIBRARY",
    "MILLPOND_CUDA_MAPPING",
    "MILLPOND_CUDA_HANDLE",
    "CUDA_VISIBLE_DEVICES",
    "MILLPOND_HISTORY",
    "MILLPOND_HISTORY_FRAMES",
    "MILLPOND_HISTORY_SIGNAL",
    "MILLPOND_RECORD",
    "MILLPOND_TAG_CALLERS",
    "MILLPOND_TOOLS",
    "MILLPOND_PLUGIN_TYPE",
    "MILLPOND_PLUGIN_DEVICE",
    "MILLPOND_PLUGIN_OOM",
    "MILLPOND_PLUGIN_OOM_REPORT",
    "MILLPOND_PLUGIN_CACHE",
    "MILLPOND_LIBRARY",
    "MILLPOND_TORCH_LIBRARY",
    "MILLPOND_TORCH_DEVICE",
    "MILLPOND_TORCH_NATIVE",
    "MILLPOND_TORCH_CPU",
];

/// What is known of one device.
struct Known {
    info: Info,
    capabilities: Vec<Capability>,
    options: Vec<OptionValue>,
}

/// One device, or why it cannot be used.
struct DeviceReport {
    name: String,
    known: ApiResult<Known>,
}

/// One type: why it has no devices (empty: it has), and its devices.
struct TypeReport {
    name: String,
    known: ApiResult<(String, Vec<DeviceReport>)>,
}

/// All of it.
pub(crate) struct Report {
    version: String,
    environment: Vec<(&'static str, String)>, // variables that are set
    types: Vec<TypeReport>,
}

fn device(type_name: &str, ordinal: usize) -> DeviceReport {
    let ask = || {
        let device = Device::get(type_name, ordinal as i32)?;
        let info = device.info()?;
        Ok(Known { capabilities: device.capabilities(&info)?, options: device.options()?, info })
    };
    DeviceReport { name: format!("{type_name}:{ordinal}"), known: ask() }
}

/// Opens every device that there is, and asks it.
pub(crate) fn ask() -> ApiResult<Report> {
    let types = api::type_names()?.into_iter().map(|name| {
        let known = api::device_count(&name).map(|n| {
            let why = if n == 0 { api::reason(&name).unwrap_or_default() } else { String::new() };
            (why, (0..n).map(|ordinal| device(&name, ordinal)).collect())
        });
        TypeReport { name, known }
    });
    let set = |name: &'static str| {
        let value = crate::commands::device::variable(name)?;
        Some((name, value.to_string_lossy().into_owned()))
    };
    Ok(Report {
        types: types.collect(),
        version: api::version(),
        environment: VARIABLES.into_iter().filter_map(set).collect(),
    })
}

/// What a device says of its memory; `None` if it does not say.
fn known(total: u64) -> Option<u64> {
    (total != 0).then_some(total)
}

/// [B] what the machine can spare, where that is less than what the device has not given out: memory of the processor is
/// taken only when it is touched, and other programs take it, too.
fn to_spare(info: &Info) -> Option<u64> {
    crate::machine::available_memory()
        .filter(|&most| info.host_access() && info.total != 0 && most < info.free)
}

fn memory(info: &Info) -> String {
    if info.total == 0 {
        return "unknown".to_owned();
    }
    let (total, free) = (bytes(info.total), bytes(info.free));
    match to_spare(info) {
        Some(most) => format!("{total}, {free} not taken; the machine has {} to spare", bytes(most)),
        None => format!("{total}, {free} free"),
    }
}

/// The UUID as `nvidia-smi -L` prints it; `None` if it is unknown.
fn uuid(info: &Info) -> Option<String> {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let [a, b, c, d] = [0..4, 4..6, 6..8, 8..10].map(|part| hex(&info.uuid[part]));
    info.uuid.iter().any(|&b| b != 0).then(|| format!("GPU-{a}-{b}-{c}-{d}-{}", hex(&info.uuid[10..])))
}

/// Which device of the machine it is, as far as it is known.
fn identity(info: &Info) -> Vec<(&'static str, String)> {
    let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let rows =
        [("product", known(&info.product)), ("PCI bus", known(&info.pci_bus_id)), ("UUID", uuid(info))];
    rows.into_iter().filter_map(|(label, value)| Some((label, value?))).collect()
}

/// A driver's version as CUDA counts: 12080 is 12.8.
fn versions(info: &Info) -> String {
    format!(
        "compute capability {}, runtime {}, driver {}",
        info.compute_capability, info.runtime_version, info.driver_version
    )
}

impl Report {
    /// How many types and devices could not be asked.
    pub(crate) fn failures(&self) -> usize {
        let of = |t: &TypeReport| match &t.known {
            Ok((_, devices)) => devices.iter().filter(|d| d.known.is_err()).count(),
            Err(_) => 1,
        };
        self.types.iter().map(of).sum()
    }

    /// The text, with a paragraph for each device. `all`: with every option, not only those that somebody has set.
    pub(crate) fn text(&self, all: bool) -> String {
        let mut out = format!("Millpond {}\n", self.version);
        if !self.environment.is_empty() {
            out += "\nenvironment\n";
        }
        for (name, value) in &self.environment {
            let _ = writeln!(out, "  {name}={value}");
        }
        for t in &self.types {
            match &t.known {
                Err(e) => {
                    let _ = writeln!(out, "\n{}: {e}", t.name);
                }
                Ok((why, devices)) => {
                    let n = devices.len();
                    let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
                    let _ = writeln!(out, "\n{}: {n} device{}{why}", t.name, if n == 1 { "" } else { "s" });
                    devices.iter().for_each(|d| d.text(&mut out, all));
                }
            }
        }
        out
    }

    /// The same for programs, in bytes.
    pub(crate) fn json(&self) -> Value {
        let environment: Map<String, Value> =
            self.environment.iter().map(|(k, v)| ((*k).to_string(), v.as_str().into())).collect();
        let types = self.types.iter().map(|t| match &t.known {
            Err(e) => json!({"name": t.name, "error": e.to_string()}),
            Ok((why, devices)) => {
                let why = if why.is_empty() { Value::Null } else { why.as_str().into() };
                let devices: Vec<Value> = devices.iter().map(DeviceReport::json).collect();
                json!({"name": t.name, "error": null, "no_devices_because": why, "devices": devices})
            }
        });
        json!({
            "millpond_version": self.version,
            "environment": environment,
            "types": types.collect::<Vec<_>>(),
        })
    }
}

impl DeviceReport {
    fn text(&self, out: &mut String, all: bool) {
        let Known { info, capabilities, options } = match &self.known {
            Ok(known) => known,
            Err(e) => {
                let _ = writeln!(out, "  {}  {e}", self.name);
                return;
            }
        };
        let _ = writeln!(out, "  {}", self.name);
        let most = |n: u64| if n == u64::MAX { "no bound".to_string() } else { bytes(n) };
        let has: Vec<&str> = capabilities.iter().filter(|c| c.lack.is_none()).map(|c| c.name).collect();
        let mut rows = identity(info);
        rows.extend([
            ("memory", memory(info)),
            ("capabilities", if has.is_empty() { "none".to_string() } else { has.join(", ") }),
        ]);
        for c in capabilities {
            rows.extend(c.lack.as_ref().map(|why| ("lacks", format!("{}: {why}", c.name))));
        }
        rows.extend([
            ("min chunk", bytes(info.min_chunk)),
            ("max chunk", most(info.max_chunk)),
            ("max alloc", most(info.max_alloc)),
            ("extra padding", bytes(info.padding)),
            ("first chunk", bytes(info.init_alloc)),
            ("later chunks", bytes(info.realloc)),
            ("versions", versions(info)),
        ]);
        let mut label = "options";
        for o in options.iter().filter(|o| all || o.source != "built in") {
            let source = if o.source == "device" { "the device can do nothing else" } else { &o.source };
            rows.push((label, format!("{}:{} ({source})", o.key, o.value)));
            label = "";
        }
        if !all {
            rows.push((
                label,
                if label.is_empty() { "all others as built in" } else { "as built in" }.into(),
            ));
        }
        for (label, value) in rows {
            let _ = writeln!(out, "    {label:<14} {value}");
        }
    }

    fn json(&self) -> Value {
        let Known { info, capabilities, options } = match &self.known {
            Ok(known) => known,
            Err(e) => return json!({"name": self.name, "error": e.to_string()}),
        };
        let capabilities: Map<String, Value> = capabilities
            .iter()
            .map(|c| (c.name.replace(' ', "_"), json!({"has": c.lack.is_none(), "reason": c.lack})))
            .collect();
        let options: Map<String, Value> =
            options.iter().map(|o| (o.key.clone(), json!({"value": o.value, "source": o.source}))).collect();
        json!({
            "name": self.name,
            "error": null,
            "product": info.product,
            "pci_bus_id": (!info.pci_bus_id.is_empty()).then_some(&info.pci_bus_id),
            "uuid": uuid(info),
            "total_bytes": known(info.total),
            "free_bytes": known(info.total).map(|_| info.free),
            "machine_can_spare_bytes": to_spare(info),
            "capabilities": capabilities,
            "min_chunk_bytes": info.min_chunk,
            "max_chunk_bytes": info.max_chunk,
            "max_alloc_bytes": info.max_alloc,
            "extra_padding_bytes": info.padding,
            "init_alloc_bytes": info.init_alloc,
            "realloc_bytes": info.realloc,
            "compute_capability": info.compute_capability,
            "runtime_version": info.runtime_version,
            "driver_version": info.driver_version,
            "options": options,
        })
    }
}
