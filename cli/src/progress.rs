//! Progress on stderr: a bar on a terminal, a line each quarter elsewhere, nothing when quiet.

use crate::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// The progress of one replay.
pub(crate) struct Progress {
    name: String,
    total: u64, // operations
    bar: Option<ProgressBar>,
    next_line: Option<u64>, // operation at which the next plain line is due
}

impl Progress {
    /// For `total` operations of the trace `name`.
    pub(crate) fn new(name: &str, total: u64, quiet: bool) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let bar = (!quiet && terminal).then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(20));
            let style =
                "{msg} {wide_bar:.cyan/dim} {percent:>3}%  {human_pos} of {human_len} operations, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style.progress_chars("━╸─"));
            }
            bar.set_message(name.to_string());
            bar
        });
        let next_line = (!quiet && !terminal).then_some(0);
        let mut progress = Progress { name: name.to_string(), total: total.max(1), bar, next_line };
        progress.at(0);
        progress
    }

    /// `done` operations are done.
    pub(crate) fn at(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
        if let Some(due) = self.next_line
            && done >= due
        {
            let percent = done * 100 / self.total;
            tell!(
                "{}: {percent:>3}% ({} of {} operations)",
                self.name,
                units::count(done),
                units::count(self.total)
            );
            // The quarter after the one that is reached.
            self.next_line = Some((done * 4 / self.total + 1) * self.total / 4);
        }
    }

    /// The replay has ended after `done` operations, early or not.
    pub(crate) fn finish(&mut self, done: u64) {
        if done >= self.total {
            self.at(done);
        }
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.next_line = None;
    }
}
