//! A member of a group: what it gives back for others, and how it asks them.
//!
//! A member that misses memory asks one other at a time, the one with the most unused memory first: so no more goes back
//! to the card than is missing. The other one looks into the file while it serves the group, gives back what it does not
//! use, and leaves an answer. Nobody waits for anybody with a lock held, and whoever waits for an answer answers others
//! meanwhile: two that ask each other both go on.

use super::file::{GroupFile, Seen};
use super::membership::{Asks, Need};
use super::record::{Note, Record, SLOTS, Wish, cut};
use crate::base::clock::monotonic;
use crate::base::error::{Code, Result};
use crate::base::sync::system::{Mutex, lock};
use crate::base::sync::{AtomicBool, AtomicU64, Ordering};
use crate::fail;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often a member that serves looks into the file.
const LOOKS: Duration = Duration::from_millis(5);
/// How often one that waits for an answer does.
const WATCHES: Duration = Duration::from_millis(1);
/// How often one that waits for an answer asks the card whether it has enough by then.
const COUNTS: Duration = Duration::from_millis(50);
/// [ms] Whoever has not looked for so long is not asked: it may never look again.
const AWAKE: u64 = 10_000;
/// [ms] How old the time of the last look may be in the file, and what is held.
const TELLS: u64 = 250;
/// [ms] Whoever has looked in this time looks all the time.
const PROMPT: u64 = 4 * TELLS;

/// What a member has of its card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stake {
    /// \[B\] taken from the card.
    pub reserved: u64,
    /// \[B\] of these in use.
    pub active: u64,
    /// \[B\] that ever went back to the card.
    pub returned: u64,
}

/// The memory that a member has of its card.
pub(crate) trait Share {
    /// What is held now.
    fn held(&self) -> Stake;

    /// \[B\] that the card has free, if it can be asked.
    fn free(&self) -> Option<u64>;

    /// \[B\] that the card has in all, if that is known.
    fn total(&self) -> Option<u64>;

    /// Whether memory of others still helps the request. If not, it is tried at once, and finds out why.
    fn is_helped(&self, need: Need) -> bool;

    /// Gives unused memory back until no more than `keep` bytes are taken, as far as possible.
    fn trim_to(&self, keep: u64) -> Result<()>;

    /// Takes no more than this from the card, and gives unused memory back down to it; 0: no bound.
    fn set_budget(&self, bytes: u64) -> Result<()>;

    /// Fails when the memory has ended.
    fn check(&self) -> Result<()>;
}

/// Who joins, and how.
#[derive(Clone, Copy)]
pub(crate) struct Joining<'a> {
    pub name: &'a str,
    pub device: &'a str,
    pub card: [u64; 2],
    /// How long a request waits for what others may give.
    pub wait: Duration,
}

/// What was done for others in one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    /// \[B\] given back.
    pub bytes: u64,
    /// Whether somebody had a wish, or there was an order.
    pub any: bool,
}

/// What a member has heard.
struct Heard {
    /// The last wish of each slot that was answered: who had it, and its number; and what the answer was.
    answered: [([u64; 2], u64); SLOTS],
    /// The number of the last wish of its own.
    wishes: u64,
}

/// A member of a group.
pub(crate) struct Member {
    file: GroupFile,
    slot: usize,
    wait: Duration,
    told: Mutex<Record>,
    heard: Mutex<Heard>,
    /// Whether a thread looks for others just now, and whether one asks.
    looking: AtomicBool,
    asking: AtomicBool,
    left: AtomicBool,
    /// [ms] When it was last told what is held.
    told_at: AtomicU64,
}

/// The turn to do something that one thread at a time does.
struct Turn<'a>(&'a AtomicBool);

impl<'a> Turn<'a> {
    fn take(of: &'a AtomicBool) -> Option<Turn<'a>> {
        // Acquire: pairs with the release of the one before.
        (!of.swap(true, Ordering::Acquire)).then(|| Turn(of))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Whether a request is to be tried again: the card has enough by now, or memory helps it no longer. That is asked only
/// now and then.
struct Enough {
    need: Need,
    next: Instant,
}

impl Enough {
    fn new(need: Need) -> Enough {
        Enough { need, next: Instant::now() + COUNTS }
    }

    fn is_there(&mut self, share: &dyn Share) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        self.next = now + COUNTS;
        !share.is_helped(self.need) || share.free().is_some_and(|free| free >= self.need.bytes)
    }
}

fn now() -> u64 {
    monotonic() / 1_000_000
}

impl Member {
    /// Joins the group whose file this is, which is made where there is none.
    pub(crate) fn join(path: &Path, as_: Joining<'_>) -> Result<Member> {
        let file = GroupFile::open(path, true, true)?;
        let (slot, id) = file.join()?;
        let record = Record {
            id,
            process: u64::from(std::process::id()),
            card: as_.card,
            name: cut(as_.name),
            device: cut(as_.device),
            ..Record::default()
        };
        file.write(slot, &record)?;
        Ok(Member {
            file,
            slot,
            wait: as_.wait,
            told: Mutex::new(record),
            // So that a late answer to whoever had the slot before is none to this one.
            heard: Mutex::new(Heard { answered: [([0; 2], 0); SLOTS], wishes: id << 32 }),
            looking: AtomicBool::new(false),
            asking: AtomicBool::new(false),
            left: AtomicBool::new(false),
            told_at: AtomicU64::new(0),
        })
    }

    /// Its number in the group.
    pub(crate) fn id(&self) -> u64 {
        lock(&self.told).id
    }

    /// Leaves; threads that serve see it.
    pub(crate) fn leave(&self) {
        // Relaxed: nothing else is handed over by it.
        if !self.left.swap(true, Ordering::Relaxed) {
            // Under the lock under which the record is written: nothing is written once the slot may be another one's.
            let _told = lock(&self.told);
            let _ = self.file.leave(self.slot);
        }
    }

    fn check(&self, share: &dyn Share) -> Result<()> {
        share.check()?;
        // Relaxed: as in `leave`.
        if self.left.load(Ordering::Relaxed) {
            fail!(Code::NotPermitted, "the device has left its group");
        }
        Ok(())
    }

    /// Changes what the member says of itself, and writes it where it is something new.
    fn tell(&self, change: impl FnOnce(&mut Record)) -> Result<()> {
        let mut told = lock(&self.told);
        let mut record = *told;
        change(&mut record);
        // Relaxed: under the lock under which `leave` clears the slot.
        if record == *told || self.left.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.file.write(self.slot, &record)?;
        *told = record;
        Ok(())
    }

    /// Looks for others' wishes, and for orders, until something was done or `timeout` is over. Returns what was given
    /// back, in bytes.
    pub(crate) fn serve(&self, share: &dyn Share, timeout: Duration) -> Result<u64> {
        let until = Instant::now().checked_add(timeout);
        let mut looked = false;
        loop {
            self.check(share)?;
            let served = match Turn::take(&self.looking) {
                Some(_turn) => {
                    looked = true;
                    self.look(share, true)?
                }
                // Another thread is looking, and may have begun before there was anything to see.
                None => Served::default(),
            };
            let left = until.map_or(LOOKS, |until| until.saturating_duration_since(Instant::now()));
            if served.any || looked && left.is_zero() {
                return Ok(served.bytes);
            }
            sleep(if looked { left.min(LOOKS) } else { WATCHES });
        }
    }

    /// One look, by the thread whose turn it is. `serves`: others may count on more looks.
    fn look(&self, share: &dyn Share, serves: bool) -> Result<Served> {
        let seen = self.file.read()?;
        let me = *lock(&self.told);
        let mut served = self.follow(share, &seen, &me)?;
        for slot in (0..SLOTS).filter(|&slot| slot != self.slot) {
            let Some(other) = seen.record(slot).filter(|r| r.wish.to == me.id && r.card == me.card) else {
                continue;
            };
            let wish = [other.id, other.wish.number];
            // Whoever has ended needs nothing any more.
            if !self.file.is_held(slot) {
                continue;
            }
            let (answered, said) = lock(&self.heard).answered[slot];
            let bytes = if answered == wish {
                // A late answer of another one may have come over it between two looks of who waits for this one.
                let is_there = |a: Note| (a.who, a.number) == (me.id, other.wish.number);
                if seen.answer(slot).is_some_and(is_there) {
                    continue;
                }
                said
            } else {
                let bytes = give(share, other.wish.bytes);
                lock(&self.heard).answered[slot] = (wish, bytes);
                self.tell(|r| r.given += bytes)?;
                served = Served { bytes: served.bytes + bytes, any: true };
                bytes
            };
            // Whoever has stopped waiting may be waiting for another one's answer, which stands in the same place.
            if self.file.read()?.record(slot).is_none_or(|r| [r.id, r.wish.number] == wish) {
                self.file.answer(slot, &Note { who: me.id, number: other.wish.number, bytes })?;
            }
        }
        let now = now();
        // What is held takes the memory's locks and asks the device, which is too much for every look.
        let old = |time: u64| now.saturating_sub(time) >= TELLS;
        if served.any || old(self.told_at.load(Ordering::Relaxed)) || serves && old(me.looked) {
            self.told_at.store(now, Ordering::Relaxed);
            let Stake { reserved, active, .. } = share.held();
            self.tell(|r| {
                (r.reserved, r.active) = (reserved, active);
                if serves {
                    r.looked = now;
                }
            })?;
        }
        Ok(served)
    }

    /// Follows an order that is new.
    fn follow(&self, share: &dyn Share, seen: &Seen, me: &Record) -> Result<Served> {
        let order = seen.order(self.slot).filter(|o| o.who == me.id && o.number != me.order);
        let Some(order) = order else { return Ok(Served::default()) };
        let before = share.held().returned;
        // What cannot go back now does so when the next order comes, or the next wish; the bound is in force.
        let _ = share.set_budget(order.bytes);
        let bytes = share.held().returned.saturating_sub(before);
        self.tell(|r| (r.budget, r.order) = (order.bytes, order.number))?;
        Ok(Served { bytes, any: true })
    }

    /// Asks others until the card has what a request needs, for as long as one waits that has begun to ask at `since`.
    /// Returns what they gave back, in bytes; `None` if they gave nothing and the card still has too little, or the time was
    /// over before. Nobody is asked for more than the card has beside what this member uses: all would give what they have,
    /// for nothing.
    pub(crate) fn ask(&self, share: &dyn Share, need: Need, since: Instant) -> Option<u64> {
        let all = need.bytes.saturating_add(need.own);
        let hopeless = || share.total().is_some_and(|total| all > total.saturating_sub(share.held().active));
        let (until, now) = (since + self.wait, Instant::now());
        if now >= until || hopeless() {
            return None;
        }
        // Not the first time: others were faster, and may be once more.
        let pause = Duration::from_micros((now - since).as_micros() as u64 / 8);
        sleep(pause.min(LOOKS).min(until - now));
        let (got, enough);
        match self.turn_to_ask(share, need, until) {
            Some(_turn) => {
                (got, enough) = self.ask_all(share, need, until);
                let _ = self.tell(|r| {
                    r.wish = Wish::default();
                    r.received = r.received.saturating_add(got);
                });
            }
            None => (got, enough) = (0, Instant::now() < until && self.check(share).is_ok()),
        }
        // Somebody may have asked this one meanwhile, and counts on its looking.
        if let Some(_turn) = Turn::take(&self.looking) {
            let _ = self.look(share, false);
        }
        // What another thread asked for, or another program gave up of itself, helps as well.
        (got > 0 || enough || share.free().is_some_and(|free| free >= need.bytes)).then_some(got)
    }

    /// The turn to ask; `None` if the time is over first, or the membership, or the request is to be tried again.
    fn turn_to_ask(&self, share: &dyn Share, need: Need, until: Instant) -> Option<Turn<'_>> {
        let mut enough = Enough::new(need);
        loop {
            if let Some(turn) = Turn::take(&self.asking) {
                return Some(turn);
            }
            if Instant::now() >= until || self.check(share).is_err() || enough.is_there(share) {
                return None;
            }
            sleep(WATCHES);
        }
    }

    /// Asks one after the other, by the thread whose turn it is. Returns what they gave back, in bytes, and whether the card
    /// had enough at last (when the request is tried again, somebody else may have taken it), or no memory helps any more.
    fn ask_all(&self, share: &dyn Share, need: Need, until: Instant) -> (u64, bool) {
        let (mut asked, mut got, mut all_were_asked) = ([false; SLOTS], 0u64, false);
        loop {
            if !share.is_helped(need) {
                return (got, true);
            }
            let free = share.free();
            let held = share.held().reserved;
            let missing = need.bytes.saturating_sub(free.unwrap_or(got));
            if missing == 0 || Instant::now() >= until || self.check(share).is_err() {
                return (got, missing == 0);
            }
            let Some((slot, other)) = self.next(&asked) else {
                // The first ones may have freed what they used when they were asked.
                if got > 0 || std::mem::replace(&mut all_were_asked, true) {
                    return (got, false);
                }
                asked = [false; SLOTS];
                continue;
            };
            asked[slot] = true;
            // One that has stopped to look leaves half of the time to the others.
            let now = Instant::now();
            let patience = match self.next(&asked) {
                Some(_) => now + until.saturating_duration_since(now) / 2,
                None => until,
            };
            let Some(bytes) = self.wish(share, (slot, other), missing, need, patience) else {
                return (got, false);
            };
            got = got.saturating_add(bytes);
            // What other threads of this program have taken meanwhile has come to it as well.
            let more =
                || Some(share.free()?.saturating_add(share.held().reserved) > free?.saturating_add(held));
            if bytes > 0 && more() == Some(false) {
                return (got, false); // what the others have is not this card's
            }
        }
    }

    /// Whom to ask next: of those that look, the one with the most memory that it does not use. Those that look only now
    /// and then come last, for the time may be over before they do.
    fn next(&self, asked: &[bool; SLOTS]) -> Option<(usize, u64)> {
        let seen = self.file.read().ok()?;
        let (me, now) = (*lock(&self.told), now());
        let looks = |r: &Record| r.looked != 0 && now.saturating_sub(r.looked) < AWAKE;
        (0..SLOTS)
            .filter(|&slot| !asked[slot] && slot != self.slot)
            .filter_map(|slot| Some((slot, seen.record(slot)?)))
            .filter(|(slot, r)| r.card == me.card && looks(r) && self.file.is_held(*slot))
            .max_by_key(|(_, r)| (now.saturating_sub(r.looked) < PROMPT, r.reserved.saturating_sub(r.active)))
            .map(|(slot, r)| (slot, r.id))
    }

    /// Asks one other, and waits for its answer; 0 bytes if that does not come in time, or the request is to be tried again
    /// before. `None`: the membership is over, or the file is gone.
    fn wish(
        &self,
        share: &dyn Share,
        (slot, to): (usize, u64),
        bytes: u64,
        need: Need,
        until: Instant,
    ) -> Option<u64> {
        let number = {
            let mut heard = lock(&self.heard);
            heard.wishes = heard.wishes.wrapping_add(1);
            heard.wishes
        };
        self.tell(|r| r.wish = Wish { to, bytes, number }).ok()?;
        let mut enough = Enough::new(need);
        loop {
            let seen = self.file.read().ok()?;
            if let Some(answer) = seen.answer(self.slot).filter(|a| a.who == to && a.number == number) {
                return Some(answer.bytes);
            }
            let gone = seen.record(slot).is_some_and(|r| r.id != to) || !self.file.is_held(slot);
            if gone {
                return Some(0);
            }
            if self.check(share).is_err() {
                return None;
            }
            if Instant::now() >= until || enough.is_there(share) {
                return Some(0);
            }
            // It may be waiting for this one.
            if let Some(_turn) = Turn::take(&self.looking) {
                self.look(share, false).ok()?;
            }
            sleep(WATCHES);
        }
    }
}

impl<S: Share> Asks<S> for Member {
    fn ask(&self, share: &S, need: Need, since: Instant) -> Option<u64> {
        Member::ask(self, share, need, since)
    }

    fn serve(&self, share: &S, timeout: Duration) -> Result<u64> {
        Member::serve(self, share, timeout)
    }

    fn leave(&self) {
        Member::leave(self);
    }
}

/// Gives back unused memory, up to so much. Returns what went back, in bytes; other threads may take as much meanwhile.
fn give(share: &dyn Share, bytes: u64) -> u64 {
    let before = share.held();
    // While a stream is captured, say, nothing goes.
    let _ = share.trim_to(before.reserved.saturating_sub(bytes));
    share.held().returned.saturating_sub(before.returned)
}
