//! Each call of the device in turn: a thread is held in it, and the others go on.
//!
//! Where the device is asked for memory or given it back there are two tests: for what is served from what is there,
//! and for what needs more memory from the device itself.

use super::*;

/// While a thread makes granules, others are served from what there is.
#[test]
fn while_granules_are_made() {
    apart(|| while_held("granules_create", 1, true, easy, grow));
}

/// While a thread makes granules, others get more memory, too.
#[test]
fn while_granules_are_made_and_others_grow() {
    apart(|| while_held("granules_create", 1, true, growing, grow));
}

/// While a thread maps granules, others are served from what there is.
#[test]
fn while_granules_are_mapped() {
    apart(|| while_held("map", 1, true, easy, grow));
}

/// While a thread maps granules, others get more memory, too.
#[test]
fn while_granules_are_mapped_and_others_grow() {
    apart(|| while_held("map", 1, true, growing, grow));
}

/// While a thread maps granules a second time, others are served from what there is.
#[test]
fn while_granules_are_shown_side_by_side() {
    apart(|| while_held("map", 5, true, easy, scatter));
}

/// While a thread maps granules a second time, others get more memory, too.
#[test]
fn while_granules_are_shown_side_by_side_and_others_grow() {
    apart(|| while_held("map", 5, true, growing, scatter));
}

/// While a thread unmaps granules, others are served from what there is.
#[test]
fn while_granules_are_unmapped() {
    apart(|| while_held("unmap", 1, true, easy, give_back));
}

/// While a thread unmaps granules, others get more memory, too.
#[test]
fn while_granules_are_unmapped_and_others_grow() {
    apart(|| while_held("unmap", 1, true, growing, give_back));
}

/// While a thread releases granules, others are served from what there is.
#[test]
fn while_granules_go_back() {
    apart(|| while_held("granules_release", 1, true, easy, give_back));
}

/// While a thread releases granules, others get more memory, too.
#[test]
fn while_granules_go_back_and_others_grow() {
    apart(|| while_held("granules_release", 1, true, growing, give_back));
}

/// While a thread makes a segment, others are served from what there is.
#[test]
fn while_a_segment_is_made() {
    apart(|| while_held("alloc", 1, false, easy, grow_far));
}

/// While a thread makes a segment, others get more memory, too.
#[test]
fn while_a_segment_is_made_and_others_grow() {
    apart(|| while_held("alloc", 1, false, growing, grow_far));
}

/// While a thread releases a segment, others are served from what there is.
#[test]
fn while_a_segment_goes_back() {
    apart(|| while_held("free", 1, false, easy, give_back));
}

/// While a thread releases a segment, others get more memory, too.
#[test]
fn while_a_segment_goes_back_and_others_grow() {
    apart(|| while_held("free", 1, false, growing, give_back));
}

/// While a thread releases a block's own segment, others are served from what there is.
#[test]
fn while_a_block_of_a_whole_segment_goes_back() {
    apart(|| while_held("free", 1, false, easy, free_a_whole_segment));
}

/// While a thread releases a block's own segment, others get more memory, too.
#[test]
fn while_a_block_of_a_whole_segment_goes_back_and_others_grow() {
    apart(|| while_held("free", 1, false, growing, free_a_whole_segment));
}

/// While a thread waits for the device, to give memory back, others go on.
#[test]
fn while_the_device_is_waited_for_to_empty_a_cache() {
    apart(|| while_held("synchronize", 1, true, all, give_back));
}

/// While a thread waits for the device, for granules that it has taken out, others go on.
#[test]
fn while_the_device_is_waited_for_again() {
    apart(|| while_held("synchronize", 2, true, all, give_back));
}

/// While a thread waits for the device, to give segments back, others go on.
#[test]
fn while_the_device_is_waited_for_to_empty_segments() {
    apart(|| while_held("synchronize", 1, false, all, give_back));
}

/// While a thread waits for the device, to free a block's own segment, others go on.
#[test]
fn while_the_device_is_waited_for_to_free_a_segment() {
    apart(|| while_held("synchronize", 1, false, all, free_a_whole_segment));
}

/// While a thread waits for the device in the collector, others go on.
#[test]
fn while_the_device_is_waited_for_to_collect() {
    apart(|| while_held("synchronize", 1, true, all, collect));
}

/// While a thread waits for the device at the end of a pool, others go on.
#[test]
fn while_the_device_is_waited_for_to_end_a_pool() {
    apart(|| while_held("synchronize", 1, true, all, end_a_pool));
}

/// While a thread waits for the device before a pool sleeps, others go on.
#[test]
fn while_the_device_is_waited_for_to_sleep() {
    apart(|| while_held("synchronize", 1, true, all, sleep_and_wake));
}

/// While a thread waits for a freed block, others go on.
#[test]
fn while_a_freed_block_is_waited_for() {
    apart(|| while_held("event_synchronize", 1, true, all, wait_for_a_block));
}

/// While a thread waits for a stream whose memory it takes, others go on.
#[test]
fn while_a_stream_is_waited_for_to_take_its_memory() {
    apart(|| while_held("event_synchronize", 1, true, all, take_from_a_stream));
}

/// While a thread asks whether a stream whose memory it takes is through, others go on.
#[test]
fn while_a_stream_is_asked_whether_its_memory_can_be_taken() {
    apart(|| while_held("event_query", 1, true, all, take_from_a_stream));
}

/// While a thread marks a stream whose memory it takes, others go on.
#[test]
fn while_a_stream_is_marked_to_take_its_memory() {
    apart(|| while_held("event_record", 1, true, all, take_from_a_stream));
}

/// While a thread asks whether a stream is captured, others go on.
#[test]
fn while_a_stream_is_asked_whether_it_is_captured() {
    apart(|| while_held("capture_id", 1, true, all, grow));
}

/// While a thread asks how much memory there is, others go on.
#[test]
fn while_the_device_is_asked_how_much_it_has() {
    apart(|| while_held("memory_info", 1, true, all, grow_carefully));
}

/// While a thread copies what a pool holds that goes to sleep, others go on.
#[test]
fn while_what_sleeps_is_copied() {
    apart(|| while_held("copy", 1, true, all, sleep_and_wake));
}

/// While a thread copies back what a pool held that wakes, others go on.
#[test]
fn while_what_wakes_is_copied() {
    apart(|| while_held("copy", 2, true, all, sleep_and_wake));
}

/// While a thread makes an event, for a free, others go on.
#[test]
fn while_an_event_is_made() {
    apart(|| while_held("event_create", 1, true, all, free_on_many));
}

/// While a thread records an event, for a free, others go on.
#[test]
fn while_an_event_is_recorded() {
    apart(|| while_held("event_record", 1, true, all, free_on_many));
}

/// While a thread asks for an event, for statistics, others go on.
#[test]
fn while_an_event_is_asked_about() {
    apart(|| while_held("event_query", 2, true, all, look));
}

/// While a thread marks a stream that ends, others go on.
#[test]
fn while_an_ending_stream_is_marked() {
    apart(|| while_held("event_record", 1, true, all, end_used_stream));
}

/// While a thread ends a stream, others go on.
#[test]
fn while_a_stream_ends() {
    apart(|| while_held("stream_destroy", 1, true, all, end_used_stream));
}

/// While a thread asks whether an ended stream is through, to take over its memory, others go on.
#[test]
fn while_an_ended_stream_is_asked_about() {
    apart(|| while_held("event_query", 1, true, all, take_over));
}

/// While a thread makes a stream wait for an ended one, to take over its memory, others go on.
#[test]
fn while_an_ended_stream_is_waited_for_on_the_device() {
    apart(|| while_held("stream_wait_event", 1, true, all, take_over));
}

/// While a thread asks whether a stream exists, others go on.
#[test]
fn while_a_stream_is_looked_up() {
    apart(|| while_held("stream_exists", 1, true, all, grow));
}

/// While a thread makes a stream wait for the one whose memory it takes, others go on.
#[test]
fn while_a_stream_is_made_to_wait_for_memory() {
    apart(|| while_held("stream_wait_event", 1, true, all, take_on_the_device));
}

/// While a thread takes pinned memory, others go on.
#[test]
fn while_host_memory_is_taken() {
    apart(|| while_held("host_alloc_as", 1, true, all, take_host_memory));
}

/// While a thread shares granules with another process, others go on.
#[test]
fn while_memory_is_shared() {
    apart(|| while_held("share_granules", 1, true, all, share));
}
