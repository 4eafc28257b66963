//! `millpond group`: who shares a card, and with which budgets.

use super::output::{say, write};
use crate::units;
use anyhow::{Context, Result, bail};
use clap::Args;
use millpond::runtime::{GroupMember, group_members, set_group_budget};
use serde_json::json;
use std::path::PathBuf;

#[derive(Args)]
#[command(
    after_help = "A budget of 0 is none. A program follows it when it next looks for what others want.\n\n  \
                  millpond group /dev/shm/gpu0.group\n  \
                  millpond group /dev/shm/gpu0.group --budget 3=20GiB\n\n\
                  Exit status: 0 done, 1 error, 2 wrong arguments."
)]
pub(crate) struct GroupArgs {
    /// The file that the programs have joined (millpond_device_join_group)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Tell a member to take no more than this from its card; may be given several times
    #[arg(long, value_name = "MEMBER=BYTES", value_parser = parse_budget)]
    budget: Vec<(u64, u64)>,
    /// Write the members as JSON (`-`: to standard output, and nothing else)
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

fn parse_budget(text: &str) -> Result<(u64, u64)> {
    let Some((member, bytes)) = text.split_once('=') else {
        bail!("a budget is MEMBER=BYTES, as in 3=20GiB");
    };
    let member = member.trim().parse().with_context(|| format!("{member:?} is no number of a member"))?;
    Ok((member, units::parse_bytes(bytes)?))
}

/// Runs the command.
pub(crate) fn run(args: &GroupArgs) -> Result<()> {
    for &(member, bytes) in &args.budget {
        set_group_budget(&args.file, member, bytes)?;
    }
    let members = group_members(&args.file)?;
    match &args.json {
        Some(path) => {
            write(path, &format!("{:#}\n", members.iter().map(as_json).collect::<serde_json::Value>()))
        }
        None => say(&table(&members)),
    }
}

fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn as_json(m: &GroupMember) -> serde_json::Value {
    json!({
        "member_id": m.id,
        "process_id": m.process,
        "name": m.name,
        "device": m.device,
        "card": hex(m.card),
        "reserved_bytes": m.reserved_bytes,
        "unused_bytes": m.unused_bytes,
        "budget_bytes": (m.budget_bytes != 0).then_some(m.budget_bytes),
        "given_bytes": m.given_bytes,
        "received_bytes": m.received_bytes,
        "looked_ms": m.looked_ms,
    })
}

/// Others have written this: nothing in it may steer the terminal.
fn printable(text: &str) -> String {
    text.replace(char::is_control, "?")
}

fn table(members: &[GroupMember]) -> String {
    if members.is_empty() {
        return "Nobody is in the group.\n".to_owned();
    }
    let head = [
        "member", "process", "name", "device", "reserved", "unused", "budget", "given", "received", "looked",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(members.iter().map(|m| {
        let looked = match m.looked_ms {
            None => "never".to_owned(),
            Some(ms) => format!("{:.1} s ago", ms as f64 / 1e3),
        };
        let budget = if m.budget_bytes == 0 { "none".to_owned() } else { units::bytes(m.budget_bytes) };
        [
            m.id.to_string(),
            m.process.to_string(),
            printable(&m.name),
            printable(&m.device),
            units::bytes(m.reserved_bytes),
            units::bytes(m.unused_bytes),
            budget,
            units::bytes(m.given_bytes),
            units::bytes(m.received_bytes),
            looked,
        ]
    }));
    let width: Vec<usize> =
        (0..head.len()).map(|c| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(&width).map(|(cell, w)| format!("{cell:<w$}")).collect();
        out += cells.join("  ").trim_end();
        out.push('\n');
    }
    out
}
