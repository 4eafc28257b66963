//! `millpond compare`: arguments, and how a configuration is written.

use super::Failure;
use super::device::{meant, parse_capacity, parse_device};
use super::output::{check_outputs, is_stdout, say, write};
use crate::api;
use crate::compare::{Column, Comparison, Configuration, Plan, compare};
use crate::options::items;
use crate::probe::{DeviceName, Setup};
use crate::touch::Touch;
use crate::trace::Trace;
use anyhow::{Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// What is compared where nothing is named.
const USUAL: [&str; 3] = ["default=", "segments=expandable_segments:False", "unpooled=backend:none"];

#[derive(Args)]
#[command(
    after_help = "A configuration is `[NAME=][device:TYPE[:N],][KEY:VALUE,...]`: a device, and options of the \
                        allocator as in docs/options.md. Without --with: default, expandable_segments:False, \
                        backend:none.\n\n  \
                        millpond compare my.trace --with default= --with whole=max_split_size_mb:200 \
                        --with device:cpu\n\n\
                        Exit status: 0 done, 1 error, 2 wrong arguments, 3 out of memory with a configuration."
)]
pub(crate) struct CompareArgs {
    /// The traces: .trace, .trace.zst, a pickle of PyTorch's _record_memory_history, or RMM's CSV log
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// A configuration; may be given several times, and times are told against the first
    #[arg(long, short, value_name = "CONFIGURATION", value_parser = parse_configuration)]
    with: Vec<Wish>,
    /// The device of configurations that name none: `host`, `cpu` or a plugin's type, with `:N` for the N-th one
    #[arg(long, default_value = "host", value_name = "TYPE[:N]", value_parser = parse_device)]
    device: DeviceName,
    /// A custom-runtime plugin to load; its device type is the default for --device then
    #[arg(long, value_name = "PATH.so")]
    plugin: Option<PathBuf>,
    /// Memory of the device for the replays, as in 4GiB [default: for `host` twice the peak of the trace; else all it
    /// has]
    #[arg(long, value_name = "BYTES", value_parser = parse_capacity)]
    capacity: Option<u64>,
    /// How much of each block is written
    #[arg(long, value_enum, default_value_t = Touch::Edges)]
    touch: Touch,
    /// Replay N times with each configuration, in turn; the fastest counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// In each of these, replay the trace N times, keeping the memory between; the first is cold
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    passes: u32,
    /// Do not look for the smallest device, which takes about ten replays for each configuration
    #[arg(long)]
    no_bisect: bool,
    /// Write the results as JSON: an array with an object for each trace (`-`: to standard output, and nothing else)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

/// A configuration as it was written.
#[derive(Clone, Debug, PartialEq)]
struct Wish {
    name: Option<String>,
    device: Option<DeviceName>,
    options: String,
}

fn parse_configuration(text: &str) -> Result<Wish> {
    let (name, text) = match text.split_once('=') {
        Some((name, rest)) => (Some(name.trim().to_string()), rest),
        None => (None, text),
    };
    ensure!(name.as_deref() != Some(""), "there is no name before the `=`");
    let (mut device, mut options) = (None, Vec::new());
    for item in items(text).into_iter().map(str::trim).filter(|i| !i.is_empty()) {
        match item.strip_prefix("device:") {
            Some(d) if device.is_none() => device = Some(parse_device(d)?),
            Some(_) => bail!("it has two devices"),
            None => options.push(item),
        }
    }
    let options = options.join(",");
    ensure!(
        options.is_empty() || options.contains(':'),
        "`{options}` is no option; write KEY:VALUE, or `{options}=` if that is the name of a configuration without any"
    );
    Ok(Wish { name, device, options })
}

impl CompareArgs {
    fn configurations(&self) -> Result<Vec<Configuration>> {
        let mut wishes = self.with.clone();
        if wishes.is_empty() {
            wishes = USUAL.iter().map(|u| parse_configuration(u)).collect::<Result<_>>()?;
        }
        let unnamed = meant(&self.device, self.plugin.as_deref())?;
        let mut all: Vec<Configuration> = Vec::new();
        for (n, wish) in wishes.into_iter().enumerate() {
            let built_in = |d: &DeviceName| matches!(d.type_name.as_str(), "host" | "cpu" | "cuda");
            let plugin = self.plugin.clone().filter(|_| !wish.device.as_ref().is_some_and(built_in));
            let device = wish.device.unwrap_or_else(|| unnamed.clone());
            let setup = Setup { device, plugin, options: wish.options };
            let name = wish.name.unwrap_or_else(|| format!("#{}", n + 1));
            ensure!(all.iter().all(|c| c.name != name), "two configurations have the name `{name}`");
            all.push(Configuration { name, setup });
        }
        Ok(all)
    }
}

/// Runs the command.
pub(crate) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let quiet = args.quiet || args.json.as_deref().is_some_and(is_stdout);
    let read = args.traces.iter().chain(&args.plugin).map(PathBuf::as_path);
    check_outputs(read, &[("--json", args.json.as_deref())])?;
    let configurations = args.configurations()?;
    let traces = args.traces.iter().map(|p| Trace::read(p)).collect::<Result<Vec<_>>>()?;
    let touch = args.touch.to_possible_value();
    let plan = Plan {
        capacity: args.capacity,
        touch: touch.as_ref().map_or("edges", |v| v.get_name()).to_string(),
        repeats: args.repeat,
        passes: args.passes,
        bisect: !args.no_bisect,
        quiet,
    };
    let mut all: Vec<Comparison<'_>> = Vec::new();
    for (path, trace) in args.traces.iter().zip(&traces) {
        let one = compare(path, trace, &configurations, &plan);
        if !quiet {
            say(&format!("{}\n", one.table(&api::version())))?;
        }
        all.push(one);
    }
    if let Some(path) = &args.json {
        let all: Vec<_> = all.iter().map(Comparison::json).collect();
        write(path, &format!("{:#}\n", serde_json::Value::Array(all)))?;
    }
    let count = |is: fn(&Column) -> bool| all.iter().flat_map(|c| &c.columns).filter(|c| is(c)).count();
    let (failed, short) = (count(Column::failed), count(Column::ran_out));
    let mut said = format!("{failed} replays have failed, {short} ran out of memory");
    if quiet {
        // No table has told why.
        let unwell = all.iter().flat_map(|c| &c.columns).filter(|c| c.failed() || c.ran_out());
        unwell.for_each(|c| said += &format!("\n{}", c.says()));
    }
    match (failed, short) {
        (0, 0) => Ok(()),
        (0, _) => Err(Failure::OutOfMemory(said)),
        _ => Err(anyhow!(said).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_read() {
        let read = |t| parse_configuration(t).unwrap();
        let wish = |name: Option<&str>, device: Option<&str>, options: &str| Wish {
            name: name.map(str::to_string),
            device: device.map(|d| parse_device(d).unwrap()),
            options: options.to_string(),
        };
        assert_eq!(read(""), wish(None, None, ""));
        assert_eq!(read("mine="), wish(Some("mine"), None, ""));
        assert_eq!(read("device:cpu:1"), wish(None, Some("cpu:1"), ""));
        assert_eq!(
            read("x = roundup_power2_divisions:[256:1,>:8], device:cpu ,backend:native"),
            wish(Some("x"), Some("cpu"), "roundup_power2_divisions:[256:1,>:8],backend:native")
        );
        for (bad, wants) in [
            ("=backend:none", "no name"),
            ("device:cpu,device:host", "two devices"),
            ("default", "`default=`"),
            ("device:cpu:x", "`x` is not"),
        ] {
            let e = format!("{:#}", parse_configuration(bad).unwrap_err());
            assert!(e.contains(wants), "{bad}: {e}");
        }
        USUAL.iter().for_each(|u| drop(read(u)));
    }
}
