//! Programs that share a card: a group, which is a file. docs/groups.md describes how it fits together.

use crate::capi::guard::{Out, OutRecords, RecordNames, Versioned, file_name, run, run_roomy, text};
use crate::capi::handles;
use crate::capi::types::millpond_device;
use crate::paddle::abi::C_Status;
use crate::runtime::{self, DeviceGroup, GroupMember};
use std::ffi::c_char;
use std::time::Duration;

/// The size of a name in `millpond_group_member` in bytes, with its NUL; longer names are cut.
pub const MILLPOND_GROUP_NAME: usize = 40;

/// A member of a group: a device of one program. What it has is as it was when the member last looked, or a quarter of a
/// second before.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_group_member {
    /// sizeof(millpond_group_member), or as much of it as was written.
    pub struct_size: usize,
    /// Its number in the group, never 0, and never another one's as long as the file exists.
    pub member_id: u64,
    /// The number of its process, as it sees it itself: in another container it may be another one's.
    pub process_id: u64,
    /// Its name.
    pub name: [c_char; MILLPOND_GROUP_NAME],
    /// Its own name of the device, such as "cuda:0".
    pub device: [c_char; MILLPOND_GROUP_NAME],
    /// Which card that is: members with the same value share one. The device's UUID, where it has one.
    pub card: [u8; 16],
    /// Taken from the card.
    pub reserved_bytes: u64,
    /// Of these in no block: the most that it could give back.
    pub unused_bytes: u64,
    /// The last budget that `millpond_group_set_budget` has given it and that it follows; 0: none.
    pub budget_bytes: u64,
    /// What it has given back for others so far.
    pub given_bytes: u64,
    /// What others have given back for it so far.
    pub received_bytes: u64,
    /// How long ago it last looked for what others want, to a quarter of a second; UINT64_MAX: never.
    pub looked_ms: u64,
}

// SAFETY: `repr(C)`, integers only, `struct_size` first.
unsafe impl Versioned for millpond_group_member {}

fn label(text: &str) -> [c_char; MILLPOND_GROUP_NAME] {
    let mut out = [0; MILLPOND_GROUP_NAME];
    // A member's names are shorter.
    for (to, from) in out[..MILLPOND_GROUP_NAME - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    out
}

impl From<&GroupMember> for millpond_group_member {
    fn from(m: &GroupMember) -> Self {
        millpond_group_member {
            struct_size: size_of::<millpond_group_member>(),
            member_id: m.id,
            process_id: m.process,
            name: label(&m.name),
            device: label(&m.device),
            card: m.card,
            reserved_bytes: m.reserved_bytes,
            unused_bytes: m.unused_bytes,
            budget_bytes: m.budget_bytes,
            given_bytes: m.given_bytes,
            received_bytes: m.received_bytes,
            looked_ms: m.looked_ms.unwrap_or(u64::MAX),
        }
    }
}

/// Joins the programs that share the device's card and have joined the same group: the file `path`, which is made where
/// there is none (for its owner only; make it beforehand, empty, for others to join). It lies on a file system of this
/// machine, best in /dev/shm or /run, and is never removed. A group may have devices of several cards; only those with
/// the same UUID have anything to do with each other.
///
/// From now on a request for which the card has too little, after all else that Millpond can do itself and before
/// out-of-memory callbacks, asks the other members, one after the other, to give back what they do not use, the one with the
/// most first and no more than is missing. It waits for them up to `wait_ms`, at most an hour, and is tried again if one of
/// them gave something, or the card has enough by then; if somebody else has taken that, it asks again while there is time.
/// 0: it does not ask. Members are asked that have looked for wishes in the last ten seconds, by
/// `millpond_device_serve_group`; those that have not in the last one come last. A request that the pool's own limit or the
/// device's refuses asks nobody, nor does one while a stream of the device is captured.
///
/// `name` is for people, and cut after 32 bytes; NULL: none. The membership ends with `millpond_device_leave_group`, with
/// the device, and with the process, however that ends. A child of fork is no member. `out_member_id` may be NULL.
///
/// Errors: NOT_PERMITTED if the device is in a group already; INVALID_ARGUMENT, also for a file that is something else,
/// which is left as it is; UNSUPPORTED for the group of another version; BUSY if it has 64 members, or another program holds
/// the file's lock for seconds; SYSTEM; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_join_group(
    device: *mut millpond_device,
    path: *const c_char,
    name: *const c_char,
    wait_ms: u64,
    out_member_id: *mut u64,
) -> C_Status {
    run_roomy(|| {
        let out = match out_member_id.is_null() {
            true => None,
            // SAFETY: C's promise, as the header states it.
            false => Some(unsafe { Out::new(out_member_id, "out_member_id") }?),
        };
        // SAFETY: as above.
        let path = unsafe { file_name(path, "path") }?;
        // SAFETY: as above.
        let name = if name.is_null() { "" } else { unsafe { text(name, "name") }? };
        let id =
            DeviceGroup::of(handles::device(device)?).join(path, name, Duration::from_millis(wait_ms))?;
        if let Some(out) = out {
            out.set(id);
        }
        Ok(())
    })
}

/// Leaves the group. Threads in `millpond_device_serve_group` return, and requests that wait for others do so no longer. A
/// budget that was set through the group stays in force.
///
/// Errors: NOT_PERMITTED if the device is in no group; INVALID_ARGUMENT; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_leave_group(device: *mut millpond_device) -> C_Status {
    run(|| DeviceGroup::of(handles::device(device)?).leave())
}

/// Looks for what other members of the device's group want, and gives back so much of what no block uses, as
/// `millpond_device_trim_to` does; and follows a budget that `millpond_group_set_budget` has set, as
/// `millpond_device_set_budget` does. Returns after that, or after `timeout_ms`; 0: after one look, which costs some
/// microseconds. `out_given_bytes`, which may be NULL, gets what went back to the card.
///
/// Millpond starts no thread for this. Call it from one of your own, in a loop, with a timeout; or with 0 where the program
/// comes by at least every few seconds. Several threads may call it at once. It holds no lock while it waits.
///
/// While a stream is captured nothing can go back; the others are told so. A budget is in force even then, and unused
/// memory goes back to it when a budget is set again.
///
/// Errors: NOT_PERMITTED if the device is in no group, also if it left while this waited, and in a stream callback;
/// NOT_INITIALIZED, also when the device ends meanwhile; SYSTEM if the file is damaged; OUT_OF_MEMORY if the host has none
/// for the call just now: call it again a moment later; INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_serve_group(
    device: *mut millpond_device,
    timeout_ms: u64,
    out_given_bytes: *mut u64,
) -> C_Status {
    // First, and without any room: whoever leaves may wait for a thread that calls this until it is told so.
    let joined = run(|| DeviceGroup::of(handles::device(device)?).check());
    if joined != C_Status::SUCCESS {
        return joined;
    }
    run_roomy(|| {
        let out = match out_given_bytes.is_null() {
            true => None,
            // SAFETY: C's promise, as the header states it.
            false => Some(unsafe { Out::new(out_given_bytes, "out_given_bytes") }?),
        };
        let given = DeviceGroup::of(handles::device(device)?).serve(Duration::from_millis(timeout_ms))?;
        if let Some(out) = out {
            out.set(given);
        }
        Ok(())
    })
}

/// Writes the members of the group whose file is `path` to the array `records`, sorted by number: the first `capacity` of
/// them, and to `out_count` how many there are. `record_size` is sizeof(millpond_group_member). `records` may be NULL if
/// `capacity` is 0. The file is only read, no device is opened, and the caller need not be a member.
///
/// Errors: INVALID_ARGUMENT, also for a `record_size` that no version of this struct has, and for a file that is no
/// group's; UNSUPPORTED for the group of another version; SYSTEM if the file cannot be read. On an error nothing is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_group_list(
    path: *const c_char,
    records: *mut millpond_group_member,
    record_size: usize,
    capacity: usize,
    out_count: *mut usize,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_count, "out_count") }?;
        let names = RecordNames("records", "record_size", "millpond_group_member");
        // SAFETY: as above.
        let records = unsafe { OutRecords::new(records, record_size, capacity, &names) }?;
        // SAFETY: as above.
        let all: Vec<GroupMember> = runtime::group_members(unsafe { file_name(path, "path") }?)?;
        records.set(all.iter().map(millpond_group_member::from));
        out.set(all.len());
        Ok(())
    })
}

/// Tells a member of the group to take no more than `budget_bytes` from its card, which it follows when it next looks
/// (`millpond_device_serve_group`): the limit is set, and unused memory goes back. 0: no budget. The caller needs to be no
/// member, but may write the file. `budget_bytes` of `millpond_group_list` tells whether it has been followed.
///
/// Errors: INVALID_ARGUMENT if the group has no such member, and for a file that is no group's; UNSUPPORTED for the group
/// of another version; SYSTEM; BUSY if another program holds the file's lock for seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_group_set_budget(
    path: *const c_char,
    member_id: u64,
    budget_bytes: u64,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let path = unsafe { file_name(path, "path") }?;
        runtime::set_group_budget(path, member_id, budget_bytes)
    })
}
