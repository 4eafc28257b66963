//! Pools that end or are let go of while others use them by their handles.

use crate::apart::*;
use crate::api::*;
use millpond::capi::*;

fn begin(pool: Pool) -> Outcome<()> {
    outcome(unsafe { millpond_scope_begin(ptr(pool.0)) })
}

fn end(pool: Pool) -> Outcome<()> {
    outcome(unsafe { millpond_scope_end(ptr(pool.0)) })
}

/// While a thread is in a scope of it, too: it would take no more requests, and nobody could end that.
#[test]
fn the_default_pool_is_not_released() {
    apart(|| {
        for backend in ["native", "none"] {
            let _ = millpond_finalize();
            millpond::runtime::set_default_options(Some("host"), None, &format!("backend:{backend}"))
                .unwrap();
            let d = Device::get("host", 0).unwrap();
            let (pool, s) = (d.default_pool(), d.stream());
            for inside in [false, true] {
                if inside {
                    begin(pool).unwrap();
                }
                let held = pool.alloc(1000, s).unwrap();
                assert_eq!(code(pool.destroy()), MILLPOND_E_INVALID_ARGUMENT, "{backend} {inside}");
                assert_eq!(code(pool.release()), MILLPOND_E_INVALID_ARGUMENT, "{backend} {inside}");
                let p = pool.alloc(1000, s).unwrap();
                pool.free(p, s).unwrap();
                pool.free(held, s).unwrap();
                begin(pool).unwrap();
                end(pool).unwrap();
            }
            end(pool).unwrap();
        }
    });
}
