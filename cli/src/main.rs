//! The `millpond` command: replays recorded allocation traces through Millpond's C API, shows what it cost, and draws it.
//! This file holds the list of the commands; each has a file in `commands/`.
//!
//! Exit status: 0 done; 1 an error; 2 wrong arguments; 3 out of memory (also: the device or the
//! machine is too small to try).

// A package that is declared and not used is a failure of `cargo clippy`.
#![cfg_attr(not(test), warn(unused_crate_dependencies))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))] // they panic where nobody reads

/// Says something on standard error. That nobody reads it any more (`2>&1 | head -1`) is no reason to fail.
macro_rules! tell {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($text)*)));
    }};
}

mod api;
mod bisect;
mod chart;
mod child;
mod commands;
mod compare;
mod foreign;
mod history;
mod info;
mod machine;
mod modelled;
mod options;
mod perfetto;
mod pickle;
mod picture;
mod probe;
mod progress;
mod record;
mod replay;
mod report;
mod series;
mod symbols;
mod touch;
mod trace;
mod trace_file;
mod units;
mod view;

use clap::{Parser, Subcommand};
use commands::Failure;
use std::io::ErrorKind;
use std::process::ExitCode;

/// Records what programs ask of Millpond, replays it, and shows what it took.
#[derive(Parser)]
#[command(
    name = "millpond",
    version,
    max_term_width = 110,
    after_help = "Exit status: 0 done, 1 error, 2 wrong arguments, 3 out of memory; of `record`, the program's own."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replay traces on a device, and show what it took
    Replay(commands::replay::ReplayArgs),
    /// Replay a recorded training run that is built in, check it, and draw it (4 GiB of memory are enough)
    Demo(commands::demo::DemoArgs),
    /// Find the smallest device on which a trace completes
    Bisect(commands::bisect::BisectArgs),
    /// Replay traces with several configurations, and show side by side what each took
    Compare(commands::compare::CompareArgs),
    /// Run a program, and record what it asks of Millpond, for replay, bisect and compare
    Record(commands::record::RecordArgs),
    /// List device types and devices, their memory and what they can
    Info(commands::info::InfoArgs),
    /// List the programs that share a card, and set their budgets (millpond_device_join_group)
    Group(commands::group::GroupArgs),
    /// Print a device's history that was streamed to a file (MILLPOND_HISTORY=FILE)
    History(commands::history::HistoryArgs),
    /// Draw a snapshot, a history or a trace into one page: who holds which memory, where and when
    View(commands::view::ViewArgs),
}

/// Says what went wrong.
fn failed(e: &anyhow::Error) -> ExitCode {
    tell!("millpond: {e:#}");
    ExitCode::FAILURE
}

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        // A wrong argument, or a request for help, which goes to standard output.
        Err(e) => {
            let code = u8::try_from(e.exit_code()).unwrap_or(1);
            return match e.print() {
                Err(io) if io.kind() != ErrorKind::BrokenPipe => {
                    failed(&anyhow::Error::new(io).context("standard output cannot be written"))
                }
                _ => ExitCode::from(code),
            };
        }
    };
    let result = match command {
        Command::Replay(args) => commands::replay::run(&args),
        Command::Demo(args) => commands::demo::run(&args),
        Command::Bisect(args) => commands::bisect::run(&args).map_err(Failure::from),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Record(args) => {
            return commands::record::run(&args).unwrap_or_else(|e| failed(&e));
        }
        Command::Info(args) => commands::info::run(&args).map_err(Failure::from),
        Command::Group(args) => commands::group::run(&args).map_err(Failure::from),
        Command::History(args) => commands::history::run(&args).map_err(Failure::from),
        Command::View(args) => commands::view::run(&args).map_err(Failure::from),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Error(e)) => failed(&e),
        Err(Failure::OutOfMemory(message)) => {
            tell!("millpond: {message}");
            ExitCode::from(replay::EXIT_OUT_OF_MEMORY)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
