//! Capture of streams into graphs: which streams take part, what becomes a node, and what is refused meanwhile.
//!
//! A capture belongs to the stream that began it; others join by waiting on an event of it, and must be joined back
//! before it ends. A call that is illegal in capture invalidates the capture: everything in it fails from then on, and
//! ending it gives no graph. Which calls are unsafe is decided by modes, the capture's and the calling thread's.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::c_uint;

use cudarc::driver::sys::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use crate::code::*;
use crate::exec::Work;
use crate::gate::{exports, get, put, put_optional};
use crate::graph::{self, Graph, Node};
use crate::stream::{find, thread_number};
use crate::sync::Guard;
use crate::world::{Answer, World};

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

pub(crate) struct Capture {
    origin: u64,
    mode: u32,
    thread: u64,
    valid: bool,
    pub(crate) graph: u64,
    /// The streams in it, each with the nodes that its next one follows.
    tips: HashMap<u64, Vec<usize>>,
    newest: HashMap<u64, usize>, // the last node of each stream
    told: Vec<u64>,              // what cuStreamGetCaptureInfo has pointed to
}

/// All captures that go on.
pub(crate) type Captures = HashMap<u64, Capture>;

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

impl World {
    fn invalidate(&mut self, captures: impl IntoIterator<Item = u64>) {
        for capture in captures {
            if let Some(capture) = self.captures.get_mut(&capture) {
                capture.valid = false;
            }
        }
    }

    fn capture_of(&self, stream: u64) -> Option<u64> {
        self.streams.get(&stream).and_then(|stream| stream.capture)
    }

    /// The captures that use of a stream would draw in because it is the legacy stream: those of blocking streams.
    fn implicit_captures(&self, key: u64) -> Vec<u64> {
        let Some(legacy) = self.streams.get(&key).filter(|stream| stream.is_legacy) else {
            return Vec::new();
        };
        self.streams
            .values()
            .filter(|stream| stream.context == legacy.context && !stream.non_blocking)
            .filter_map(|stream| stream.capture)
            .collect()
    }

    fn refuse_implicit(&mut self, key: u64) -> Answer {
        let drawn_in = self.implicit_captures(key);
        if drawn_in.is_empty() {
            return OK;
        }
        self.invalidate(drawn_in);
        Err(STREAM_CAPTURE_IMPLICIT)
    }

    /// Refuses what waits for a whole context while one of its streams is captured.
    pub(crate) fn refuse_in_capture(&mut self, context: u64) -> Answer {
        let hit: Vec<u64> = self
            .streams
            .values()
            .filter(|stream| stream.context == context)
            .filter_map(|stream| stream.capture)
            .collect();
        if hit.is_empty() {
            return self.refuse_unsafe_in_capture();
        }
        self.invalidate(hit);
        Err(STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses to wait for or ask a stream that is captured.
    pub(crate) fn refuse_stream_in_capture(&mut self, stream: u64) -> Answer {
        if let Some(capture) = self.capture_of(stream) {
            self.invalidate([capture]);
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        self.refuse_implicit(stream)?;
        self.refuse_unsafe_in_capture()
    }

    /// Refuses calls that are unsafe while something is captured, by the thread's capture mode.
    pub(crate) fn refuse_unsafe_in_capture(&mut self) -> Answer {
        if self.captures.is_empty() {
            return OK;
        }
        let (mode, thread) = (MODE.get(), thread_number());
        if mode == RELAXED {
            return OK;
        }
        let hit: Vec<u64> = self
            .captures
            .iter()
            .filter(|(_, capture)| {
                let own = capture.thread == thread && capture.mode != RELAXED;
                own || (mode == GLOBAL && capture.mode == GLOBAL)
            })
            .map(|(id, _)| *id)
            .collect();
        if hit.is_empty() {
            return OK;
        }
        self.invalidate(hit);
        Err(STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses to wait on the host for an event that a capture has recorded, and breaks that capture.
    pub(crate) fn refuse_captured_event(&mut self, event: u64) -> Answer {
        let Some((capture, _)) = self.events.get(&event).and_then(|event| event.captured.as_ref()) else {
            return OK;
        };
        self.invalidate([*capture]);
        Err(INVALID_VALUE)
    }

    pub(crate) fn has_capture_in(&self, context: u64) -> bool {
        self.streams.values().any(|stream| stream.context == context && stream.capture.is_some())
    }

    /// The valid capture that a stream is in.
    pub(crate) fn valid_capture(&self, stream: u64) -> Result<Option<u64>, u32> {
        let Some(id) = self.capture_of(stream) else { return Ok(None) };
        match self.captures.get(&id) {
            Some(capture) if capture.valid => Ok(Some(id)),
            _ => Err(STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// True: the work became a node.
    pub(crate) fn capture_node(&mut self, stream: u64, work: &Work) -> Result<bool, u32> {
        self.refuse_implicit(stream)?;
        let Some(id) = self.valid_capture(stream)? else { return Ok(false) };
        let handle = self.new_handle();
        let Some(capture) = self.captures.get_mut(&id) else { return Ok(false) };
        let Some(graph) = self.graphs.get_mut(&capture.graph) else { return Ok(false) };
        let after = capture.tips.remove(&stream).unwrap_or_default();
        capture.tips.insert(stream, vec![graph.nodes.len()]);
        let before = capture.newest.insert(stream, graph.nodes.len()).filter(|node| after.contains(node));
        graph.nodes.push(Node { handle, after, before, work: work.clone() });
        Ok(true)
    }

    /// A stream waits for an event. True: that is settled.
    pub(crate) fn capture_wait(&mut self, stream: u64, event: u64) -> Result<bool, u32> {
        self.refuse_implicit(stream)?;
        let own = self.valid_capture(stream)?;
        let entry = self.events.get(&event).ok_or(INVALID_HANDLE)?;
        let Some((other, nodes)) = entry.captured.clone() else {
            let Some(own) = own else { return Ok(false) };
            if entry.record == 0 {
                return Ok(true); // never recorded: nothing to wait for
            }
            self.invalidate([own]);
            return Err(STREAM_CAPTURE_ISOLATION);
        };
        let Some(capture) = self.captures.get(&other) else {
            // The capture is over, and the event stands for a node of its graph.
            self.invalidate(own);
            return Err(INVALID_VALUE);
        };
        if !capture.valid {
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        if let Some(own) = own
            && own != other
        {
            self.invalidate([own, other]);
            return Err(STREAM_CAPTURE_MERGE);
        }
        let Some(target) = self.streams.get_mut(&stream) else { return Err(INVALID_HANDLE) };
        if target.is_legacy {
            self.invalidate([other]);
            return Err(STREAM_CAPTURE_IMPLICIT);
        }
        target.capture = Some(other);
        if let Some(capture) = self.captures.get_mut(&other) {
            let tips = capture.tips.entry(stream).or_default();
            tips.extend(nodes);
            tips.sort_unstable();
            tips.dedup();
        }
        Ok(true)
    }

    /// An event is recorded in a stream. True: in a capture.
    pub(crate) fn capture_record(&mut self, stream: u64, event: u64) -> Result<bool, u32> {
        self.refuse_implicit(stream)?;
        let Some(id) = self.valid_capture(stream)? else { return Ok(false) };
        let tips = self.captures.get(&id).and_then(|capture| capture.tips.get(&stream)).cloned();
        if let Some(event) = self.events.get_mut(&event) {
            event.captured = Some((id, tips.unwrap_or_default()));
        }
        Ok(true)
    }

    pub(crate) fn capture_stream_destroyed(&mut self, stream: u64) {
        let Some(id) = self.capture_of(stream) else { return };
        self.invalidate([id]);
        if self.captures.get(&id).is_some_and(|capture| capture.origin == stream) {
            self.forget_capture(id);
        }
    }

    /// Ends a capture for all its streams and returns its graph.
    fn forget_capture(&mut self, id: u64) -> Option<u64> {
        let capture = self.captures.remove(&id)?;
        for stream in self.streams.values_mut() {
            if stream.capture == Some(id) {
                stream.capture = None;
            }
        }
        if !capture.valid {
            graph::destroy(self, capture.graph);
            return None;
        }
        Some(capture.graph)
    }

    /// Captures of streams that are gone with their context.
    pub(crate) fn forget_captures_without_origin(&mut self) {
        let gone: Vec<u64> = self
            .captures
            .iter()
            .filter(|(_, capture)| !self.streams.contains_key(&capture.origin))
            .map(|(id, _)| *id)
            .collect();
        self.invalidate(gone.iter().copied());
        for id in gone {
            self.forget_capture(id);
        }
    }
}

/// True if every stream of the capture was joined back into the origin.
fn is_joined(world: &World, capture: &Capture) -> bool {
    let Some(graph) = world.graphs.get(&capture.graph) else { return true };
    let mut reached: HashSet<usize> = HashSet::new();
    let mut open: Vec<usize> = capture.tips.get(&capture.origin).cloned().unwrap_or_default();
    while let Some(node) = open.pop() {
        if reached.insert(node) {
            open.extend(graph.nodes[node].after.iter().copied());
        }
    }
    capture.tips.values().flatten().all(|tip| reached.contains(tip))
}

fn begin(world: &mut Guard, stream: CUstream, mode: u32) -> Answer {
    let key = find(world, stream)?;
    if mode > RELAXED {
        return Err(INVALID_VALUE);
    }
    let entry = world.streams.get(&key).ok_or(INVALID_HANDLE)?;
    if entry.is_legacy {
        return Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    if entry.capture.is_some() {
        return Err(ILLEGAL_STATE);
    }
    let (id, graph) = (world.new_handle(), world.new_handle());
    world.graphs.insert(graph, Graph::default());
    let tips = HashMap::from([(key, Vec::new())]);
    let (newest, told) = (HashMap::new(), Vec::new());
    let capture =
        Capture { origin: key, mode, thread: thread_number(), valid: true, graph, tips, newest, told };
    world.captures.insert(id, capture);
    if let Some(entry) = world.streams.get_mut(&key) {
        entry.capture = Some(id);
    }
    OK
}

fn end(world: &mut Guard, stream: CUstream, out: *mut CUgraph) -> Answer {
    let key = find(world, stream)?;
    let id = world.capture_of(key).ok_or(ILLEGAL_STATE)?;
    put(out, std::ptr::null_mut())?;
    let capture = world.captures.get(&id).ok_or(ILLEGAL_STATE)?;
    if capture.mode != RELAXED && capture.thread != thread_number() {
        return Err(STREAM_CAPTURE_WRONG_THREAD);
    }
    if capture.origin != key {
        world.invalidate([id]);
        return Err(STREAM_CAPTURE_UNMATCHED);
    }
    let mut result = if capture.valid { OK } else { Err(STREAM_CAPTURE_INVALIDATED) };
    if result.is_ok() && !is_joined(world, capture) {
        world.invalidate([id]);
        result = Err(STREAM_CAPTURE_UNJOINED);
    }
    if let Some(graph) = world.forget_capture(id) {
        put(out, graph as CUgraph)?;
    }
    result
}

/// Status, capture and graph of a stream; the legacy stream has none, and cannot say so beside a capture.
fn status(world: &mut World, stream: CUstream) -> Result<(u32, u64, u64, u64), u32> {
    let key = find(world, stream)?;
    if !world.implicit_captures(key).is_empty() {
        return Err(STREAM_CAPTURE_IMPLICIT);
    }
    let Some(id) = world.capture_of(key) else { return Ok((0, 0, 0, key)) };
    let capture = world.captures.get(&id).ok_or(INVALID_HANDLE)?;
    Ok((if capture.valid { ACTIVE } else { INVALIDATED }, id, capture.graph, key))
}

fn info(
    world: &mut World,
    stream: CUstream,
    status_out: *mut CUstreamCaptureStatus,
    id_out: *mut u64,
    graph_out: *mut CUgraph,
    nodes_out: *mut *const CUgraphNode,
    count_out: *mut usize,
) -> Answer {
    let (state, id, graph, key) = status(world, stream)?;
    put(status_out.cast::<u32>(), state)?;
    if state != ACTIVE {
        return OK;
    }
    put_optional(id_out, id);
    put_optional(graph_out, graph as CUgraph);
    let nodes: Vec<u64> = world.graphs.get(&graph).map_or(Vec::new(), |graph| {
        let tips = world.captures.get(&id).and_then(|capture| capture.tips.get(&key));
        tips.into_iter().flatten().map(|tip| graph.nodes[*tip].handle).collect()
    });
    let Some(capture) = world.captures.get_mut(&id) else { return OK };
    capture.told = nodes;
    put_optional(nodes_out, capture.told.as_ptr().cast());
    put_optional(count_out, capture.told.len());
    OK
}

exports! {
    10010 Normal fn cuStreamBeginCapture_v2(stream: CUstream, mode: u32 as CUstreamCaptureMode) |w| {
        begin(w, stream, mode)
    }

    10000 Normal fn cuStreamEndCapture(stream: CUstream, out: *mut CUgraph) |w| {
        end(w, stream, out)
    }

    10000 Normal fn cuStreamIsCapturing(stream: CUstream, out: *mut CUstreamCaptureStatus) |w| {
        let (state, ..) = status(w, stream)?;
        put(out.cast::<u32>(), state)
    }

    11030 Normal fn cuStreamGetCaptureInfo_v2(
        stream: CUstream,
        status: *mut CUstreamCaptureStatus,
        id: *mut u64,
        graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode,
        count: *mut usize,
    ) |w| {
        info(w, stream, status, id, graph, nodes, count)
    }

    12030 Normal fn cuStreamGetCaptureInfo_v3(
        stream: CUstream,
        status: *mut CUstreamCaptureStatus,
        id: *mut u64,
        graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode,
        edges: *mut *const CUgraphEdgeData,
        count: *mut usize,
    ) |w| {
        put_optional(edges, std::ptr::null()); // no edge has data
        info(w, stream, status, id, graph, nodes, count)
    }

    11030 Normal fn cuStreamUpdateCaptureDependencies(
        stream: CUstream,
        nodes: *mut CUgraphNode,
        count: usize,
        flags: c_uint,
    ) |w| {
        let key = find(w, stream)?;
        let id = w.valid_capture(key)?.ok_or(ILLEGAL_STATE)?;
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        let graph = w.captures.get(&id).and_then(|capture| w.graphs.get(&capture.graph)).ok_or(INVALID_VALUE)?;
        let mut tips = Vec::new();
        for index in 0..count {
            let wanted = get(nodes.cast::<u64>().wrapping_add(index))?;
            tips.push(graph.nodes.iter().position(|node| node.handle == wanted).ok_or(INVALID_VALUE)?);
        }
        if let Some(capture) = w.captures.get_mut(&id) {
            let own = capture.tips.entry(key).or_default();
            if flags == 1 {
                own.clear(); // CU_STREAM_SET_CAPTURE_DEPENDENCIES
            }
            own.extend(tips);
            own.sort_unstable();
            own.dedup();
        }
        OK
    }

    10010 Query fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) |_w| {
        let wanted = get(mode.cast::<u32>())?;
        if !matches!(wanted, GLOBAL | THREAD_LOCAL | RELAXED) {
            return Err(INVALID_VALUE);
        }
        put(mode.cast::<u32>(), MODE.replace(wanted))
    }
}
