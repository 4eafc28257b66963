//! Reading how free memory lies holds up nobody: between its steps others may do what they like.

use super::super::ground::gaps;
use super::*;
use std::cell::Cell;
use std::rc::Rc;

const PIECE: u64 = 64 << 10;

#[test]
fn a_reading_holds_no_lock_between_its_steps() {
    for mapping in [true, false] {
        let config = config(mapping, 128 << 20);
        let world = Arc::new(Mutex::new(World { capacity: config.max_alloc, ..World::default() }));
        let pond: &'static Pond =
            Box::leak(Box::new(Pond::new(config, Arc::new(Sim(world.clone()))).unwrap()));
        world.lock().unwrap().real = pond.ground().memory_granules();
        let all: Vec<u64> = (0..600).map(|_| pond.alloc(PoolId::DEFAULT, 1, PIECE).unwrap()).collect();
        all.iter().step_by(2).for_each(|&at| pond.free(at, None, None).unwrap());
        let read = || pond.statistics().full(None, 0).unwrap();
        let quiet = read();
        let pieces = quiet.inactive_split.large_pool.current;
        assert!(
            (300..303).contains(&pieces),
            "{pieces}: those that were freed, and what is behind the last block"
        );
        // The same heap serves a request and takes a free; another one gets memory from the device.
        let steps = Rc::new(Cell::new(0));
        let act = {
            let steps = steps.clone();
            move || {
                steps.set(steps.get() + 1);
                let at = [(1, PIECE), (1, 1000), (2, 4 << 20)]
                    .map(|(stream, bytes)| pond.alloc(PoolId::DEFAULT, stream, bytes).unwrap());
                at.into_iter().for_each(|at| pond.free(at, None, None).unwrap());
                pond.empty_cache(None).unwrap();
            }
        };
        let busy = gaps::at_each(act, read);
        assert!(steps.get() >= 4, "{} steps for 300 pieces", steps.get());
        assert_eq!(busy.allocated_bytes.all.current, quiet.allocated_bytes.all.current);
        let streams = pond.statistics().streams(None).unwrap();
        let of = |stream| *streams.iter().find(|s| s.stream == Some(stream)).unwrap();
        assert_eq!((of(1).blocks, of(1).allocated_bytes), (300, 300 * PIECE));
        assert_eq!((of(2).blocks, of(2).total_blocks), (0, steps.get()));
        all.iter().skip(1).step_by(2).for_each(|&at| pond.free(at, None, None).unwrap());
        pond.ground().check();
    }
}
