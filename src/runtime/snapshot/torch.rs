//! A snapshot in the form of PyTorch's `torch.cuda.memory._snapshot()`, pickled, which PyTorch's tools read.
//!
//! The keys are those that PyTorch 2.1 and later write (`memory_snapshot.cpp`). Its tools add up the sizes of a
//! segment's blocks, and find each block by the sizes of those before it; so the size of a block here extends to the
//! start of the next one.

use super::callers::Callers;
use super::contents::Snapshot;
use super::event::{Action, Event};
use super::pickle::{Kept, Pickle};
use super::settings::Settings;
use super::sink::Sink;
use crate::base::error::Result;
use crate::core::{BlockState, Place, Placed, Span};
use crate::runtime::entry::tags::Tag;
use std::collections::HashMap;

/// Writes the snapshot. Sleeping pools are left out: their blocks have no memory, and none is reserved.
pub(super) fn write(
    snapshot: &Snapshot,
    events: impl Iterator<Item = Event>,
    out: &mut Sink<'_>,
) -> Result<()> {
    let device = snapshot.ordinal as u64;
    let mut p = Pickle::new(out);
    let mut stacks =
        Stacks { snapshot, loaded: Callers::now(), frames: HashMap::new(), lists: HashMap::new() };
    p.open_dict();
    p.word("segments");
    p.list(snapshot.layout.spans().filter(|s| !s.owner.sleeps), |p, span| {
        segment(p, device, &span, &mut stacks)
    })?;
    p.word("device_traces");
    // One list for each device up to this one.
    let mut notes = Vec::new();
    let mut events = Some(events);
    p.list(0..=device, |p, n| match events.take_if(|_| n == device) {
        Some(all) => {
            let all = all.filter(|e| {
                if e.action == Action::Annotate {
                    notes.push((e.time_us, e.text));
                }
                // PyTorch's tools know no other.
                !matches!(e.action, Action::Annotate | Action::RecordStream)
            });
            p.list(all, |p, e| event(p, &e, &mut stacks))
        }
        None => {
            p.nothing();
            Ok(())
        }
    })?;
    p.word("allocator_settings");
    settings(&mut p, &snapshot.settings);
    p.word("external_annotations");
    p.list(notes, |p, (time_us, text)| {
        note(p, device, time_us, snapshot.kept.text(text));
        Ok(())
    })?;
    p.close_dict();
    p.end();
    Ok(())
}

fn segment(p: &mut Pickle<'_, '_>, device: u64, span: &Span<'_>, stacks: &mut Stacks<'_>) -> Result<()> {
    let sum = |wanted: fn(&Placed) -> bool, of: fn(&Placed) -> u64| {
        span.blocks.iter().filter(|b| wanted(b)).map(of).sum::<u64>()
    };
    let live = |b: &Placed| b.state == BlockState::Live;
    let active = |b: &Placed| b.state != BlockState::Free;
    p.open_dict();
    p.item("device", device);
    p.item("address", span.address);
    p.item("total_size", span.bytes);
    p.item("allocated_size", sum(live, |b| b.span));
    p.item("active_size", sum(active, |b| b.span));
    p.item("requested_size", sum(active, |b| b.requested));
    p.item("stream", span.owner.stream.unwrap_or(0));
    p.word("segment_type");
    p.word(if span.place == Place::Small { "small" } else { "large" });
    p.word("segment_pool_id");
    match span.owner.pool {
        Some(pool) => p.pair(0, i64::from(pool.0)),
        None => p.pair(-1, -1),
    }
    p.word("is_expandable");
    p.flag(span.place != Place::Segment);
    p.word("frames");
    p.nothing();
    p.word("blocks");
    p.list(span.blocks, |p, b| block(p, b, stacks))?;
    p.close_dict();
    Ok(())
}

fn block(p: &mut Pickle<'_, '_>, b: &Placed, stacks: &mut Stacks<'_>) -> Result<()> {
    p.open_dict();
    p.item("address", b.address);
    p.item("size", b.span);
    p.item("requested_size", b.requested);
    p.word("state");
    p.word(match b.state {
        BlockState::Live => "active_allocated",
        BlockState::Waiting => "active_pending_free",
        BlockState::Free => "inactive",
    });
    p.word("frames");
    let stack = stacks.snapshot.kept.requests.get(&b.address).filter(|_| b.state != BlockState::Free);
    stacks.write(p, Tag::of_number(b.tag), stack.copied().unwrap_or(0))?;
    p.close_dict();
    Ok(())
}

/// What is written of callers, and how it can be written again: most stacks come many times.
struct Stacks<'a> {
    snapshot: &'a Snapshot,
    loaded: Callers,
    frames: HashMap<u64, Kept>,
    /// By the number of the tag and that of the stack.
    lists: HashMap<(u16, u32), Kept>,
}

impl Stacks<'_> {
    /// The frames of a stack, the innermost first. PyTorch's tools name and group blocks by these: a tag is the first of
    /// them.
    fn write(&mut self, p: &mut Pickle<'_, '_>, tag: Option<Tag>, stack: u32) -> Result<()> {
        let frames = self.snapshot.kept.stacks.get(stack);
        let key = (tag.map_or(0, Tag::number), stack);
        match self.lists.get(&key) {
            _ if tag.is_none() && frames.is_empty() => p.nothing(),
            Some(&known) => p.again(known),
            _ => {
                let all = tag.iter().map(Err).chain(frames.iter().map(Ok));
                p.list(all, |p, frame| {
                    match frame {
                        Err(tag) => tag_frame(p, tag),
                        Ok(&f) => self.frame(p, f),
                    }
                    Ok(())
                })?;
                self.lists.extend(p.keep().map(|k| (key, k)));
            }
        }
        Ok(())
    }

    fn frame(&mut self, p: &mut Pickle<'_, '_>, back: u64) {
        if let Some(&known) = self.frames.get(&back) {
            return p.again(known);
        }
        let caller = self.loaded.of(back);
        p.open_dict();
        p.word("filename");
        p.text(&caller.module);
        p.item("line", 0);
        p.word("name");
        p.text(&caller.name());
        // Not a key of PyTorch's: what addr2line takes.
        p.item("offset", caller.offset);
        p.close_dict();
        self.frames.extend(p.keep().map(|k| (back, k)));
    }
}

fn tag_frame(p: &mut Pickle<'_, '_>, tag: &Tag) {
    p.open_dict();
    p.word("filename");
    p.word("tag");
    p.item("line", 0);
    p.word("name");
    p.text(tag.name());
    p.close_dict();
}

fn event(p: &mut Pickle<'_, '_>, e: &Event, stacks: &mut Stacks<'_>) -> Result<()> {
    let tag = Tag::of_number(e.tag);
    p.open_dict();
    p.word("action");
    p.word(e.action.name());
    match e.action {
        // PyTorch has no word for "not known".
        Action::Oom => p.item("device_free", e.device_free.unwrap_or(0)),
        _ => p.item("addr", e.address),
    }
    p.item("size", e.bytes);
    p.item("stream", e.stream);
    p.item("time_us", e.time_us);
    if let Some(pool) = e.pool {
        p.word("pool_id");
        p.pair(0, i64::from(pool.0));
    }
    if let Some(tag) = tag {
        p.word("user_metadata");
        p.text(tag.name());
    }
    p.word("frames");
    // As of a block.
    stacks.write(p, tag.filter(|_| e.action == Action::Alloc), e.stack)?;
    p.close_dict();
    Ok(())
}

/// What the program has noted, as the begin of a time without an end.
fn note(p: &mut Pickle<'_, '_>, device: u64, time_us: u64, text: &str) {
    p.open_dict();
    p.word("stage");
    p.word("START");
    p.word("name");
    p.text(text);
    p.item("device", device);
    p.item("time_us", time_us);
    p.close_dict();
}

fn settings(p: &mut Pickle<'_, '_>, s: &Settings) {
    p.open_dict();
    p.word("PYTORCH_CUDA_ALLOC_CONF");
    p.text(&s.all);
    p.word("max_split_size");
    p.int(s.max_split);
    p.word("garbage_collection_threshold");
    p.float(s.threshold);
    p.word("expandable_segments");
    p.flag(s.expandable);
    p.item("pinned_num_register_threads", s.threads);
    p.word("release_lock_on_cudamalloc");
    p.flag(s.release_lock);
    p.word("pinned_use_cuda_host_register");
    p.flag(s.register);
    p.word("graph_capture_record_stream_reuse");
    p.flag(s.stream_reuse);
    p.word("roundup_power2_divisions");
    p.open_dict();
    for (n, parts) in s.divisions.iter().enumerate() {
        p.text(&(1u32 << n).to_string());
        p.size(*parts);
    }
    p.close_dict();
    p.close_dict();
}
