//! Graphs: what a capture has recorded, made executable and replayed, and the objects whose life is tied to them.
//!
//! A replay runs the nodes one after the other in the order of their capture, which satisfies every dependency.
//! Memory that a captured `cuMemAllocAsync` gave stays while the graph or an executable of it lives.

use std::collections::HashMap;
use std::ffi::{c_uint, c_ulonglong, c_void};
use std::rc::Rc;

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUgraphNode, CUhostFn, CUstream, CUuserObject};

use crate::code::*;
use crate::exec::{self, Step, Work};
use crate::gate::{exports, put};
use crate::world::{Answer, World};

pub(crate) struct Node {
    pub(crate) handle: u64,
    pub(crate) after: Vec<usize>,
    /// What its stream had captured just before: a dependent launch may begin before that is over.
    pub(crate) before: Option<usize>,
    pub(crate) work: Work,
}

#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    objects: HashMap<u64, u32>,              // user object to references
    pub(crate) memory: Vec<Rc<GraphMemory>>, // of captured allocations
}

/// An allocation inside a graph.
pub(crate) struct GraphMemory {
    pub(crate) start: u64,
}

pub(crate) struct Executable {
    work: Rc<[Step]>,
    objects: HashMap<u64, u32>,
    memory: Vec<Rc<GraphMemory>>,
    last: Option<(u64, u64)>, // the newest launch: (stream, seq)
}

pub(crate) struct UserObject {
    data: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void),
    references: u32,
}

/// A user object's destructor with its argument.
pub(crate) type Destructor = (unsafe extern "C" fn(*mut c_void), *mut c_void);

/// References that go once some work is done.
pub(crate) struct Farewell {
    after: Option<(u64, u64)>,
    object: u64,
    count: u32,
}

/// Takes references away, once the work is done; the last one leaves the destructor to a driver's thread.
fn release_later(world: &mut World, objects: HashMap<u64, u32>, after: Option<(u64, u64)>) {
    let after = after.filter(|(key, seq)| !exec::has_run(world, *key, *seq));
    for (object, count) in objects {
        match after {
            Some(_) => world.farewells.push(Farewell { after, object, count }),
            None => release(world, object, count),
        }
    }
    exec::kick(world);
}

fn release(world: &mut World, key: u64, count: u32) {
    let Some(object) = world.objects.get_mut(&key) else { return };
    object.references = object.references.saturating_sub(count);
    if object.references == 0
        && let Some(object) = world.objects.remove(&key)
    {
        world.destructors.push_back((object.destroy, object.data));
    }
}

/// A destructor that is due.
pub(crate) fn next_destructor(world: &mut World) -> Option<Destructor> {
    let is_due = |world: &World, farewell: &Farewell| {
        farewell.after.is_none_or(|(key, seq)| exec::has_run(world, key, seq))
    };
    while let Some(index) = world.farewells.iter().position(|farewell| is_due(world, farewell)) {
        let farewell = world.farewells.swap_remove(index);
        release(world, farewell.object, farewell.count);
    }
    world.destructors.pop_front()
}

fn drop_memory(world: &mut World, memory: Vec<Rc<GraphMemory>>) {
    for one in memory {
        if let Ok(last) = Rc::try_unwrap(one) {
            crate::pool::graph_memory_gone(world, last.start);
        }
    }
}

pub(crate) fn destroy(world: &mut World, graph: u64) -> bool {
    let Some(graph) = world.graphs.remove(&graph) else { return false };
    release_later(world, graph.objects, None);
    drop_memory(world, graph.memory);
    true
}

/// The grids that may still run when a node begins: along programmatic edges, each of which begins at an early launch.
fn overlapping(nodes: &[Node], mut index: usize) -> Vec<usize> {
    let mut all = Vec::new();
    while let Work::Grid(grid) = &nodes[index].work
        && grid.is_early()
        && let Some(before) = nodes[index].before
        && let Work::Grid(_) = &nodes[before].work
    {
        all.push(before);
        index = before;
    }
    all
}

fn instantiate(world: &mut World, out: *mut CUgraphExec, graph: u64, flags: u64) -> Answer {
    if flags & !0xf != 0 {
        return Err(INVALID_VALUE);
    }
    if world.captures.values().any(|capture| capture.graph == graph) {
        return Err(INVALID_VALUE);
    }
    let entry = world.graphs.get(&graph).ok_or(INVALID_VALUE)?;
    let step = |(index, node): (usize, &Node)| Step {
        work: node.work.clone(),
        beside: overlapping(&entry.nodes, index),
    };
    let work: Rc<[Step]> = entry.nodes.iter().enumerate().map(step).collect();
    let (objects, memory) = (entry.objects.clone(), entry.memory.clone());
    let handle = world.new_handle();
    put(out, handle as CUgraphExec)?;
    for (object, count) in &objects {
        if let Some(object) = world.objects.get_mut(object) {
            object.references += count;
        }
    }
    world.executables.insert(handle, Executable { work, objects, memory, last: None });
    OK
}

exports! {
    10000 Normal fn cuGraphCreate(out: *mut CUgraph, flags: c_uint) |w| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let handle = w.new_handle();
        put(out, handle as CUgraph)?;
        w.graphs.insert(handle, Graph::default());
        OK
    }

    10000 Normal fn cuGraphDestroy(graph: CUgraph) |w| {
        let graph = graph as u64;
        if w.captures.values().any(|capture| capture.graph == graph) {
            return Err(INVALID_VALUE); // the capture owns it
        }
        if destroy(w, graph) { OK } else { Err(INVALID_VALUE) }
    }

    10000 Normal fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) |w| {
        let graph = w.graphs.get(&(graph as u64)).ok_or(INVALID_VALUE)?;
        let room = crate::gate::get(count)?;
        if nodes.is_null() {
            return put(count, graph.nodes.len());
        }
        for index in 0..room {
            let handle = graph.nodes.get(index).map_or(0, |node| node.handle);
            put(nodes.wrapping_add(index), handle as CUgraphNode)?;
        }
        put(count, graph.nodes.len().min(room))
    }

    11040 Normal fn cuGraphInstantiateWithFlags(out: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) |w| {
        instantiate(w, out, graph as u64, flags)
    }

    10000 Normal fn cuGraphExecDestroy(executable: CUgraphExec) |w| {
        let gone = w.executables.remove(&(executable as u64)).ok_or(INVALID_VALUE)?;
        release_later(w, gone.objects, gone.last);
        if let Some((key, seq)) = gone.last
            && !gone.memory.is_empty()
        {
            exec::wait_for(w, key, seq);
        }
        drop_memory(w, gone.memory);
        OK
    }

    10000 Normal fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) |w| {
        let key = crate::stream::find(w, stream)?;
        let entry = w.executables.get(&(executable as u64)).ok_or(INVALID_VALUE)?;
        let (work, last) = (Work::Many(entry.work.clone()), entry.last);
        if w.capture_node(key, &work)? {
            return OK; // a child graph
        }
        // Launches of one executable follow each other, whatever their streams.
        let seq = exec::submit(w, key, last.into_iter().collect(), work);
        if let Some(entry) = w.executables.get_mut(&(executable as u64)) {
            entry.last = Some((key, seq));
        }
        OK
    }

    11030 Normal fn cuUserObjectCreate(
        out: *mut CUuserObject,
        data: *mut c_void,
        destroy: CUhostFn,
        references: c_uint,
        flags: c_uint,
    ) |w| {
        // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC is the only flag, and must be given.
        let destroy = destroy.ok_or(INVALID_VALUE)?;
        if references == 0 || references > i32::MAX as u32 || flags != 1 {
            return Err(INVALID_VALUE);
        }
        let handle = w.new_handle();
        put(out, handle as CUuserObject)?;
        w.objects.insert(handle, UserObject { data, destroy, references });
        OK
    }

    11030 Normal fn cuUserObjectRetain(object: CUuserObject, count: c_uint) |w| {
        let object = w.objects.get_mut(&(object as u64)).ok_or(INVALID_VALUE)?;
        if count == 0 {
            return Err(INVALID_VALUE);
        }
        object.references = object.references.checked_add(count).ok_or(INVALID_VALUE)?;
        OK
    }

    11030 Normal fn cuUserObjectRelease(object: CUuserObject, count: c_uint) |w| {
        let entry = w.objects.get(&(object as u64)).ok_or(INVALID_VALUE)?;
        if count == 0 || count > entry.references {
            return Err(INVALID_VALUE);
        }
        release_later(w, HashMap::from([(object as u64, count)]), None);
        OK
    }

    11030 Normal fn cuGraphRetainUserObject(
        graph: CUgraph,
        object: CUuserObject,
        count: c_uint,
        flags: c_uint,
    ) |w| {
        const MOVE: u32 = 1; // the caller's references become the graph's
        let (graph, key) = (graph as u64, object as u64);
        if count == 0 || flags > MOVE || !w.graphs.contains_key(&graph) {
            return Err(INVALID_VALUE);
        }
        let object = w.objects.get_mut(&key).ok_or(INVALID_VALUE)?;
        if flags == MOVE {
            if count > object.references {
                return Err(INVALID_VALUE);
            }
        } else {
            object.references = object.references.checked_add(count).ok_or(INVALID_VALUE)?;
        }
        if let Some(graph) = w.graphs.get_mut(&graph) {
            *graph.objects.entry(key).or_default() += count;
        }
        OK
    }

    11030 Normal fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint) |w| {
        let key = object as u64;
        let graph = w.graphs.get_mut(&(graph as u64)).ok_or(INVALID_VALUE)?;
        let held = graph.objects.get_mut(&key).ok_or(INVALID_VALUE)?;
        if count == 0 || count > *held {
            return Err(INVALID_VALUE);
        }
        *held -= count;
        if *held == 0 {
            graph.objects.remove(&key);
        }
        release_later(w, HashMap::from([(key, count)]), None);
        OK
    }
}
