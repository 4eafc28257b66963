//! Millpond as a plugin in a forked child: queries are answered from the parent's last answers, without a lock.
//! PaddlePaddle's data loader makes such queries in its worker processes.

use crate::apart::apart_with;
use millpond::paddle::abi::*;
use millpond::paddle::init_plugin;
use std::ptr::null_mut;
use std::sync::mpsc::channel;

type Ask = unsafe extern "C-unwind" fn(C_Device, *mut usize) -> C_Status;

fn ask(f: Option<Ask>, device: i32) -> Result<usize, C_Status> {
    let (mut d, mut out) = (C_Device_st { id: device }, usize::MAX);
    match unsafe { f.unwrap()(&mut d, &mut out) } {
        C_Status::SUCCESS => Ok(out),
        failed => Err(failed),
    }
}

fn stats(t: &C_DeviceInterface, device: i32) -> Option<(usize, usize)> {
    let (mut d, mut total, mut free) = (C_Device_st { id: device }, 0, 0);
    let s = unsafe { t.device_memory_stats.unwrap()(&mut d, &mut total, &mut free) };
    (s == C_Status::SUCCESS).then_some((total, free))
}

/// Everything that asks about a device.
fn questions(t: &C_DeviceInterface) -> [Option<Ask>; 9] {
    [
        t.device_min_chunk_size,
        t.device_max_chunk_size,
        t.device_max_alloc_size,
        t.device_extra_padding_size,
        t.device_init_alloc_size,
        t.device_realloc_size,
        t.get_compute_capability,
        t.get_runtime_version,
        t.get_driver_version,
    ]
}

fn answers(t: &C_DeviceInterface, device: i32) -> Vec<Result<usize, C_Status>> {
    questions(t).into_iter().map(|f| ask(f, device)).collect()
}

fn count(t: &C_DeviceInterface) -> usize {
    let mut n = 0;
    assert_eq!(unsafe { t.get_device_count.unwrap()(&mut n) }, C_Status::SUCCESS);
    n
}

/// Runs `checks` in a forked child; the number of the first that does not hold comes back.
fn in_child(checks: impl FnOnce() -> Vec<bool>) {
    match unsafe { libc::fork() } {
        0 => {
            unsafe { libc::alarm(20) };
            let bad = checks().iter().position(|good| !good);
            unsafe { libc::_exit(bad.map_or(0, |i| i as i32 + 1)) }
        }
        pid => {
            let mut status = -1;
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "the child hung or crashed: {status}");
            assert_eq!(libc::WEXITSTATUS(status), 0, "the number of the check that failed in the child");
        }
    }
}

// One test, apart: forks of a process with several test threads would disturb each other.
#[test]
fn a_forked_child_may_ask() {
    apart_with(&[("MILLPOND_HOST_DEVICES", "3"), ("MILLPOND_HOST_CAPACITY", "256M")], || {
        let layout = KnownLayout::ALL.iter().find(|l| l.capabilities == Capabilities::WithDevice).unwrap();
        let (mut params, mut table) = (vec![0u64; 512], vec![0u64; 512]);
        params[0] = layout.params_size as u64;
        params[1] = table.as_mut_ptr() as usize as u64;
        table[0] = layout.interface_size as u64;
        unsafe { init_plugin(params.as_mut_ptr().cast()) };
        // SAFETY: 4 KiB, aligned, zeros or callbacks.
        let t = unsafe { &*table.as_ptr().cast::<C_DeviceInterface>() };
        assert_eq!(unsafe { t.initialize.unwrap()() }, C_Status::SUCCESS);
        assert_eq!(count(t), 3);

        // No device was used yet.
        in_child(|| (0..3).map(|d| answers(t, d).iter().all(Result::is_ok)).collect());

        // Another thread is busy on the devices at every fork, and may hold any lock.
        let (stop, stopped) = channel::<()>();
        let table_at = t as *const C_DeviceInterface as usize;
        let busy = std::thread::spawn(move || {
            // SAFETY: the table outlives this thread, which is joined below.
            let t = unsafe { &*(table_at as *const C_DeviceInterface) };
            let mut d = C_Device_st { id: 0 };
            while stopped.try_recv().is_err() {
                let mut p = null_mut();
                unsafe { t.device_memory_allocate.unwrap()(&mut d, &mut p, 1 << 20) };
                unsafe { t.device_memory_deallocate.unwrap()(&mut d, p, 1 << 20) };
                count(t);
            }
        });
        let (mut d, mut held) = (C_Device_st { id: 1 }, null_mut());
        let allocated = unsafe { t.device_memory_allocate.unwrap()(&mut d, &mut held, 32 << 20) };
        assert_eq!(allocated, C_Status::SUCCESS);
        let told: Vec<_> = (0..3).map(|d| answers(t, d)).collect();
        assert!(told.iter().flatten().all(Result::is_ok), "{told:?}");
        let memory = stats(t, 1).unwrap();
        assert_eq!(memory, (256 << 20, 224 << 20));
        for _ in 0..20 {
            in_child(|| {
                let (mut list, mut d, mut p) = ([usize::MAX; 3], C_Device_st { id: 0 }, null_mut());
                let listed = unsafe { t.get_device_list.unwrap()(list.as_mut_ptr()) };
                let refused = unsafe { t.device_memory_allocate.unwrap()(&mut d, &mut p, 4096) };
                vec![
                    count(t) == 3,
                    listed == C_Status::SUCCESS && list == [0, 1, 2],
                    answers(t, 0) == told[0],
                    answers(t, 1) == told[1],
                    answers(t, 2) == told[2],
                    stats(t, 1) == Some(memory),
                    // There is no such device in the child either, and no memory.
                    answers(t, 3).iter().all(Result::is_err),
                    answers(t, -1).iter().all(Result::is_err),
                    refused == C_Status::ERROR,
                ]
            });
        }
        stop.send(()).unwrap();
        busy.join().unwrap();

        // What has ended has nothing to tell.
        assert_eq!(unsafe { t.finalize.unwrap()() }, C_Status::SUCCESS);
        in_child(|| vec![answers(t, 0).iter().all(Result::is_err), stats(t, 0).is_none()]);
    });
}
